//! Limits on the text, chunks and vectors of a file. They depend on its size, and on the number of files and the quota
//! of its tenant.

use wharfinger_lifecycle::derived::DerivedPolicy;
use wharfinger_lifecycle::stage::Stage;

use super::{Attempt, StageError};

/// The average length of a token.
const BYTES_PER_TOKEN: u64 = 4;

/// The limit for text, chunks and vectors together.
async fn bytes_max(attempt: &Attempt<'_>) -> Result<u64, StageError> {
    let (pipeline, file) = (attempt.pipeline, &attempt.held.file);
    let core = &pipeline.core;
    let files = pipeline.quota.file_counts.files(core, &file.tenant).await?;
    let quota = core.catalog.quota(&file.tenant, core.settings.default_quota_bytes).await?;
    Ok(core.settings.pipeline.derived.bytes_max_for(file.size, files, quota.limit_bytes))
}

/// How much text may be stored, so that its chunks still fit within the limit.
pub(super) async fn text_bytes_max(attempt: &Attempt<'_>) -> Result<u64, StageError> {
    let settings = &attempt.pipeline.core.settings.pipeline;
    let unit_bytes = if settings.chunk_by_tokens { BYTES_PER_TOKEN } else { 1 };
    let chunk_bytes = settings.chunk_size as u64 * unit_bytes;
    let new_bytes = (settings.chunk_size - settings.chunk_overlap).max(1) as u64 * unit_bytes;
    let beside_permille = match attempt.held.file.stages().contains(&Stage::Chunk) {
        true => stored_bytes(chunk_bytes + vector_bytes(attempt)) * 1_000 / new_bytes,
        false => 0,
    };
    Ok(DerivedPolicy::text_bytes_max(bytes_max(attempt).await?, beside_permille))
}

/// How many bytes are left for chunks after the text.
pub(super) async fn chunk_bytes_max(attempt: &Attempt<'_>) -> Result<u64, StageError> {
    let parts = attempt.pipeline.core.catalog.text_parts(attempt.held.file.id).await?;
    let text: u64 = parts.iter().map(|part| part.bytes).sum();
    Ok(bytes_max(attempt).await?.saturating_sub(text))
}

/// How many bytes are left for vectors after the text, its chunks and the stored vectors.
pub(super) async fn vector_bytes_left(attempt: &Attempt<'_>, model: &str) -> Result<u64, StageError> {
    let kept = attempt.pipeline.core.catalog.chunk_bytes(attempt.held.file.id, model).await?;
    Ok(chunk_bytes_max(attempt).await?.saturating_sub(kept.text + kept.vector_bytes))
}

/// The size of a chunk's vector, as far as it is known in advance.
pub(super) fn vector_bytes(attempt: &Attempt<'_>) -> u64 {
    let pipeline = attempt.pipeline;
    let dimensions = match pipeline.core.settings.pipeline.builtin.contains(&Stage::Embed) {
        true => pipeline.embedder.dimensions(),
        // Unknown for outside workers, and their vectors must not reduce how much text is stored. Vectors beyond the limit
        // are dropped.
        false => 0,
    };
    let has_vector = attempt.held.file.stages().contains(&Stage::Embed);
    if has_vector { (dimensions * size_of::<f32>()) as u64 } else { 0 }
}

/// The space that a row takes in the database. Rows share a page if they fit into it.
pub(super) fn stored_bytes(row_bytes: u64) -> u64 {
    const PAGE_BYTES: u64 = 4_096;
    const USABLE_BYTES: u64 = 4_000;
    const KEYS_BYTES: u64 = 80;
    let row = row_bytes + KEYS_BYTES;
    match USABLE_BYTES / row {
        0 => row.div_ceil(PAGE_BYTES) * PAGE_BYTES,
        rows_in_page => PAGE_BYTES / rows_in_page,
    }
}

#[cfg(test)]
mod tests {
    use super::stored_bytes;

    #[test]
    fn rows_share_a_page_if_they_fit() {
        assert_eq!(stored_bytes(20), 102);
        assert_eq!(stored_bytes(1_900), 2_048);
        assert_eq!(stored_bytes(2_224), 4_096, "one in a page");
        assert_eq!(stored_bytes(5_000), 8_192);
    }
}
