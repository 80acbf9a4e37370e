//! The operations on uploads, one per file. An operation that changes a file reads its row, lets the lifecycle crate
//! decide, and commits. If the row has changed since, it starts again.

pub mod check;
pub mod confirm;
mod content;
pub mod delete;
pub mod download;
pub mod find;
pub mod init;
pub mod parts;
pub mod receive;
pub mod reissue;
pub mod release;
pub mod transfers;
pub(crate) mod validate;

use std::sync::Arc;

use wharfinger_catalog::{Catalog, CatalogError};
use wharfinger_lifecycle::file::{Change, File};

use crate::core::Core;
use crate::core::VerbError;
use crate::quota::Quota;
use crate::rules::Rules;
use confirm::ChecksumReader;
use receive::IncomingUploads;
use transfers::Transfers;

/// The state of uploads in this process, and what their operations need.
pub struct Uploads {
    pub core: Arc<Core>,
    pub quota: Arc<Quota>,
    pub rules: Arc<Rules>,
    /// Uploads to the local store that this process is receiving.
    incoming: IncomingUploads,
    /// Computes the checksums of objects.
    pub checksums: Arc<ChecksumReader>,
    /// Files of the local store that are being sent or received.
    pub transfers: Transfers,
}

impl Uploads {
    pub fn new(core: Arc<Core>, quota: Arc<Quota>, rules: Arc<Rules>) -> Uploads {
        Uploads {
            core,
            quota,
            rules,
            incoming: IncomingUploads::default(),
            checksums: Arc::default(),
            transfers: Transfers::default(),
        }
    }
}

/// How often an operation reads the row again after a concurrent change.
pub(crate) const STALE_TRIES_MAX: u32 = 20;

/// A file of a cancelled or expired batch counts as gone, even if it has not been reclaimed yet.
async fn check_batch(core: &Core, file: &File) -> Result<(), VerbError> {
    let Some(id) = file.batch else { return Ok(()) };
    match core.catalog.batch(id).await? {
        Some(batch) if batch.status.drops_unconfirmed() => Err(VerbError::BatchGone(batch.status)),
        _ => Ok(()),
    }
}

/// Commits a change and then runs [`after_commit`]. False: the row was changed concurrently, read it again.
async fn commit(uploads: &Uploads, change: Change, actor: &str) -> Result<bool, VerbError> {
    commit_in(uploads, &uploads.core.catalog, change, actor).await
}

/// The same in the given catalog, which may be fenced.
pub(crate) async fn commit_in(
    uploads: &Uploads,
    catalog: &Catalog,
    change: Change,
    actor: &str,
) -> Result<bool, VerbError> {
    let done = change.clone();
    match catalog.commit(change, actor).await {
        Ok(()) => {}
        Err(CatalogError::Stale) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    after_commit(uploads, &done);
    Ok(true)
}

/// Counts a committed change in the metrics and wakes the loops that have work now.
fn after_commit(uploads: &Uploads, change: &Change) {
    let core = &uploads.core;
    if change.refunded_bytes() > 0 {
        core.wakeups.refund.notify_one();
    }
    if change.starts_stage() {
        core.wakeups.stage.notify_one();
    }
    if change.notification.is_some() {
        core.wakeups.notification.notify_one();
    }
    if !change.history.is_empty() {
        core.wakeups.archive.notify_one();
    }
    if change.cleanup.is_some() {
        uploads.incoming.stop(change.after.id);
        core.wakeups.cleanup.notify_one();
        core.wakeups.other_processes.notify_one();
    }
}
