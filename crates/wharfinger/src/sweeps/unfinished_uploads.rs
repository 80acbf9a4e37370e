//! Fault: an upload in parts that no waiting file knows of, because a crash came between beginning it and writing
//! its id down, or its file was confirmed or ended without it. Its parts cost storage and nobody sees them.

use futures::StreamExt as _;
use wharfinger_catalog::AbortedUpload;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::key::{ObjectKey, UPLOADS};
use wharfinger_lifecycle::state::Status;
use wharfinger_stores::UnfinishedUpload;

use super::SweepLease;
use crate::core::Core;
use crate::core::VerbError;
use crate::telemetry::metric;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) found: u64,
    pub(super) ended: u64,
    /// Those of which it is not known whether they are wanted, or that could not be ended.
    pub(super) failed: u64,
    /// Those of others.
    pub(super) foreign: u64,
}

enum Verdict {
    Wanted,
    Foreign,
    /// Its file, if there is one.
    Unwanted(Option<File>),
}

/// Ends all of them. Asked only where the store is surely ours: a catalog that was restored does not know what is
/// alive. Uploads of others, by their key or because they are older than our mark, are left alone.
pub(super) async fn end_all(
    core: &Core,
    lease: &SweepLease,
    marked_at: UnixMs,
) -> Result<Outcome, VerbError> {
    let mut outcome = Outcome::default();
    let Some(parts) = core.blobs.multipart() else { return Ok(outcome) };
    let mut uploads = parts.list_unfinished(UPLOADS);
    while let Some(upload) = uploads.next().await {
        let upload = upload?;
        if !lease.goes_on(core) {
            return Ok(outcome);
        }
        let Ok(key) = ObjectKey::from_listing(&upload.key) else { continue };
        let file = match judge(core, &key, &upload, marked_at).await {
            Ok(Verdict::Wanted) => continue,
            Ok(Verdict::Foreign) => {
                outcome.foreign += 1;
                continue;
            }
            Ok(Verdict::Unwanted(file)) => {
                outcome.found += 1;
                file
            }
            Err(error) => {
                outcome.failed += 1;
                tracing::warn!(error = %error.with_cause(), "cannot tell whether an unfinished upload is needed");
                continue;
            }
        };
        if lease.is_dry_run() {
            continue;
        }
        match parts.abort(&key, &upload.upload_id).await {
            Ok(()) => {
                outcome.ended += 1;
                metric::orphans_deleted(1);
                let aborted = AbortedUpload { key, file: file.as_ref().map(|file| file.id) };
                lease.catalog.log_aborted_upload(aborted, core.clock.now()).await?;
            }
            Err(error) => {
                outcome.failed += 1;
                tracing::warn!(error = %error, "an unfinished upload could not be ended");
            }
        }
    }
    Ok(outcome)
}

async fn judge(
    core: &Core,
    key: &ObjectKey,
    upload: &UnfinishedUpload,
    marked_at: UnixMs,
) -> Result<Verdict, VerbError> {
    // What is young may be about to be written down.
    let grace_ms = core.settings.sweeps.orphan_grace_ms;
    if upload.started_at.is_some_and(|at| core.blobs.now() < at.saturating_add(grace_ms)) {
        return Ok(Verdict::Wanted);
    }
    if !core.catalog.has_object(key).await? {
        // Without a row, only its name and its age can say that it is ours.
        let is_ours =
            ObjectKey::has_own_format(key.as_str()) && upload.started_at.is_some_and(|at| at >= marked_at);
        return Ok(if is_ours { Verdict::Unwanted(None) } else { Verdict::Foreign });
    }
    let file = match key.file() {
        Some(id) => core.catalog.file(id).await?.filter(|file| file.key == *key),
        None => None,
    };
    match file {
        Some(file) if file.status == Status::Registered => {
            let known = core.catalog.upload_id(key).await?;
            // Without a time of its own it may be about to be written down.
            match known.as_deref() == Some(upload.upload_id.as_str()) || upload.started_at.is_none() {
                true => Ok(Verdict::Wanted),
                false => Ok(Verdict::Unwanted(Some(file))),
            }
        }
        // A cleanup is under way or has been; only what has no cleanup is ours to end.
        file => Ok(Verdict::Unwanted(file)),
    }
}
