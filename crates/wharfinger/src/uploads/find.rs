//! Finds files that the caller may see. A file of another user is "not found", not "forbidden".

use wharfinger_catalog::{ChunkRow, HistoryLine, Scope};
use wharfinger_lifecycle::file::{EndReason, File};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;

use crate::core::Core;
use crate::core::{Caller, VerbError};

/// A live file. A reclaimed one is `Gone`, a deleted or unknown one is `NotFound`.
fn visible(caller: &Caller, file: Option<File>) -> Result<File, VerbError> {
    let file =
        file.filter(|file| caller.scope().covers(&file.tenant, &file.user)).ok_or(VerbError::NotFound)?;
    match file.ended {
        Some(EndReason::Deleted) => Err(VerbError::NotFound),
        Some(EndReason::Reclaimed) => Err(VerbError::Gone),
        None => Ok(file),
    }
}

pub async fn find(core: &Core, caller: &Caller, id: FileId) -> Result<File, VerbError> {
    visible(caller, core.catalog.file(id).await?)
}

pub struct Page {
    pub files: Vec<File>,
    pub next: Option<FileId>,
}

pub async fn list(
    core: &Core,
    scope: &Scope,
    before: Option<FileId>,
    limit: usize,
) -> Result<Page, VerbError> {
    let mut files = core.catalog.files(scope, before, limit + 1).await?;
    let next = (files.len() > limit).then(|| {
        files.truncate(limit);
        files.last().map(|file| file.id)
    });
    Ok(Page { files, next: next.flatten() })
}

/// The chunks of a file's text, starting at an ordinal. Empty until the chunk stage has finished.
pub async fn chunks(
    core: &Core,
    caller: &Caller,
    id: FileId,
    from: Option<u64>,
    limit: usize,
) -> Result<Vec<ChunkRow>, VerbError> {
    if find(core, caller, id).await?.status == Status::Quarantined {
        return Ok(Vec::new());
    }
    let outputs = core.catalog.stage_outputs(&[id]).await?;
    if !outputs.iter().any(|(_, stage, _)| stage == Stage::Chunk.as_str()) {
        return Ok(Vec::new());
    }
    Ok(core.catalog.chunks(id, from.unwrap_or(0), limit).await?)
}

/// Whether the file's text was cut because it is longer than allowed.
pub async fn is_text_cut(core: &Core, id: FileId) -> Result<bool, VerbError> {
    let outputs = core.catalog.stage_outputs(&[id]).await?;
    let is_cut = |said: &str| {
        let said: serde_json::Value = serde_json::from_str(said).unwrap_or_default();
        said["cut"] == serde_json::Value::Bool(true)
    };
    Ok(outputs.iter().any(|(_, _, said)| is_cut(said)))
}

/// The history of a file. It can still be read for a reclaimed file, to show why it was reclaimed.
pub async fn history(core: &Core, caller: &Caller, id: FileId) -> Result<Vec<HistoryLine>, VerbError> {
    match find(core, caller, id).await {
        Ok(_) | Err(VerbError::Gone) => Ok(core.catalog.history(id).await?),
        Err(error) => Err(error),
    }
}
