//! Looks at a file whose time has come: an upload that nobody confirmed is reclaimed or rescued, an ended file
//! whose URLs have died is refunded, a tombstone that nobody needs is forgotten. Takes no input but the row.

use std::sync::atomic::Ordering;

use wharfinger_backends::blobs::BlobError;
use wharfinger_backends::catalog::Catalog;
use wharfinger_lifecycle::batch::BatchStatus;
use wharfinger_lifecycle::file::{self, Change, File, Look};
use wharfinger_lifecycle::id::FileId;

use super::{STALE_TRIES_MAX, VerbError, commit_in, confirm};
use crate::app::App;
use crate::config::WindowPolicy;
use crate::telemetry::metric;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// Somebody was faster, or it is not time.
    Nothing,
    Reclaimed,
    Rescued,
    Refunded,
    Forgotten,
    /// The store could not be asked: later.
    Deferred,
}

/// How long a look waits that could not find out.
const DEFER_MS: i64 = 60_000;
/// How long an upload waits while the store and the catalog do not agree.
const DEFER_UNSURE_MS: i64 = 600_000;
/// How long a tombstone waits whose bytes are not gone yet.
const DEFER_FORGET_MS: i64 = 86_400_000;

/// Writes to the given catalog, which is fenced where a sweep looks.
pub async fn look(app: &App, catalog: &Catalog, id: FileId, actor: &str) -> Result<Looked, VerbError> {
    for _ in 0..STALE_TRIES_MAX {
        let Some(read) = catalog.file(id).await? else { return Ok(Looked::Nothing) };
        let (change, looked) = match file::look(&read, &app.policy, app.clock.now()) {
            Look::NotYet => return Ok(Looked::Nothing),
            Look::Refund(change) => (*change, Looked::Refunded),
            Look::Unconfirmed => unconfirmed(app, catalog, &read).await?,
            Look::Forget => match catalog.forget(read.clone()).await? {
                true => return Ok(Looked::Forgotten),
                false => (put_off_forgetting(app, &read), Looked::Deferred),
            },
        };
        if commit_in(app, catalog, change, actor).await? {
            if looked == Looked::Reclaimed {
                metric::orphan_cleaned(&read.tenant);
                tracing::info!(job = actor, fileId = %id, tenant = %read.tenant, action = "reclaimed",
                    bytes = read.size, "an upload was not confirmed in time");
            }
            return Ok(looked);
        }
    }
    Err(VerbError::busy())
}

/// What a look would come to, without changing anything. An upload that would be rescued is not examined: whether its
/// bytes are right is not known before they are.
pub async fn foresee(app: &App, id: FileId) -> Result<Looked, VerbError> {
    let Some(read) = app.catalog.file(id).await? else { return Ok(Looked::Nothing) };
    Ok(match file::look(&read, &app.policy, app.clock.now()) {
        Look::NotYet => Looked::Nothing,
        Look::Refund(_) => Looked::Refunded,
        Look::Forget => Looked::Forgotten,
        Look::Unconfirmed if !app.store_is_ours.load(Ordering::Relaxed) => Looked::Deferred,
        Look::Unconfirmed if app.settings.window_policy == WindowPolicy::Rescue => {
            match app.blobs.head(&read.key, None).await {
                Ok(meta) if meta.size == read.size => Looked::Rescued,
                Ok(_) | Err(BlobError::NotFound) => Looked::Reclaimed,
                Err(_) => Looked::Deferred,
            }
        }
        Look::Unconfirmed => Looked::Reclaimed,
    })
}

async fn unconfirmed(app: &App, catalog: &Catalog, read: &File) -> Result<(Change, Looked), VerbError> {
    // A catalog from a backup may take for unconfirmed what was confirmed since.
    if !app.store_is_ours.load(Ordering::Relaxed) {
        let now = app.clock.now();
        return Ok((file::defer(read, now.saturating_add(DEFER_UNSURE_MS), now), Looked::Deferred));
    }
    let batch = match read.batch {
        Some(id) => catalog.batch(id).await?.map(|batch| batch.status),
        None => None,
    };
    // Whoever cancels a batch wants none of what is not confirmed.
    if app.settings.window_policy == WindowPolicy::Rescue && batch != Some(BatchStatus::Cancelled) {
        match confirm::examine(app, read, None, "rescued: its client did not come back").await {
            Ok(change) => return Ok((change, Looked::Rescued)),
            Err(VerbError::Unavailable(why)) => {
                tracing::warn!(fileId = %read.id, error = %why, action = "deferred",
                    "the store could not be asked");
                let now = app.clock.now();
                return Ok((file::defer(read, now.saturating_add(DEFER_MS), now), Looked::Deferred));
            }
            Err(
                VerbError::ObjectMissing
                | VerbError::PartsMissing { .. }
                | VerbError::SizeMismatch { .. }
                | VerbError::ChecksumMismatch,
            ) => {}
            Err(error) => return Err(error),
        }
    }
    let reason = match batch {
        Some(BatchStatus::Cancelled) => "its batch was cancelled",
        Some(BatchStatus::Active | BatchStatus::Expired | BatchStatus::Completed) => "its batch has expired",
        None => "not confirmed in its window",
    };
    let change = file::reclaim(read, reason, &app.policy, app.clock.now())
        .map_err(|refusal| VerbError::Internal(refusal.to_string()))?;
    Ok((change, Looked::Reclaimed))
}

/// Its bytes are still waited for: the row says what they belonged to, so it stays.
fn put_off_forgetting(app: &App, tombstone: &File) -> Change {
    let now = app.clock.now();
    file::defer(tombstone, now.saturating_add(DEFER_FORGET_MS), now)
}
