//! Runs sweeps: when they are due and no other process runs them, or on request. Finished runs are recorded, and those
//! that are not dry runs are logged.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio_util::sync::CancellationToken;
use wharfinger_catalog::{
    CatalogError, RunEffect, RunStart, Scope, SweepClaim, SweepClaimOutcome, SweepRecord,
};
use wharfinger_lifecycle::UnixMs;

use super::sweep_lease::LEASE_MS;
use super::{Report, Sweep, SweepLease, pending_cleanups};
use crate::core::Core;
use crate::core::VerbError;
use crate::telemetry::metric;
use crate::uploads::Uploads;

/// Who starts the runs that nobody starts by hand.
pub const SCHEDULE: &str = "schedule";
/// The error of a run that was stopped.
const STOPPED: &str = "stopped before its end, the next run continues";

/// The pause after an error of the catalog.
const ERROR_PAUSE_MS: i64 = 1_000;

/// The result of checking whether a sweep is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueRun {
    /// Whether this process ran it.
    pub ran: bool,
    /// When to check again.
    pub again_at: UnixMs,
}

/// Runs a sweep if it is due and no other process runs it. Missed runs are coalesced into one.
pub async fn run_if_due(uploads: &Uploads, sweep: Sweep, stop: &CancellationToken) -> DueRun {
    let core = &uploads.core;
    let scheduled = |at: UnixMs| DueRun { ran: false, again_at: at.min(sweep.next_time(core)) };
    let start = run_start(core, SCHEDULE, false);
    match core.catalog.claim_sweep(claim(core, sweep, &start)).await {
        Ok(SweepClaimOutcome::Leased(fence)) => {
            // Computed before the run. Otherwise a time that comes during the run would be missed.
            let again_at = sweep.next_time(core);
            let lease = SweepLease::with_fence(core, fence).with_stop(stop);
            let _ = run_under_lease(uploads, sweep, &lease, start).await;
            DueRun { ran: true, again_at }
        }
        Ok(SweepClaimOutcome::NotDue { next_run_at }) => scheduled(next_run_at),
        Ok(SweepClaimOutcome::Taken { lease_until, .. }) => scheduled(lease_until),
        Err(error) => {
            tracing::warn!(job = sweep.name(), error = %error, "cannot read the sweep schedule");
            scheduled(core.clock.now() + ERROR_PAUSE_MS)
        }
    }
}

/// Moves the stored time of the next run to the earlier time of a denser schedule.
pub async fn apply_schedule(core: &Core, sweep: Sweep) -> Result<(), CatalogError> {
    let written = core.catalog.sweeps().await?.into_iter().find(|state| state.name == sweep.name());
    let next_time = sweep.next_time(core);
    match written.and_then(|state| state.next_run_at) {
        Some(at) if at > next_time => core.catalog.advance_sweep(sweep.name(), at, next_time).await,
        _ => Ok(()),
    }
}

/// A finished manual run.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepRun {
    pub started_at: UnixMs,
    pub ended_at: UnixMs,
    pub report: Report,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SweepRunError {
    /// Another process is running the sweep.
    Busy {
        owner: String,
        lease_until: UnixMs,
    },
    Failed(VerbError),
}

impl From<VerbError> for SweepRunError {
    fn from(error: VerbError) -> Self {
        SweepRunError::Failed(error)
    }
}

/// The options of a manual run.
#[derive(Clone, Debug, Default)]
pub struct ManualRun {
    /// Who runs it, for the history.
    pub by: String,
    /// Report what would be done, and change nothing.
    pub is_dry_run: bool,
    pub stop: CancellationToken,
    /// Counts checked items.
    pub items: Arc<AtomicU64>,
}

/// Runs a sweep even if it is not due, and waits for its end. Most dry runs do not need the lease.
pub async fn run_now(uploads: &Uploads, sweep: Sweep, manual: &ManualRun) -> Result<SweepRun, SweepRunError> {
    let core = &uploads.core;
    let started_at = core.clock.now();
    let start = run_start(core, &manual.by, manual.is_dry_run);
    let (lease, outcome);
    if manual.is_dry_run && !sweep.keeps_dry_findings() {
        lease = SweepLease::dry_run(core).for_manual_run(manual);
        outcome = run_without_lease(uploads, sweep, &lease, start).await;
    } else {
        let claim = SweepClaim { only_if_due: false, ..claim(core, sweep, &start) };
        let fence = match core.catalog.claim_sweep(claim).await.map_err(VerbError::from)? {
            SweepClaimOutcome::Leased(fence) => fence,
            SweepClaimOutcome::NotDue { next_run_at } => {
                return Err(VerbError::Internal(format!(
                    "the catalog answered a manual run with the next time {next_run_at}"
                ))
                .into());
            }
            SweepClaimOutcome::Taken { owner, lease_until } => {
                return Err(SweepRunError::Busy { owner, lease_until });
            }
        };
        let real = SweepLease::with_fence(core, fence).for_manual_run(manual);
        lease = if manual.is_dry_run { real.into_dry_run() } else { real };
        outcome = run_under_lease(uploads, sweep, &lease, start).await;
    }
    let report = outcome?;
    if lease.is_stopped() {
        return Err(stopped());
    }
    Ok(SweepRun { started_at, ended_at: core.clock.now(), report })
}

fn stopped() -> SweepRunError {
    SweepRunError::Failed(VerbError::Unavailable(STOPPED.into()))
}

