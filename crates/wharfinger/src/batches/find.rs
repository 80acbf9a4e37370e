//! Finds a batch: every file as it stands, with a URL for those that wait. Where a URL has less than half of its window
//! left, the row learns of a later deadline first.

use wharfinger_lifecycle::batch::Batch;
use wharfinger_lifecycle::file::{self, Change, File};
use wharfinger_lifecycle::id::BatchId;
use wharfinger_lifecycle::state::Status;

use super::{BatchGrant, files_of, sign, unsigned, visible};
use crate::app::App;
use crate::core::{Caller, VerbError};
use crate::uploads::STALE_TRIES_MAX;

pub async fn find(app: &App, caller: &Caller, id: BatchId) -> Result<BatchGrant, VerbError> {
    for _ in 0..STALE_TRIES_MAX {
        let batch = visible(app, caller, id).await?;
        let files = files_of(app, id).await?;
        if batch.status.is_called_off() {
            return Ok(BatchGrant { batch, files: files.into_iter().map(unsigned).collect() });
        }
        if let Some(files) = with_time_left(app, files).await? {
            return signed(app, batch, files).await;
        }
    }
    Err(VerbError::busy())
}

async fn signed(app: &App, batch: Batch, files: Vec<File>) -> Result<BatchGrant, VerbError> {
    Ok(BatchGrant { batch, files: sign(app, files).await? })
}

/// None: somebody changed some of them meanwhile.
async fn with_time_left(app: &App, mut files: Vec<File>) -> Result<Option<Vec<File>>, VerbError> {
    let now = app.clock.now();
    let half = now.saturating_add(app.policy.window_ms / 2);
    let is_short = |file: &&mut File| file.status == Status::Registered && file.url_dead_at < half;
    let mut changes: Vec<Change> = Vec::new();
    for file in files.iter_mut().filter(is_short) {
        let change = file::reissue(file, &app.policy, now)
            .map_err(|refusal| VerbError::Internal(refusal.to_string()))?;
        *file = change.after.clone();
        changes.push(change);
    }
    let wanted = changes.len();
    if wanted == 0 {
        return Ok(Some(files));
    }
    let raised = app.catalog.raise_urls(changes).await?;
    Ok((raised.len() == wanted).then_some(files))
}
