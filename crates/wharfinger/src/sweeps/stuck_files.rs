//! Fault: a confirmed file without progress for `STUCK_FILE_THRESHOLD_MS` whose job is missing or invalid. It is queued
//! again, or fails after `MAX_STUCK_RETRIES`. A file that only waits is counted, not changed.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_catalog::{RecoveryOutcome, Scope, StuckFile};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::recovery::RecoveryTrigger;

use super::SweepLease;
use crate::core::Core;
use crate::core::VerbError;
use crate::pipeline::recovery::{self, BATCH_FILES, PAGE_FILES};
use crate::telemetry::metric;

pub const NAME: &str = "stuck-file-recovery";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StuckFileRecoveryResult)]
pub struct Outcome {
    /// Files without progress for too long, including those that only wait.
    #[schema(example = 9)]
    pub total_stuck: u64,
    #[schema(example = 2)]
    pub re_enqueued: u64,
    #[schema(example = 1)]
    pub permanently_failed: u64,
    /// Not changed: the job waits in its queue or is leased by a worker.
    #[schema(example = 6)]
    pub waiting: u64,
    /// Not recovered because of an error, which is in the log. The next run tries again.
    #[schema(example = 0)]
    pub errors: u64,
    /// Average milliseconds without progress, over all of `totalStuck`.
    #[schema(example = 2_712_000)]
    pub average_stuck_duration: i64,
    #[schema(example = json!({"queued": 6, "scanning": 3}))]
    pub by_status: BTreeMap<&'static str, u64>,
}

pub async fn run(core: &Core, lease: &SweepLease) -> Result<Outcome, VerbError> {
    let mut outcome = Outcome::default();
    let mut stuck_ms = 0_i128;
    let overdue_at = core.clock.now();
    let mut after = None;
    'pages: while lease.should_continue(core) {
        let now = core.clock.now();
        let page = core.catalog.stuck_files(&Scope::All, (overdue_at, now), after, PAGE_FILES).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.cursor);
        outcome.count(&page, &mut stuck_ms, now);
        if lease.is_dry_run() {
            outcome.predict(&page, core.plan.stuck_retries_max);
            continue;
        }
        let files: Vec<FileId> = recovery::recoverable(&page).collect();
        for some in files.chunks(BATCH_FILES) {
            if !lease.should_continue(core) {
                break 'pages;
            }
            let outcomes =
                recovery::recover(core, &lease.catalog, some.to_vec(), RecoveryTrigger::Overdue, NAME)
                    .await?;
            outcome.errors += outcomes.failed.len() as u64;
            outcomes.done.iter().for_each(|(_, recovered)| outcome.add(recovered));
        }
    }
    metric::stuck_detection_took(core.clock.now() - overdue_at);
    Ok(outcome)
}

impl Outcome {
    fn count(&mut self, page: &[StuckFile], stuck_ms: &mut i128, now: UnixMs) {
        for file in page {
            *self.by_status.entry(file.status.as_str()).or_default() += 1;
            *stuck_ms += i128::from(now.saturating_sub(file.updated_at).max(0));
            self.waiting += u64::from(file.fault.is_none());
        }
        self.total_stuck += page.len() as u64;
        let average = *stuck_ms / i128::from(self.total_stuck.max(1));
        self.average_stuck_duration = i64::try_from(average).unwrap_or(i64::MAX);
    }

    fn add(&mut self, recovered: &RecoveryOutcome) {
        match recovered {
            RecoveryOutcome::Queued { .. } => self.re_enqueued += 1,
            RecoveryOutcome::Failed { .. } => self.permanently_failed += 1,
            RecoveryOutcome::Waiting | RecoveryOutcome::InProgress { .. } => self.waiting += 1,
            RecoveryOutcome::NotStuck => {}
            RecoveryOutcome::Unreadable => self.errors += 1,
        }
    }

    /// Predicts the outcomes for a dry run. It does not count lost workers, because that needs the row locks.
    fn predict(&mut self, page: &[StuckFile], retries_max: u32) {
        for file in page.iter().filter(|file| file.fault.is_some()) {
            match file.retry_count < retries_max {
                true => self.re_enqueued += 1,
                false => self.permanently_failed += 1,
            }
        }
    }
}
