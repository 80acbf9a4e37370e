//! Releases a quarantined file after a false alarm. If its object was changed, the store must have the confirmed bytes again.

use serde_json::json;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::quarantine::{QuarantineCause, ReleaseRefusal, release as decide};
use wharfinger_lifecycle::state::Status;

use super::download::confirmed_bytes;
use super::{STALE_TRIES_MAX, commit_in, find};
use crate::core::audit::AuditedAction;
use crate::core::{Caller, VerbError};
use crate::uploads::Uploads;

/// Returns the new status of the file. A repeated call is refused, because the file is not quarantined any more.
pub async fn release(
    uploads: &Uploads,
    caller: &Caller,
    id: FileId,
    reason: &str,
) -> Result<Status, VerbError> {
    let core = &uploads.core;
    for _ in 0..STALE_TRIES_MAX {
        let read = find::find(core, caller, id).await?;
        let proven = match (read.quarantine, &read.pin) {
            (Some(QuarantineCause::Changed), Some(pin)) => confirmed_bytes(uploads, &read, pin).await?,
            _ => None,
        };
        let change = decide(&read, reason, proven, &core.plan, core.clock.now());
        let change = change.map_err(|refusal| match refusal {
            ReleaseRefusal::NotQuarantined(status) => VerbError::NotQuarantined(status),
            ReleaseRefusal::Unproven => VerbError::ObjectChanged,
        })?;
        let (status, stage) = (change.after.status, change.after.stage);
        let action = AuditedAction {
            name: "file-released",
            tenant: Some(&read.tenant),
            subject: id.to_string(),
            detail: json!({ "reason": reason, "error": read.error }),
        };
        let audited = core.catalog.audited(action.by(caller, core.clock.now()));
        if commit_in(uploads, &audited, change, &caller.actor()).await? {
            tracing::warn!(fileId = %id, fileName = read.name, tenant = %read.tenant, by = %caller.user, reason,
                action = "released", status = %status, stage = stage.map(|stage| stage.as_str()),
                "quarantined file released");
            return Ok(status);
        }
    }
    Err(VerbError::busy())
}
