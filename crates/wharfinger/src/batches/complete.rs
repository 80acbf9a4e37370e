//! Completes a batch: confirms its uploaded files, and ends the batch if no unconfirmed file is left.

use futures::StreamExt as _;
use wharfinger_catalog::{BatchEndOutcome, BatchEnding};
use wharfinger_lifecycle::batch::{Batch, BatchError, BatchStatus};
use wharfinger_lifecycle::file::{EndReason, File};
use wharfinger_lifecycle::id::BatchId;
use wharfinger_lifecycle::state::Status;

use super::{files_of, visible};
use crate::core::{Caller, FileOutcome, VerbError};
use crate::uploads::Uploads;
use crate::uploads::confirm::confirm;

const CONFIRMS_AT_ONCE: usize = 16;

/// A batch and the outcome of each of its files.
#[derive(Clone, Debug)]
pub struct Completion {
    pub batch: Batch,
    pub files: Vec<FileOutcome>,
}

pub async fn complete(uploads: &Uploads, caller: &Caller, id: BatchId) -> Result<Completion, VerbError> {
    let core = &uploads.core;
    let batch = visible(core, caller, id).await?;
    if batch.status.drops_unconfirmed() {
        return Err(VerbError::BatchGone(batch.status));
    }
    let files: Vec<FileOutcome> = futures::stream::iter(files_of(core, id).await?)
        .map(|file| confirm_one(uploads, caller, file))
        .buffered(CONFIRMS_AT_ONCE)
        .collect()
        .await;
    match core.catalog.end_batch(id, BatchEnding::Completed, &caller.actor(), core.clock.now()).await? {
        BatchEndOutcome::Ended { batch, .. } => {
            core.wakeups.archive.notify_one();
            Ok(Completion { batch, files })
        }
        BatchEndOutcome::Refused { batch, refusal } => match refusal {
            BatchError::Ended(BatchStatus::Completed) => Ok(Completion { batch, files }),
            BatchError::Ended(ended) => Err(VerbError::BatchGone(ended)),
            // If a file was added after the files were read, the next call reports it.
            _ => Err(VerbError::BatchIncomplete(files)),
        },
        BatchEndOutcome::NotFound => Err(VerbError::NotFound),
    }
}

/// Confirms a file that is still registered. The others keep their status.
async fn confirm_one(uploads: &Uploads, caller: &Caller, file: File) -> FileOutcome {
    let (id, status) = (file.id, file.status);
    if status != Status::Registered {
        let problem = (file.ended == Some(EndReason::Reclaimed)).then_some(VerbError::Gone);
        return FileOutcome { id, status, problem };
    }
    match confirm(uploads, caller, id, None).await {
        Ok(status) => FileOutcome { id, status, problem: None },
        // Its owner has deleted it in the meantime.
        Err(VerbError::NotFound) => FileOutcome { id, status: Status::Deleted, problem: None },
        Err(error) => FileOutcome { id, status, problem: Some(error) },
    }
}
