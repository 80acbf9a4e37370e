//! The input of a stage besides the file: the output of the previous stage. A small input is sent with the lease, a large
//! one as a signed URL that works while the lease is valid.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use serde_json::{Value, json};
use wharfinger_catalog::{ChunkRow, LeasedStageJob};
use wharfinger_lifecycle::id::{FileId, JobId};
use wharfinger_lifecycle::stage::Stage;

use super::StageError;
use super::chunk::read_part;
use crate::core::Core;
use crate::core::VerbError;
use crate::pipeline::Pipeline;

/// Larger inputs are sent as a URL.
const INLINE_BYTES_MAX: u64 = 256 << 10;
const INLINE_CHUNKS_MAX: u64 = 100;
const PAGE_CHUNKS: usize = 500;

pub enum Input {
    Empty,
    Inline(Value),
    /// A signed URL that returns the input as JSON.
    Url(String),
}

pub(super) async fn of(pipeline: &Pipeline, held: &LeasedStageJob) -> Result<Input, StageError> {
    let core = &pipeline.core;
    let file = held.file.id;
    match input_kind(held) {
        InputKind::Empty => Ok(Input::Empty),
        InputKind::Verdict => Ok(Input::Inline(json!({ "verdict": "clean" }))),
        InputKind::Text => {
            let parts = core.catalog.text_parts(file).await?;
            if parts.iter().map(|part| part.bytes).sum::<u64>() > INLINE_BYTES_MAX {
                return Ok(Input::Url(url(pipeline, held)));
            }
            let mut text = String::new();
            for part in &parts {
                text.push_str(&read_part(core, part).await?);
            }
            Ok(Input::Inline(json!({ "text": text })))
        }
        InputKind::Chunks => {
            if core.catalog.chunk_count(file).await? > INLINE_CHUNKS_MAX {
                return Ok(Input::Url(url(pipeline, held)));
            }
            let chunks = core.catalog.chunks(file, 0, INLINE_CHUNKS_MAX as usize).await?;
            Ok(Input::Inline(json!({ "chunks": chunks.iter().map(chunk_json).collect::<Vec<_>>() })))
        }
    }
}

/// Which earlier output a stage needs.
enum InputKind {
    Empty,
    Verdict,
    Text,
    Chunks,
}

fn input_kind(held: &LeasedStageJob) -> InputKind {
    match held.stage {
        Stage::Chunk => InputKind::Text,
        Stage::Embed => InputKind::Chunks,
        Stage::Scan => InputKind::Empty,
        Stage::Extract => match held.file.stages().iter().position(|stage| *stage == Stage::Scan) {
            Some(scan)
                if Some(scan) < held.file.stages().iter().position(|stage| *stage == Stage::Extract) =>
            {
                InputKind::Verdict
            }
            _ => InputKind::Empty,
        },
    }
}

fn chunk_json(chunk: &ChunkRow) -> Value {
    json!({ "text": chunk.text, "start": chunk.start, "end": chunk.end })
}

fn url(pipeline: &Pipeline, held: &LeasedStageJob) -> String {
    let (job, token) = (held.job.id, held.job.token);
    let signature = pipeline.lease_key.input_signature(job, token);
    format!(
        "{}/api/v2/workers/jobs/{job}/input?lease={token}&signature={signature}",
        pipeline.core.public_url
    )
}

/// Streams the whole input as JSON.
pub async fn open(
    pipeline: Arc<Pipeline>,
    job: JobId,
    token: i64,
    given_signature: &str,
) -> Result<BoxStream<'static, Result<Bytes, VerbError>>, VerbError> {
    let core = &pipeline.core;
    if !pipeline.lease_key.is_input_signature(job, token, given_signature) {
        return Err(VerbError::NotFound);
    }
    let held = core.catalog.leased_stage_job(job, token).await?.ok_or(VerbError::LeaseLost)?;
    let file = held.file.id;
    let (opening, pieces, closing) = match input_kind(&held) {
        InputKind::Text => ("{\"text\":\"", text(core.clone(), file), "\"}"),
        InputKind::Chunks => ("{\"chunks\":[", chunks(core.clone(), file), "]}"),
        InputKind::Empty | InputKind::Verdict => ("{", stream::empty().boxed(), "}"),
    };
    let fixed = |text: &'static str| stream::once(async move { Ok(Bytes::from_static(text.as_bytes())) });
    Ok(fixed(opening).chain(pieces).chain(fixed(closing)).boxed())
}

type Pieces = BoxStream<'static, Result<Bytes, VerbError>>;

fn text(core: Arc<Core>, file: FileId) -> Pieces {
    stream::once(async move {
        let parts = core.catalog.text_parts(file).await?;
        Ok::<_, VerbError>(stream::iter(parts).then(move |part| {
            let core = core.clone();
            async move {
                let text = read_part(&core, &part).await;
                let text = text.map_err(|error| VerbError::Unavailable(error.to_string()))?;
                let quoted = Value::String(text).to_string();
                Ok(Bytes::from(quoted[1..quoted.len() - 1].to_owned()))
            }
        }))
    })
    .flat_map(|parts| match parts {
        Ok(parts) => parts.boxed(),
        Err(error) => stream::once(async move { Err(error) }).boxed(),
    })
    .boxed()
}

fn chunks(core: Arc<Core>, file: FileId) -> Pieces {
    stream::unfold(Some(0u64), move |from| {
        let core = core.clone();
        async move {
            let from = from?;
            let page = match core.catalog.chunks(file, from, PAGE_CHUNKS).await {
                Ok(page) => page,
                Err(error) => return Some((Err(error.into()), None)),
            };
            let next = page.last()?.ordinal + 1;
            let rows: Vec<String> = page.iter().map(|chunk| chunk_json(chunk).to_string()).collect();
            let comma = if from == 0 { "" } else { "," };
            Some((Ok(Bytes::from(format!("{comma}{}", rows.join(",")))), Some(next)))
        }
    })
    .boxed()
}