fn run_start(core: &Core, by: &str, is_dry_run: bool) -> RunStart {
    RunStart { by: by.to_owned(), instance: core.settings.instance_id.clone(), is_dry_run }
}

fn claim(core: &Core, sweep: Sweep, start: &RunStart) -> SweepClaim {
    SweepClaim {
        name: sweep.name(),
        owner: format!("{} {}", core.settings.instance_id, std::process::id()),
        now: core.clock.now(),
        lease_ms: LEASE_MS,
        only_if_due: true,
        start: start.clone(),
    }
}

async fn run_under_lease(
    uploads: &Uploads,
    sweep: Sweep,
    lease: &SweepLease,
    start: RunStart,
) -> Result<Report, VerbError> {
    let core = &uploads.core;
    let name = sweep.name();
    tracing::info!(job = name, action = "started", "sweep started");
    let run = Run { core, sweep, start, started_at: core.clock.now() };
    let outcome = tokio::select! {
        biased;
        outcome = sweep.run(uploads, lease) => outcome,
        lost = lease.extend_until_lost(core, name) => Err(lost),
    };
    if outcome == Err(VerbError::TakenOver) {
        tracing::warn!(job = name, "sweep was taken over by another process");
        return outcome;
    }
    let record = run.end(&outcome, lease.is_stopped());
    // A sweep that was stopped keeps its time, so a due one is due at once. A finished or failed one is due at its next
    // scheduled time. A dry run does not replace a real one.
    let next_run_at = (!lease.is_stopped() && !lease.is_dry_run()).then(|| sweep.next_time(core));
    if let Err(error) = lease.records.end_sweep(record, next_run_at).await {
        tracing::warn!(job = name, error = %error, "cannot record the end of a sweep, its lease will expire");
    }
    outcome
}

/// Runs a sweep without its lease, as if it was due, and records the run.
pub async fn run_unleased(uploads: &Uploads, sweep: Sweep, lease: &SweepLease) -> Result<Report, VerbError> {
    let start = run_start(&uploads.core, SCHEDULE, lease.is_dry_run());
    run_without_lease(uploads, sweep, lease, start).await
}

async fn run_without_lease(
    uploads: &Uploads,
    sweep: Sweep,
    lease: &SweepLease,
    start: RunStart,
) -> Result<Report, VerbError> {
    let core = &uploads.core;
    let run = Run { core, sweep, start, started_at: core.clock.now() };
    let outcome = sweep.run(uploads, lease).await;
    run.record(&outcome, lease.is_stopped()).await;
    outcome
}

/// Runs the due cleanups of a scope on request.
pub async fn run_cleanups_in(
    core: &Core,
    scope: &Scope,
    by: &str,
) -> Result<pending_cleanups::Outcome, VerbError> {
    let lease = SweepLease::unleased(core).with_stop(&core.draining);
    let run = Run {
        core,
        sweep: Sweep::PendingCleanups,
        start: run_start(core, by, false),
        started_at: core.clock.now(),
    };
    let outcome = pending_cleanups::run(core, &lease, scope).await;
    // Cleanups of one tenant are not recorded as a run of the sweep.
    if *scope == Scope::All {
        run.record(&outcome.clone().map(Report::PendingCleanups), lease.is_stopped()).await;
    }
    outcome
}

/// A run that is not recorded yet.
pub(super) struct Run<'c> {
    core: &'c Core,
    sweep: Sweep,
    start: RunStart,
    started_at: UnixMs,
}

impl<'c> Run<'c> {
    /// The run of a schedule that started at a time.
    pub(super) fn scheduled(core: &'c Core, sweep: Sweep, started_at: UnixMs) -> Run<'c> {
        Run { core, sweep, start: run_start(core, SCHEDULE, false), started_at }
    }

    /// Records a run that had no lease.
    pub(super) async fn record(self, outcome: &Result<Report, VerbError>, is_stopped: bool) {
        let (core, name) = (self.core, self.sweep.name());
        if let Err(error) = core.catalog.record_sweep(self.end(outcome, is_stopped)).await {
            tracing::warn!(job = name, error = %error, "cannot record the result of a sweep");
        }
    }

    /// Logs the end of the run; returns its record.
    fn end(self, outcome: &Result<Report, VerbError>, is_stopped: bool) -> SweepRecord {
        let Run { core, sweep, start, started_at } = self;
        let name = sweep.name();
        let ended_at = core.clock.now();
        let (result, error) = match outcome {
            Ok(report) => (serde_json::to_string(report).ok(), report.error_summary()),
            Err(error) => (None, Some(error.with_cause())),
        };
        let is_idle = !is_stopped && outcome.as_ref().is_ok_and(Report::is_quiet);
        if !is_stopped {
            let duration_ms = ended_at - started_at;
            match outcome {
                Ok(report) => report.log_end(name, start.is_dry_run, duration_ms, error.as_deref()),
                Err(_) => {
                    tracing::error!(
                        job = name,
                        error,
                        durationMs = duration_ms,
                        action = "failed",
                        "sweep failed"
                    );
                }
            }
        }
        if !is_stopped && !start.is_dry_run && error.is_none() {
            metric::sweep_succeeded(name, ended_at);
        }
        let effect = match is_idle {
            false => RunEffect::Some,
            true if start.by == SCHEDULE && sweep.keeps_one_idle_run() => RunEffect::StillIdle,
            true => RunEffect::Idle,
        };
        let error = error.or_else(|| is_stopped.then(|| STOPPED.to_owned()));
        SweepRecord { name, start, effect, is_stopped, started_at, ended_at, result, error }
    }
}
