//! Stores the output of a stage. Every write to the catalog is fenced by the attempt's lease. An object that a lost
//! attempt still puts is in the catalog already, and is deleted with the file or after a later attempt.

use bytes::{Bytes, BytesMut};
use serde_json::json;
use wharfinger_catalog::{ChunkRow, ChunkVector};
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, StageOutput, TextPart};
use wharfinger_stores::{BlobError, WriteMode};

use super::{Attempt, Backend, StageError, bounds};

/// A text is stored in parts that fit into memory.
pub const TEXT_PART_BYTES_MAX: usize = 4 << 20;
const CHUNKS_PER_WRITE: usize = 500;

/// Writes a text to the store, part by part.
pub struct TextSink<'a> {
    attempt: &'a Attempt<'a>,
    open: BytesMut,
    parts: Vec<TextPart>,
    /// How many more input bytes are accepted.
    left: u64,
    /// How many more bytes may be stored. Invalid bytes take more space when stored than in the input.
    left_to_put: u64,
    /// The text was longer than allowed.
    pub is_cut: bool,
}

impl<'a> TextSink<'a> {
    pub async fn open(attempt: &'a Attempt<'a>) -> Result<TextSink<'a>, StageError> {
        let left = bounds::text_bytes_max(attempt).await?;
        let (open, parts) = (BytesMut::new(), Vec::new());
        Ok(TextSink { attempt, open, parts, left, left_to_put: left, is_cut: false })
    }

    /// How many more bytes are accepted.
    pub fn bytes_max(&self) -> u64 {
        self.left
    }

    /// Adds bytes, which may end inside a character. Bytes beyond the limit are dropped.
    pub async fn push(&mut self, bytes: &[u8]) -> Result<(), StageError> {
        let kept = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        self.is_cut |= kept < bytes.len();
        self.left -= kept as u64;
        let bytes = &bytes[..kept];
        for piece in bytes.chunks(TEXT_PART_BYTES_MAX / 4) {
            self.open.extend_from_slice(piece);
            if self.open.len() >= TEXT_PART_BYTES_MAX {
                let whole = self.open.split_to(split_point(&self.open));
                self.put(whole.freeze()).await?;
            }
        }
        Ok(())
    }

    /// Returns the end of the stage: the text and its details. A text of white space only is no text.
    pub async fn finish(mut self, kind: &str, pages: u32) -> Result<AttemptOutcome, StageError> {
        let is_blank = self.parts.is_empty() && String::from_utf8_lossy(&self.open).trim().is_empty();
        if !self.open.is_empty() && !is_blank {
            let rest = self.open.split();
            self.put(rest.freeze()).await?;
        }
        let bytes: u64 = self.parts.iter().map(|part| part.bytes).sum();
        let details = json!({
            "kind": kind, "pages": pages, "bytes": bytes, "parts": self.parts.len(), "cut": self.is_cut,
        });
        Ok(AttemptOutcome::Done(StageOutput { details: Some(details.to_string()), text: Some(self.parts) }))
    }

    async fn put(&mut self, bytes: Bytes) -> Result<(), StageError> {
        let mut text = without_nul(&String::from_utf8_lossy(&bytes));
        let kept = text.floor_char_boundary(usize::try_from(self.left_to_put).unwrap_or(usize::MAX));
        if kept < text.len() {
            self.is_cut = true;
            text.truncate(kept);
        }
        if text.is_empty() {
            return Ok(());
        }
        self.left_to_put -= text.len() as u64;
        let (core, file) = (&self.attempt.pipeline.core, &self.attempt.held.file);
        let (job, token) = self.attempt.lease();
        let number = u32::try_from(self.parts.len()).unwrap_or(u32::MAX);
        let key = ObjectKey::text_part(&file.key, job, token, number);
        let now = core.clock.now();
        if !core.catalog.add_derived_objects((job, token), file.id, vec![key.clone()], now).await? {
            return Err(StageError::LeaseLost);
        }
        let bytes = text.len() as u64;
        core.blobs.put(&key, Bytes::from(text), WriteMode::Overwrite).await.map_err(store_error)?;
        let meta = core.blobs.head(&key, None).await.map_err(store_error)?;
        core.blobs.make_durable(&key).await.map_err(store_error)?;
        let pin = Pin { etag: meta.etag, version_id: meta.version_id };
        self.parts.push(TextPart { key, pin, bytes });
        Ok(())
    }
}

/// Replaces NUL characters, which PostgreSQL does not accept in a text. The replacement is longer.
fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// For an object that was just written, "not found" is an error of the store like any other.
fn store_error(error: BlobError) -> StageError {
    StageError::Backend(Backend::Store, error.to_string())
}

/// Where to split: after the last line break if there is one near the end, otherwise after the last complete character.
fn split_point(bytes: &[u8]) -> usize {
    let near = bytes.len().saturating_sub(64 << 10);
    if let Some(line) = bytes[near..].iter().rposition(|byte| *byte == b'\n') {
        return near + line + 1;
    }
    let is_inside = |at: &usize| bytes.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
    let mut end = bytes.len().saturating_sub(4);
    while is_inside(&end) {
        end -= 1;
    }
    end
}

