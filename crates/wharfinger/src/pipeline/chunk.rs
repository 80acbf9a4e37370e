//! Splits a file's text into chunks, one stored part at a time.

use futures::StreamExt as _;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, TextPart};
use wharfinger_text::{ChunkSettings, ChunkUnit, Chunker};

use super::output::{ChunkSink, TEXT_PART_BYTES_MAX};
use super::{Attempt, Backend, StageError};
use crate::config::PipelineSettings;
use crate::core::Core;

pub fn chunk_settings(settings: &PipelineSettings) -> ChunkSettings {
    ChunkSettings {
        unit: if settings.chunk_by_tokens { ChunkUnit::Tokens } else { ChunkUnit::Chars },
        size: settings.chunk_size,
        overlap: settings.chunk_overlap,
    }
}

pub async fn chunk(attempt: &Attempt<'_>) -> Result<AttemptOutcome, StageError> {
    let core = &attempt.pipeline.core;
    let mut chunker = Chunker::new(chunk_settings(&core.settings.pipeline))
        .map_err(|why| StageError::Backend(Backend::Machine, why))?;
    let mut sink = ChunkSink::open(attempt).await?;
    for part in core.catalog.text_parts(attempt.held.file.id).await? {
        let text = read_part(core, &part).await?;
        let (back, chunks) = run_blocking(move || {
            let chunks = chunker.push(&text);
            (chunker, chunks)
        })
        .await?;
        chunker = back;
        for chunk in chunks {
            sink.push(chunk.text, chunk.start, chunk.end).await?;
        }
    }
    for chunk in run_blocking(move || chunker.finish()).await? {
        sink.push(chunk.text, chunk.start, chunk.end).await?;
    }
    sink.finish().await
}

/// Runs CPU work on a blocking thread, so that it does not block other tasks. A panic fails only this file.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StageError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|panicked| StageError::Permanent(format!("the text could not be processed: {panicked}")))
}

/// Reads one part of a stored text.
pub async fn read_part(core: &Core, part: &TextPart) -> Result<String, StageError> {
    let of_part = |error: StageError| match error {
        StageError::Permanent(_) | StageError::ObjectChanged(_) => {
            StageError::Permanent("the extracted text was changed or removed in the store".into())
        }
        other => other,
    };
    let stream = core.blobs.get(&part.key, &part.pin, 0, None).await;
    let mut stream = stream.map_err(|error| of_part(error.into()))?;
    let mut bytes = Vec::with_capacity(usize::try_from(part.bytes).unwrap_or(0).min(2 * TEXT_PART_BYTES_MAX));
    while let Some(piece) = stream.next().await {
        bytes.extend_from_slice(&piece.map_err(|error| of_part(error.into()))?);
    }
    String::from_utf8(bytes)
        .map_err(|_| StageError::Permanent("the extracted text was changed in the store".into()))
}
