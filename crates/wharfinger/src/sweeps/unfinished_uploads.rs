//! Fault: an upload in parts that no waiting file knows of, because a crash came between beginning it and writing
//! its id down, or its file was confirmed or ended without it. Its parts cost storage and nobody sees them.

use futures::StreamExt as _;
use wharfinger_backends::blobs::Unfinished;
use wharfinger_lifecycle::key::{ObjectKey, UPLOADS};
use wharfinger_lifecycle::state::Status;

use super::Turn;
use crate::app::App;
use crate::telemetry::metric;
use crate::uploads::VerbError;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) found: u64,
    pub(super) ended: u64,
    /// Those of which it is not known whether they are wanted, or that could not be ended.
    pub(super) failed: u64,
}

/// Ends all of them. Asked only where the store is surely ours: a catalog that was restored does not know what is
/// alive.
pub(super) async fn end_all(app: &App, turn: &Turn) -> Result<Outcome, VerbError> {
    let mut outcome = Outcome::default();
    let Some(parts) = app.blobs.in_parts() else { return Ok(outcome) };
    let mut uploads = parts.unfinished(UPLOADS);
    while let Some(upload) = uploads.next().await {
        let upload = upload?;
        if !turn.goes_on(app) {
            return Ok(outcome);
        }
        let Ok(key) = ObjectKey::stray(&upload.key) else { continue };
        match is_wanted(app, &key, &upload).await {
            Ok(true) => continue,
            Ok(false) => outcome.found += 1,
            Err(error) => {
                outcome.failed += 1;
                tracing::warn!(error = ?error, "whether an unfinished upload is wanted is not known");
                continue;
            }
        }
        if turn.is_dry_run() {
            continue;
        }
        match parts.abandon_one(&key, &upload.upload_id).await {
            Ok(()) => {
                outcome.ended += 1;
                metric::orphans_deleted(1);
            }
            Err(error) => {
                outcome.failed += 1;
                tracing::warn!(error = %error, "an unfinished upload could not be ended");
            }
        }
    }
    Ok(outcome)
}

/// Whether somebody may still send parts of it, or it is too young to tell.
async fn is_wanted(app: &App, key: &ObjectKey, upload: &Unfinished) -> Result<bool, VerbError> {
    // What is young may be about to be written down.
    let grace_ms = app.settings.sweeps.orphan_grace_ms;
    if upload.begun_at.is_some_and(|at| app.blobs.now() < at.saturating_add(grace_ms)) {
        return Ok(true);
    }
    // The row comes first: whatever has none is nobody's.
    let Some(id) = key.file() else { return Ok(false) };
    match app.catalog.file(id).await?.filter(|file| file.key == *key) {
        Some(file) if file.status == Status::Registered => {
            let known = app.catalog.upload_id(key).await?;
            // Without a time of its own it may be about to be written down.
            Ok(known.as_deref() == Some(upload.upload_id.as_str()) || upload.begun_at.is_none())
        }
        // A cleanup is under way or has been; only what nobody has orders for is ours to end.
        Some(_) | None => Ok(false),
    }
}
