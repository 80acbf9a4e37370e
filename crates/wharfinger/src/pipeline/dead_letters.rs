//! Dead letters: failed jobs that are retried only by a redrive.

use serde_json::json;
use wharfinger_catalog::{DeadLetter, RedriveOutcome, Scope};
use wharfinger_lifecycle::id::{FileId, JobId};
use wharfinger_lifecycle::state::Status;

use crate::core::Core;
use crate::core::audit::AuditedAction;
use crate::core::{Caller, Role, VerbError};

/// The name of the dead letter queue in metrics, logs and docs.
pub const NAME: &str = "file-processing-dlq";

/// How often an owner may redrive a file that fails again each time. Each attempt can use as many resources as its limits
/// allow.
const REDRIVES_OF_OWNER_MAX: u32 = 3;

pub async fn list(
    core: &Core,
    scope: &Scope,
    before: Option<JobId>,
    limit: usize,
) -> Result<Vec<DeadLetter>, VerbError> {
    Ok(core.catalog.dead_letters(scope, before, limit).await?)
}

/// Processes a failed file again, starting at the stage that failed. Returns the new status of the file: ready, if none of
/// its stages from there on is configured any more.
pub async fn redrive(core: &Core, caller: &Caller, job: JobId) -> Result<(FileId, Status), VerbError> {
    let letter = core.catalog.dead_letter(&caller.scope(), job).await?.ok_or(VerbError::NotFound)?;
    let now = core.clock.now();
    let redrives_max = (caller.role == Role::User).then_some(REDRIVES_OF_OWNER_MAX);
    let redriven =
        core.catalog.redrive(letter.clone(), &caller.actor(), &core.plan, redrives_max, now).await?;
    let status = match redriven {
        RedriveOutcome::Done(status) => status,
        RedriveOutcome::NotFound => return Err(VerbError::NotFound),
        RedriveOutcome::TooOften => return Err(VerbError::RedriveLimit(REDRIVES_OF_OWNER_MAX)),
    };
    tracing::info!(job = NAME, jobId = %job, fileId = %letter.file, action = "redriven", status = %status,
        "dead letter redriven");
    match status {
        Status::Ready => core.wakeups.notification.notify_one(),
        _ => core.wakeups.stage.notify_one(),
    }
    core.wakeups.archive.notify_one();
    Ok((letter.file, status))
}

/// Deletes a dead letter. Its file stays failed and keeps the reason.
pub async fn discard(core: &Core, caller: &Caller, job: JobId) -> Result<(), VerbError> {
    let letter = core.catalog.dead_letter(&caller.scope(), job).await?.ok_or(VerbError::NotFound)?;
    let now = core.clock.now();
    let file = core.catalog.file(letter.file).await?;
    let action = AuditedAction {
        name: "dead-letter-discarded",
        tenant: file.as_ref().map(|file| &file.tenant),
        subject: letter.file.to_string(),
        detail: json!({ "jobId": job.to_string() }),
    };
    let audited = core.catalog.audited(action.by(caller, now));
    match audited.discard(letter.clone(), &caller.actor(), now).await? {
        true => {
            tracing::info!(job = NAME, jobId = %job, fileId = %letter.file, action = "discarded",
                "dead letter discarded");
            Ok(())
        }
        false => Err(VerbError::NotFound),
    }
}
