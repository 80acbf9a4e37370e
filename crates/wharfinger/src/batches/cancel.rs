//! Calls a batch off: in one transaction nothing is waited for any more. What was confirmed stays; the rest is reclaimed
//! in the background, like every upload whose time has come.

use wharfinger_catalog::{BatchEndOutcome, BatchEnding};
use wharfinger_lifecycle::batch::{BatchStatus, BatchError};
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
                "a batch was called off");
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
