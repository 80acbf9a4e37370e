//! Calls a batch off: in one transaction nothing is waited for any more. What was confirmed stays; the rest is reclaimed
//! in the background, like every upload whose time has come.

use wharfinger_catalog::{BatchEnd, BatchEnding};
use wharfinger_lifecycle::batch::{BatchStatus, Refusal};
use wharfinger_lifecycle::id::BatchId;

use super::{BatchGrant, files_of, unsigned, visible};
use crate::app::App;
use crate::core::{Caller, VerbError};

pub async fn cancel(app: &App, caller: &Caller, id: BatchId) -> Result<BatchGrant, VerbError> {
    visible(app, caller, id).await?;
    let now = app.clock.now();
    let batch = match app.catalog.end_batch(id, BatchEnding::Cancelled, &caller.actor(), now).await? {
        BatchEnd::Ended { batch, called_off } => {
            tracing::info!(batchId = %id, tenant = %batch.tenant, action = "cancelled", files = called_off,
                "a batch was called off");
            app.check_bell.ring_for(now);
            app.archive_bell.notify_one();
            batch
        }
        BatchEnd::Refused { batch, refusal: Refusal::Ended(BatchStatus::Cancelled) } => batch,
        BatchEnd::Refused { refusal, .. } => return Err(VerbError::BatchClosed(refusal)),
        BatchEnd::NotFound => return Err(VerbError::NotFound),
    };
    let files = files_of(app, id).await?.into_iter().map(unsigned).collect();
    Ok(BatchGrant { batch, files })
}
