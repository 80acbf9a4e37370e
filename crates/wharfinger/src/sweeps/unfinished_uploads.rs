//! Fault: an upload in parts that no waiting file knows of, because a crash came between beginning it and writing
//! its id down, or its file was confirmed or ended without it. Its parts cost storage and nobody sees them.

use std::sync::atomic::Ordering;

use futures::StreamExt as _;
use wharfinger_backends::blobs::{PartStore, Unfinished};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::key::{ObjectKey, UPLOADS};
use wharfinger_lifecycle::state::Status;

use super::Turn;
use crate::app::App;
use crate::store::{self, Standing};
use crate::uploads::VerbError;

/// Where every object is listed to find them.
const LONG_PAUSE_MS: i64 = 86_400_000;

/// Ends all of them, if it is time to look; answers how many.
pub async fn run(app: &App, turn: &Turn) -> Result<u64, VerbError> {
    let Some(parts) = app.blobs.in_parts() else { return Ok(0) };
    let now = app.clock.now();
    if now < app.next_unfinished_at.load(Ordering::Relaxed) {
        return Ok(0);
    }
    if !parts.lists_unfinished_apart() {
        app.next_unfinished_at.store(now.saturating_add(LONG_PAUSE_MS), Ordering::Relaxed);
    }
    let mut uploads = parts.unfinished(UPLOADS);
    let mut ended = 0;
    let mut is_ours = None;
    while let Some(upload) = uploads.next().await {
        let upload = upload?;
        if !turn.goes_on(app) {
            return Ok(ended);
        }
        match is_wanted(app, &upload).await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(error = ?error, "whether an unfinished upload is wanted is not known");
                continue;
            }
        }
        // A catalog that was restored does not know what is alive.
        let ours = match is_ours {
            Some(ours) => ours,
            None => stands(app).await,
        };
        is_ours = Some(ours);
        if !ours {
            tracing::warn!(
                action = "kept",
                "an upload that no file knows of is kept: the store is not surely ours"
            );
            return Ok(ended);
        }
        match end(parts, &upload).await {
            Ok(()) => ended += 1,
            Err(error) => tracing::warn!(error = %error, "an unfinished upload could not be ended"),
        }
    }
    Ok(ended)
}

async fn stands(app: &App) -> bool {
    matches!(store::check(&app.catalog, &app.place()).await, Ok(Standing::Ours))
}

async fn end(
    parts: &dyn PartStore,
    upload: &Unfinished,
) -> Result<(), wharfinger_backends::blobs::BlobError> {
    match ObjectKey::parse(&upload.key) {
        Ok(key) => parts.abandon_one(&key, &upload.upload_id).await,
        Err(_) => Ok(()),
    }
}

/// Whether somebody may still send parts of it, or it is too young to tell.
async fn is_wanted(app: &App, upload: &Unfinished) -> Result<bool, VerbError> {
    let Ok(key) = ObjectKey::parse(&upload.key) else { return Ok(true) };
    // What is young may be about to be written down.
    let grace_ms = app.settings.sweeps.orphan_grace_ms;
    if upload.begun_at.is_some_and(|at| app.blobs.now() < at.saturating_add(grace_ms)) {
        return Ok(true);
    }
    let Some(id) = upload.key.rsplit('/').next().and_then(|part| part.parse::<FileId>().ok()) else {
        return Ok(true);
    };
    match app.catalog.file(id).await?.filter(|file| file.key == key) {
        Some(file) if file.status == Status::Registered => {
            let known = app.catalog.upload_id(&key).await?;
            // Without a time of its own it may be about to be written down.
            Ok(known.as_deref() == Some(upload.upload_id.as_str()) || upload.begun_at.is_none())
        }
        // A cleanup is under way or has been; only what nobody has orders for is ours to end.
        Some(_) | None => Ok(false),
    }
}
