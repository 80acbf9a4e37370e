//! Cancels a batch. One transaction ends the batch and makes the check of its unconfirmed files due. They are then
//! reclaimed in the background. Confirmed files stay.

use wharfinger_catalog::{BatchEndOutcome, BatchEnding};
use wharfinger_lifecycle::batch::{BatchError, BatchStatus};
use wharfinger_lifecycle::id::BatchId;

use super::{BatchGrant, files_of, unsigned, visible};
use crate::core::Core;
use crate::core::{Caller, VerbError};

pub async fn cancel(core: &Core, caller: &Caller, id: BatchId) -> Result<BatchGrant, VerbError> {
    visible(core, caller, id).await?;
    let now = core.clock.now();
    let batch = match core.catalog.end_batch(id, BatchEnding::Cancelled, &caller.actor(), now).await? {
        BatchEndOutcome::Ended { batch, unconfirmed } => {
            tracing::info!(batchId = %id, tenant = %batch.tenant, action = "cancelled", files = unconfirmed,
                "batch cancelled");
            core.wakeups.check.wake_for(now);
            core.wakeups.archive.notify_one();
            batch
        }
        BatchEndOutcome::Refused { batch, refusal: BatchError::Ended(BatchStatus::Cancelled) } => batch,
        BatchEndOutcome::Refused { refusal, .. } => return Err(VerbError::BatchClosed(refusal)),
        BatchEndOutcome::NotFound => return Err(VerbError::NotFound),
    };
    let files = files_of(core, id).await?.into_iter().map(unsigned).collect();
    Ok(BatchGrant { batch, files })
}