/// Writes chunks in batches.
pub struct ChunkSink<'a> {
    attempt: &'a Attempt<'a>,
    open: Vec<ChunkRow>,
    written: bool,
    count: u64,
    /// How many more bytes may be stored.
    left: u64,
    /// There were more chunks than allowed.
    is_cut: bool,
}

impl<'a> ChunkSink<'a> {
    pub async fn open(attempt: &'a Attempt<'a>) -> Result<ChunkSink<'a>, StageError> {
        let left = bounds::chunk_bytes_max(attempt).await?;
        Ok(ChunkSink { attempt, open: Vec::new(), written: false, count: 0, left, is_cut: false })
    }

    /// Adds a chunk. A chunk beyond the limit is dropped, and so are all chunks after it.
    pub async fn push(&mut self, text: String, start: u64, end: u64) -> Result<(), StageError> {
        let text = without_nul(&text);
        let bytes = bounds::stored_bytes(text.len() as u64 + bounds::vector_bytes(self.attempt));
        // The first chunk is stored even if it is larger than the limit.
        self.is_cut |= bytes > self.left && self.count > 0;
        if self.is_cut {
            return Ok(());
        }
        self.left = self.left.saturating_sub(bytes);
        self.open.push(ChunkRow { ordinal: self.count, text, start, end });
        self.count += 1;
        if self.open.len() >= CHUNKS_PER_WRITE { self.write().await } else { Ok(()) }
    }

    async fn write(&mut self) -> Result<(), StageError> {
        let attempt = self.attempt;
        let rows = std::mem::take(&mut self.open);
        let file = attempt.held.file.id;
        let written =
            attempt.pipeline.core.catalog.put_chunks(attempt.lease(), file, rows, !self.written).await?;
        self.written = true;
        if written { Ok(()) } else { Err(StageError::LeaseLost) }
    }

    pub async fn finish(mut self) -> Result<AttemptOutcome, StageError> {
        if !self.open.is_empty() || !self.written {
            self.write().await?;
        }
        let details = json!({ "chunks": self.count, "cut": self.is_cut });
        Ok(AttemptOutcome::Done(StageOutput { details: Some(details.to_string()), text: None }))
    }
}

/// Writes vectors of equal length, up to the limit.
pub struct VectorSink<'a> {
    attempt: &'a Attempt<'a>,
    model: &'a str,
    /// How many more bytes may be stored.
    left: u64,
    dimensions: usize,
    /// There were more vectors than allowed. Chunks without a vector are not found by a search.
    pub is_cut: bool,
}

impl<'a> VectorSink<'a> {
    pub async fn open(attempt: &'a Attempt<'a>, model: &'a str) -> Result<VectorSink<'a>, StageError> {
        let left = bounds::vector_bytes_left(attempt, model).await?;
        Ok(VectorSink { attempt, model, left, dimensions: 0, is_cut: false })
    }

    pub async fn push(&mut self, mut vectors: Vec<ChunkVector>) -> Result<(), StageError> {
        self.dimensions = vectors.first().map_or(self.dimensions, |embedded| embedded.vector.len());
        let bytes = (self.dimensions * size_of::<f32>()).max(1) as u64;
        let kept = usize::try_from(self.left / bytes).unwrap_or(usize::MAX).min(vectors.len());
        self.is_cut |= kept < vectors.len();
        vectors.truncate(kept);
        self.left -= bytes * kept as u64;
        if vectors.is_empty() {
            return Ok(());
        }
        let attempt = self.attempt;
        match attempt
            .pipeline
            .core
            .catalog
            .set_vectors(attempt.lease(), attempt.held.file.id, vectors, self.model)
            .await?
        {
            true => Ok(()),
            false => Err(StageError::LeaseLost),
        }
    }

    pub async fn finish(self) -> Result<AttemptOutcome, StageError> {
        let kept =
            self.attempt.pipeline.core.catalog.chunk_bytes(self.attempt.held.file.id, self.model).await?;
        let details = json!({
            "vectors": kept.vectors, "dimensions": self.dimensions, "model": self.model, "cut": self.is_cut,
        });
        Ok(AttemptOutcome::Done(StageOutput { details: Some(details.to_string()), text: None }))
    }
}

#[cfg(test)]
mod tests {
    use super::split_point;

    #[test]
    fn a_part_ends_at_a_line_break_or_after_a_complete_character() {
        let text = "Zeile eins\nZeile zwei".as_bytes();
        assert_eq!(&text[..split_point(text)], b"Zeile eins\n");
        for cut in 0..4 {
            let text = "ääää€€€€😀😀😀😀".as_bytes();
            let text = &text[..text.len() - cut];
            let end = split_point(text);
            assert!(end > 0 && std::str::from_utf8(&text[..end]).is_ok(), "{cut}");
        }
    }
}
