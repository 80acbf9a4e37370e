//! Faults that nobody else finds: bytes that no row answers for, uploads that were abandoned, failures that were
//! forgotten. Each is looked for on its own: an error in one does not keep the others from being done.

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
    /// What kept a scope from being looked at to its end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["the store does not answer"]))]
    pub errors: Vec<String>,
}

impl Outcome {
    pub(super) fn is_quiet(&self) -> bool {
        let blobs = orphan_blobs::Outcome { listed: self.orphan_blobs.listed, ..Default::default() };
        *self == Outcome { orphan_blobs: blobs, execution_time: self.execution_time, ..Outcome::default() }
    }

    pub(super) fn trouble(&self) -> Option<String> {
        let mut troubles = self.errors.clone();
        troubles.extend(self.orphan_blobs.stopped.clone());
        if self.orphan_blobs.errors > 0 {
            let count = self.orphan_blobs.errors;
            troubles.push(format!("{count} orphans or parts of the store met errors, the log says why"));
        }
        let items = self.abandoned_uploads.errors + self.old_failures.errors;
        if items > 0 {
            troubles.push(format!("{items} files could not be looked at, the log says why"));
        }
        (!troubles.is_empty()).then(|| troubles.join("; "))
    }

    /// An error ends its scope, unless the whole sweep is another's now.
    fn note(&mut self, scope: &str, ended: Result<(), VerbError>) -> Result<(), VerbError> {
        match ended {
            Ok(()) => Ok(()),
            Err(VerbError::TakenOver) => Err(VerbError::TakenOver),
            Err(error) => {
                self.errors.push(format!("{scope}: {error:?}"));
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
