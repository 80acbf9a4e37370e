//! Fault: a multipart upload in the store that belongs to no registered file. A crash happened before its id was stored, or its
//! file was confirmed or ended without it. Its parts cost storage and are in no listing of objects.

use futures::StreamExt as _;
use wharfinger_catalog::AbortedUpload;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::key::{ObjectKey, UPLOADS};
use wharfinger_lifecycle::state::Status;
use wharfinger_stores::UnfinishedUpload;

use super::{SweepLease, orphan_cleanup};
use crate::core::Core;
use crate::core::VerbError;
use crate::telemetry::metric;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) found: u64,
    pub(super) aborted: u64,
    /// Uploads that could not be checked or aborted.
    pub(super) failed: u64,
    /// Uploads of other programs.
    pub(super) foreign: u64,
}

enum Verdict {
    Wanted,
    Foreign,
    /// With its file, if there is one.
    Unwanted(Option<File>),
}

/// Aborts all unwanted uploads. Only called if the store certainly belongs to this catalog, because a restored catalog does not
/// know newer uploads. Foreign uploads (by their key, or older than our marker) are not aborted.
pub(super) async fn abort_all(
    core: &Core,
    lease: &SweepLease,
    marked_at: UnixMs,
) -> Result<Outcome, VerbError> {
    let mut outcome = Outcome::default();
    let Some(parts) = core.blobs.multipart() else { return Ok(outcome) };
    let mut uploads = parts.list_unfinished(UPLOADS);
    while let Some(upload) = uploads.next().await {
        let upload = upload?;
        if !lease.should_continue(core) {
            return Ok(outcome);
        }
        let Ok(key) = ObjectKey::from_listing(&upload.key) else { continue };
        let file = match classify(core, &key, &upload, marked_at).await {
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
                outcome.aborted += 1;
                metric::orphans_deleted(1);
                let file = file.as_ref().map(|file| file.id);
                let aborted = AbortedUpload { key, file, ordered_by: orphan_cleanup::NAME };
                lease.catalog.log_aborted_upload(aborted, core.clock.now()).await?;
            }
            Err(error) => {
                outcome.failed += 1;
                tracing::warn!(error = %error, "cannot abort an unfinished upload");
            }
        }
    }
    Ok(outcome)
}

async fn classify(
    core: &Core,
    key: &ObjectKey,
    upload: &UnfinishedUpload,
    marked_at: UnixMs,
) -> Result<Verdict, VerbError> {
    // The id of a young upload may not be stored yet.
    let grace_ms = core.settings.sweeps.orphan_grace_ms;
    if upload.started_at.is_some_and(|at| core.blobs.now() < at.saturating_add(grace_ms)) {
        return Ok(Verdict::Wanted);
    }
    if !core.catalog.has_object(key).await? {
        // Without a row, only its key and its age show that it is ours.
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
            // If the store reports no start time, its id may not be stored yet.
            match known.as_deref() == Some(upload.upload_id.as_str()) || upload.started_at.is_none() {
                true => Ok(Verdict::Wanted),
                false => Ok(Verdict::Unwanted(Some(file))),
            }
        }
        // The file has ended or is confirmed, so this upload is not needed.
        file => Ok(Verdict::Unwanted(file)),
    }
}
