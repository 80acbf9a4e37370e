//! Finds a batch with all its files, and signs a URL for each unconfirmed file. If less than half of the window is left,
//! the row first gets a later deadline.

use wharfinger_lifecycle::file::{self, Change, File};
use wharfinger_lifecycle::id::BatchId;
use wharfinger_lifecycle::state::Status;

use super::{BatchGrant, files_of, sign, unsigned, visible};
use crate::core::Core;
use crate::core::{Caller, VerbError};
use crate::uploads::STALE_TRIES_MAX;

pub async fn find(core: &Core, caller: &Caller, id: BatchId) -> Result<BatchGrant, VerbError> {
    for _ in 0..STALE_TRIES_MAX {
        let batch = visible(core, caller, id).await?;
        let files = files_of(core, id).await?;
        if batch.status.drops_unconfirmed() {
            return Ok(BatchGrant { batch, files: files.into_iter().map(unsigned).collect() });
        }
        if let Some(files) = extend_deadlines(core, caller, files).await? {
            return Ok(BatchGrant { batch, files: sign(core, files).await? });
        }
    }
    Err(VerbError::busy())
}

/// None: some of the files were changed concurrently.
async fn extend_deadlines(
    core: &Core,
    caller: &Caller,
    mut files: Vec<File>,
) -> Result<Option<Vec<File>>, VerbError> {
    let now = core.clock.now();
    let half = now.saturating_add(core.policy.window_ms / 2);
    let is_short = |file: &&mut File| file.status == Status::Registered && file.url_dead_at < half;
    let mut changes: Vec<Change> = Vec::new();
    for file in files.iter_mut().filter(is_short) {
        let change = file::reissue(file, &core.policy, now)
            .map_err(|refusal| VerbError::Internal(refusal.to_string()))?;
        *file = change.after.clone();
        changes.push(change);
    }
    let wanted = changes.len();
    if wanted == 0 {
        return Ok(Some(files));
    }
    let raised = core.catalog.commit_all(changes, &caller.actor()).await?;
    Ok((raised.len() == wanted).then_some(files))
}
