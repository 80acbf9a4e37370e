//! The verbs of an upload's life, one per file. Each re-reads, lets the lifecycle decide, and commits once.

pub(crate) mod announce;
pub mod confirm;
pub mod delete;
pub mod download;
pub mod find;
pub mod init;
pub mod land;
pub mod look;
pub mod parts;
pub mod reissue;

use wharfinger_catalog::{Catalog, CatalogError};
use wharfinger_lifecycle::file::{Change, File};

use crate::app::App;
use crate::core::VerbError;
use crate::telemetry::metric;

/// How often a verb reads again after somebody else was faster.
pub(crate) const STALE_TRIES_MAX: u32 = 20;

/// A file whose batch was called off is as good as gone, although nobody may have looked at it yet.
async fn check_batch(app: &App, file: &File) -> Result<(), VerbError> {
    let Some(id) = file.batch else { return Ok(()) };
    match app.catalog.batch(id).await? {
        Some(batch) if batch.status.is_called_off() => Err(VerbError::BatchGone(batch.status)),
        _ => Ok(()),
    }
}

/// Commits a change and does what follows from it outside the catalog. False: somebody was faster, read again.
async fn commit(app: &App, change: Change, actor: &str) -> Result<bool, VerbError> {
    commit_in(app, &app.catalog, change, actor).await
}

/// The same in a catalog of the caller's, which may be fenced.
pub(crate) async fn commit_in(
    app: &App,
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
    follow_up(app, &done);
    Ok(true)
}

/// What follows outside the catalog from a change that was committed: whoever has work now is told.
fn follow_up(app: &App, change: &Change) {
    let refunded = change.refunded_bytes();
    if refunded > 0 {
        metric::quota_refunded(&change.after.tenant, refunded);
        app.outbox_bell.notify_one();
    }
    if change.enqueues.is_some() {
        app.pipeline.bell.notify_one();
    }
    if change.notice.is_some() {
        app.notice_bell.notify_one();
    }
    if !change.steps.is_empty() {
        app.archive_bell.notify_one();
    }
    if change.cleanup.is_some() {
        app.landings.stop(change.after.id);
        app.cleanup_bell.notify_one();
        app.wake_bell.notify_one();
    }
}
