//! Runs three sweeps: orphan blobs, abandoned uploads and old failures. An error in one does not stop the others.

use serde::Serialize;
use utoipa::ToSchema;

use super::{SweepLease, abandoned_uploads, old_failures, orphan_blobs, retention};
use crate::core::VerbError;
use crate::telemetry::metric;
use crate::uploads::Uploads;

pub const NAME: &str = "orphan-cleanup";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OrphanCleanupResult)]
pub struct Outcome {
    pub orphan_blobs: orphan_blobs::Outcome,
    pub abandoned_uploads: abandoned_uploads::Outcome,
    pub old_failures: old_failures::Outcome,
    /// Milliseconds.
    #[schema(example = 4_112)]
    pub execution_time: i64,
    /// Errors that ended one of the three parts early.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["the store does not answer"]))]
    pub errors: Vec<String>,
}

impl Outcome {
    pub(super) fn is_quiet(&self) -> bool {
        let blobs = orphan_blobs::Outcome { listed: self.orphan_blobs.listed, ..Default::default() };
        *self == Outcome { orphan_blobs: blobs, execution_time: self.execution_time, ..Outcome::default() }
    }

    pub(super) fn error_summary(&self) -> Option<String> {
        let mut errors = self.errors.clone();
        errors.extend(self.orphan_blobs.stopped.clone());
        if self.orphan_blobs.errors > 0 {
            let count = self.orphan_blobs.errors;
            errors.push(format!("{count} orphans or parts of the store had errors; see the log"));
        }
        let items = self.abandoned_uploads.errors + self.old_failures.errors;
        if items > 0 {
            errors.push(format!("{items} files could not be checked; see the log"));
        }
        (!errors.is_empty()).then(|| errors.join("; "))
    }

    /// Records an error of one part. Losing the lease ends the whole sweep.
    fn note(&mut self, part: &str, ended: Result<(), VerbError>) -> Result<(), VerbError> {
        match ended {
            Ok(()) => Ok(()),
            Err(VerbError::TakenOver) => Err(VerbError::TakenOver),
            Err(error) => {
                self.errors.push(format!("{part}: {}", error.with_cause()));
                Ok(())
            }
        }
    }
}

pub async fn run(uploads: &Uploads, lease: &SweepLease) -> Result<Outcome, VerbError> {
    let core = &uploads.core;
    let started_at = core.clock.now();
    let mut outcome = Outcome::default();
    let ended = Box::pin(orphan_blobs::run(core, lease)).await.map(|found| outcome.orphan_blobs = found);
    outcome.note("orphan blobs", ended)?;
    let ended = abandoned_uploads::run(uploads, lease, &mut outcome.abandoned_uploads).await;
    outcome.note("abandoned uploads", ended)?;
    let ended = old_failures::run(uploads, lease, &mut outcome.old_failures).await;
    outcome.note("old failures", ended)?;
    outcome.execution_time = core.clock.now() - started_at;
    if !lease.is_dry_run() {
        retention::remove_empty(core, lease).await;
        metric::cleanup_took(outcome.execution_time);
    }
    Ok(outcome)
}
