//! The verbs of an upload's life, one per file. Each re-reads, lets the lifecycle decide, and commits once.

pub(crate) mod announce;
pub mod check;
pub mod confirm;
pub mod delete;
pub mod download;
pub mod find;
pub mod init;
pub mod parts;
pub mod receive;
pub mod reissue;
pub mod transfers;

use std::sync::Arc;

use wharfinger_catalog::{Catalog, CatalogError};
use wharfinger_lifecycle::file::{Change, File};

use crate::core::Core;
use crate::core::VerbError;
use crate::quota::Quota;
use crate::telemetry::metric;
use confirm::Examinations;
use receive::IncomingUploads;
use transfers::Transfers;

/// What uploads keep in this process, with what their verbs need.
pub struct Uploads {
    pub core: Arc<Core>,
    pub quota: Arc<Quota>,
    /// Uploads to the local store that are under way here.
    incoming: IncomingUploads,
    /// Objects that are being read for their checksum.
    pub examinations: Arc<Examinations>,
    /// Files of the local store that are sent or received.
    pub transfers: Transfers,
}

impl Uploads {
    pub fn new(core: Arc<Core>, quota: Arc<Quota>) -> Uploads {
        Uploads {
            core,
            quota,
            incoming: IncomingUploads::default(),
            examinations: Arc::default(),
            transfers: Transfers::default(),
        }
    }
}

/// How often a verb reads again after somebody else was faster.
pub(crate) const STALE_TRIES_MAX: u32 = 20;

/// A file whose batch was called off is as good as gone, although nobody may have looked at it yet.
async fn check_batch(core: &Core, file: &File) -> Result<(), VerbError> {
    let Some(id) = file.batch else { return Ok(()) };
    match core.catalog.batch(id).await? {
        Some(batch) if batch.status.is_called_off() => Err(VerbError::BatchGone(batch.status)),
        _ => Ok(()),
    }
}

/// Commits a change and does what follows from it outside the catalog. False: somebody was faster, read again.
async fn commit(uploads: &Uploads, change: Change, actor: &str) -> Result<bool, VerbError> {
    commit_in(uploads, &uploads.core.catalog, change, actor).await
}

/// The same in a catalog of the caller's, which may be fenced.
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
    follow_up(uploads, &done);
    Ok(true)
}

/// What follows outside the catalog from a change that was committed: whoever has work now is told.
fn follow_up(uploads: &Uploads, change: &Change) {
    let core = &uploads.core;
    let refunded = change.refunded_bytes();
    if refunded > 0 {
        metric::quota_refunded(&change.after.tenant, refunded);
        core.wakeups.refund.notify_one();
    }
    if change.starts_stage() {
        core.wakeups.stage.notify_one();
    }
    if change.notice.is_some() {
        core.wakeups.notice.notify_one();
    }
    if !change.steps.is_empty() {
        core.wakeups.archive.notify_one();
    }
    if change.cleanup.is_some() {
        uploads.incoming.stop(change.after.id);
        core.wakeups.cleanup.notify_one();
        core.wakeups.other_processes.notify_one();
    }
}
