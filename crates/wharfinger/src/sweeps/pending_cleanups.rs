//! Fault: bytes of an ended file that are still in the store. Deletes them in bulk and reads the result for each key. A
//! cleanup is removed only when the store has confirmed that its bytes are deleted.

use futures::StreamExt as _;
use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_catalog::{CatalogError, ClaimedCleanup, CleanupOutcome, Scope};
use wharfinger_lifecycle::retry::Backoff;
use wharfinger_stores::BlobError;

use super::SweepLease;
use crate::core::Core;
use crate::core::VerbError;
use crate::telemetry::metric;

pub const NAME: &str = "pending-cleanups";

/// Short, because the batch of a dead process waits this long, and deleting twice is harmless.
const LEASE_MS: i64 = 60_000;
/// Few enough that a batch usually ends within the lease, even if each cleanup needs separate calls.
const BATCH_MAX: usize = 250;
const ABORTS_AT_ONCE: usize = 16;
const REFUSED: Backoff = Backoff { base_ms: 30_000, cap_ms: 3_600_000 };
const STORE_DOWN: Backoff = Backoff { base_ms: 10_000, cap_ms: 10_000 };

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = PendingCleanupsResult)]
pub struct Outcome {
    /// In a dry run: the number of due cleanups.
    #[schema(example = 7)]
    pub attempted: u64,
    #[schema(example = 7)]
    pub done: u64,
    #[schema(example = 0)]
    pub failed: u64,
    #[schema(example = 0)]
    pub exhausted: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Outcome) {
        self.attempted += other.attempted;
        self.done += other.done;
        self.failed += other.failed;
        self.exhausted += other.exhausted;
    }
}

/// Runs the due cleanups of a scope.
pub async fn run(core: &Core, lease: &SweepLease, scope: &Scope) -> Result<Outcome, VerbError> {
    if lease.is_dry_run() {
        let attempted = core.catalog.due_cleanups(core.clock.now()).await?;
        return Ok(Outcome { attempted, ..Outcome::default() });
    }
    let mut outcome = Outcome::default();
    let batch_max = core.blobs.capabilities().delete_batch_max.min(BATCH_MAX);
    loop {
        if !lease.should_continue(core) {
            return Ok(outcome);
        }
        let claimed = lease.catalog.claim_cleanups(scope, core.clock.now(), batch_max, LEASE_MS).await?;
        if claimed.is_empty() {
            return Ok(outcome);
        }
        // Taken before the deletes: an object that is uploaded after this moment may not be covered by them.
        let deleted_at = core.clock.now();
        let answers = delete(core, &claimed).await;
        let attempted = claimed.len() as u64;
        // One object that cannot be deleted does not mean that the store is down.
        let unsure = answers.iter().any(|answer| matches!(answer, Err(BlobError::Unavailable(_))));
        let store_down = unsure && core.blobs.check().await.is_err();
        let now = core.clock.now();
        let outcomes: Vec<_> = claimed
            .into_iter()
            .zip(answers)
            .map(|(cleanup, answer)| cleanup_outcome(cleanup, answer, store_down, now))
            .collect();
        let is_deleted = |(_, outcome): &&(_, CleanupOutcome)| *outcome == CleanupOutcome::Deleted;
        let about = |(cleanup, _): &(ClaimedCleanup, _)| {
            (cleanup.key.clone(), cleanup.tenant.clone(), cleanup.reason.clone())
        };
        let deleted: Vec<_> = outcomes.iter().filter(is_deleted).map(about).collect();
        let settled = lease.catalog.record_cleanup_outcomes(outcomes, deleted_at).await?;
        for (key, tenant, reason) in deleted {
            tracing::info!(job = NAME, blobPath = %key, tenant = %tenant.as_ref().map_or("", |tenant| tenant.as_str()),
                fileId = key.as_str().rsplit('/').next(), reason, action = "deleted", "object deleted");
        }
        outcome.attempted += attempted;
        outcome.done += settled.done;
        outcome.failed += settled.failed;
        outcome.exhausted += settled.exhausted;
        metric::orphans_deleted(settled.orphans);
    }
}

/// Aborts unfinished uploads, then deletes the objects. Parts that are sent later are rejected by the store.
async fn delete(core: &Core, claimed: &[ClaimedCleanup]) -> Vec<Result<(), BlobError>> {
    let keys: Vec<_> = claimed.iter().map(|cleanup| cleanup.key.clone()).collect();
    let answers: Vec<Result<(), BlobError>> = futures::stream::iter(claimed.to_vec())
        .map(|cleanup| abort_uploads(core, cleanup))
        .buffered(ABORTS_AT_ONCE)
        .collect()
        .await;
    let deleted = core.blobs.delete_many(&keys).await;
    answers.into_iter().zip(deleted).map(|(aborted, deleted)| aborted.and(deleted)).collect()
}

/// Aborts all uploads under the key, and also the one whose id is stored. The store may no longer list it although a late
/// part has survived the first abort.
async fn abort_uploads(core: &Core, cleanup: ClaimedCleanup) -> Result<(), BlobError> {
    let Some(parts) = core.blobs.multipart().filter(|_| cleanup.in_parts) else { return Ok(()) };
    let unknown = |error: CatalogError| BlobError::Unavailable(error.to_string());
    if let Some(upload_id) = core.catalog.upload_id(&cleanup.key).await.map_err(unknown)? {
        parts.abort(&cleanup.key, &upload_id).await?;
    }
    parts.abort_all(&cleanup.key).await
}

fn cleanup_outcome(
    cleanup: ClaimedCleanup,
    answer: Result<(), BlobError>,
    store_down: bool,
    now: i64,
) -> (ClaimedCleanup, CleanupOutcome) {
    let later = |backoff: Backoff, attempt| {
        let delay = backoff.delay_ms(attempt, rand::random());
        now.saturating_add(i64::try_from(delay).unwrap_or(i64::MAX / 4))
    };
    let outcome = match answer {
        Ok(()) | Err(BlobError::NotFound) => CleanupOutcome::Deleted,
        Err(error @ BlobError::Unavailable(_)) if store_down => {
            metric::cleanup_failed("unavailable");
            CleanupOutcome::StoreDown { error: error.to_string(), retry_at: later(STORE_DOWN, 1) }
        }
        Err(error) => {
            metric::cleanup_failed("refused");
            let tenant = cleanup.tenant.as_ref().map_or("", |tenant| tenant.as_str());
            tracing::warn!(job = NAME, blobPath = %cleanup.key, tenant, reason = cleanup.reason, error = %error,
                attempt = cleanup.attempts + 1, "cannot delete an object, trying again later");
            CleanupOutcome::Refused {
                error: error.to_string(),
                retry_at: later(REFUSED, cleanup.attempts + 1),
            }
        }
    };
    (cleanup, outcome)
}
