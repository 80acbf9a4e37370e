//! Fault: bytes that no row answers for any more and that are still in the store. Deletes them in bulk, reads
//! the outcome per key, and forgets a cleanup only when the store has said that its bytes are gone.

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

/// Short, because a process that dies holds its batch back this long, and deleting twice is harmless.
const LEASE_MS: i64 = 60_000;
/// As many as are surely done within the lease, also where each takes calls of its own.
const BATCH_MAX: usize = 250;
const ABANDONS_AT_ONCE: usize = 16;
const REFUSED: Backoff = Backoff { base_ms: 30_000, cap_ms: 3_600_000 };
const STORE_DOWN: Backoff = Backoff { base_ms: 10_000, cap_ms: 10_000 };

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = PendingCleanupsResult)]
pub struct Outcome {
    /// Of a dry run: how many would be.
    #[schema(example = 7)]
    pub attempted: u64,
    #[schema(example = 7)]
    pub done: u64,
    #[schema(example = 0)]
    pub failed: u64,
    #[schema(example = 0)]
    pub exhausted: u64,
}

/// Deletes what is due in a scope.
pub async fn run(core: &Core, lease: &SweepLease, scope: &Scope) -> Result<Outcome, VerbError> {
    if lease.is_dry_run() {
        let attempted = core.catalog.due_cleanups(core.clock.now()).await?;
        return Ok(Outcome { attempted, ..Outcome::default() });
    }
    let mut outcome = Outcome::default();
    let batch_max = core.blobs.caps().delete_batch_max.min(BATCH_MAX);
    loop {
        if !lease.goes_on(core) {
            return Ok(outcome);
        }
        let claimed = lease.catalog.claim_cleanups(scope, core.clock.now(), batch_max, LEASE_MS).await?;
        if claimed.is_empty() {
            return Ok(outcome);
        }
        // Before the deletes: what is put after this moment is not covered by them.
        let deleted_at = core.clock.now();
        let answers = delete(core, &claimed).await;
        let attempted = claimed.len() as u64;
        // One object that cannot be deleted is not a store that is down.
        let unsure = answers.iter().any(|answer| matches!(answer, Err(BlobError::Unavailable(_))));
        let store_down = unsure && core.blobs.check().await.is_err();
        let now = core.clock.now();
        let judged = claimed
            .into_iter()
            .zip(answers)
            .map(|(cleanup, answer)| judge(cleanup, answer, store_down, now))
            .collect();
        let settled = lease.catalog.record_cleanup_outcomes(judged, deleted_at).await?;
        outcome.attempted += attempted;
        outcome.done += settled.done;
        outcome.failed += settled.failed;
        outcome.exhausted += settled.exhausted;
        metric::orphans_deleted(settled.orphans);
    }
}

/// Ends unfinished uploads, then deletes. Parts that would come after this find no upload.
async fn delete(core: &Core, claimed: &[ClaimedCleanup]) -> Vec<Result<(), BlobError>> {
    let keys: Vec<_> = claimed.iter().map(|cleanup| cleanup.key.clone()).collect();
    let answers: Vec<Result<(), BlobError>> = futures::stream::iter(claimed.to_vec())
        .map(|cleanup| abandon(core, cleanup))
        .buffered(ABANDONS_AT_ONCE)
        .collect()
        .await;
    let deleted = core.blobs.delete_many(&keys).await;
    answers.into_iter().zip(deleted).map(|(abandoned, deleted)| abandoned.and(deleted)).collect()
}

/// The upload that is known by its id too: a part that was on its way may have outlived the first time it was ended,
/// when the store did not list it any more.
async fn abandon(core: &Core, cleanup: ClaimedCleanup) -> Result<(), BlobError> {
    let Some(parts) = core.blobs.in_parts().filter(|_| cleanup.in_parts) else { return Ok(()) };
    let unknown = |error: CatalogError| BlobError::Unavailable(error.to_string());
    if let Some(upload_id) = core.catalog.upload_id(&cleanup.key).await.map_err(unknown)? {
        parts.abandon_one(&cleanup.key, &upload_id).await?;
    }
    parts.abandon(&cleanup.key).await
}

fn judge(
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
        Ok(()) | Err(BlobError::NotFound) => CleanupOutcome::Gone,
        Err(error @ BlobError::Unavailable(_)) if store_down => {
            metric::cleanup_failed("unavailable");
            CleanupOutcome::StoreDown { error: error.to_string(), retry_at: later(STORE_DOWN, 1) }
        }
        Err(error) => {
            metric::cleanup_failed("refused");
            let tenant = cleanup.tenant.as_ref().map_or("", |tenant| tenant.as_str());
            tracing::warn!(job = NAME, tenant, error = %error, attempt = cleanup.attempts + 1,
                "the store refused a delete");
            CleanupOutcome::Refused {
                error: error.to_string(),
                retry_at: later(REFUSED, cleanup.attempts + 1),
            }
        }
    };
    (cleanup, outcome)
}
