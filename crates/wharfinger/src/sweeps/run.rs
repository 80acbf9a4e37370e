//! Runs sweeps: when they are due and no other process runs them, or on request. Finished runs are recorded and logged;
//! dry runs are not.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio_util::sync::CancellationToken;
use wharfinger_catalog::{CatalogError, Scope, SweepClaim, SweepClaimOutcome, SweepRecord};
use wharfinger_lifecycle::UnixMs;

use super::sweep_lease::LEASE_MS;
use super::{Report, Sweep, SweepLease, pending_cleanups};
use crate::core::Core;
use crate::core::VerbError;
use crate::telemetry::metric;
use crate::uploads::Uploads;

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
    match core.catalog.claim_sweep(claim(core, sweep)).await {
        Ok(SweepClaimOutcome::Leased(fence)) => {
            // Computed before the run. Otherwise a time that comes during the run would be missed.
            let again_at = sweep.next_time(core);
            let _ =
                run_under_lease(uploads, sweep, &SweepLease::with_fence(core, fence).with_stop(stop)).await;
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
    /// Report what would be done, and change nothing.
    pub is_dry_run: bool,
    pub stop: CancellationToken,
    /// Counts checked items.
    pub items: Arc<AtomicU64>,
}

/// Runs a sweep even if it is not due, and waits for its end. A dry run does not need the lease.
pub async fn run_now(uploads: &Uploads, sweep: Sweep, manual: &ManualRun) -> Result<SweepRun, SweepRunError> {
    let core = &uploads.core;
    let started_at = core.clock.now();
    let ended = |report| SweepRun { started_at, ended_at: core.clock.now(), report };
    if manual.is_dry_run {
        let lease = SweepLease::dry_run(core).for_manual_run(manual);
        let report = sweep.run(uploads, &lease).await?;
        return if lease.is_stopped() { Err(stopped()) } else { Ok(ended(report)) };
    }
    let claim = SweepClaim { only_if_due: false, ..claim(core, sweep) };
    match core.catalog.claim_sweep(claim).await.map_err(VerbError::from)? {
        SweepClaimOutcome::Leased(fence) => {
            let lease = SweepLease::with_fence(core, fence).for_manual_run(manual);
            let report = run_under_lease(uploads, sweep, &lease).await?;
            if lease.is_stopped() {
                return Err(stopped());
            }
            Ok(ended(report))
        }
        SweepClaimOutcome::NotDue { next_run_at } => Err(VerbError::Internal(format!(
            "the catalog answered a manual run with the next time {next_run_at}"
        ))
        .into()),
        SweepClaimOutcome::Taken { owner, lease_until } => Err(SweepRunError::Busy { owner, lease_until }),
    }
}

fn stopped() -> SweepRunError {
    SweepRunError::Failed(VerbError::Unavailable(
        "stopped on request before the end, the next run continues".into(),
    ))
}

fn claim(core: &Core, sweep: Sweep) -> SweepClaim {
    SweepClaim {
        name: sweep.name(),
        owner: format!("{} {}", core.settings.instance_id, std::process::id()),
        now: core.clock.now(),
        lease_ms: LEASE_MS,
        only_if_due: true,
    }
}

async fn run_under_lease(uploads: &Uploads, sweep: Sweep, lease: &SweepLease) -> Result<Report, VerbError> {
    let core = &uploads.core;
    let name = sweep.name();
    let started_at = core.clock.now();
    tracing::info!(job = name, action = "started", "sweep started");
    let outcome = tokio::select! {
        biased;
        outcome = sweep.run(uploads, lease) => outcome,
        lost = lease.extend_until_lost(core, name) => Err(lost),
    };
    record_run(core, sweep, lease, started_at, &outcome).await;
    if outcome == Err(VerbError::TakenOver) {
        tracing::warn!(job = name, "sweep was taken over by another process");
        return outcome;
    }
    // A sweep that was stopped keeps its time, so a due one is due at once. A finished or failed one is due at its next
    // scheduled time.
    let next_run_at = (!lease.is_stopped()).then(|| sweep.next_time(core));
    if let Err(error) = lease.catalog.release_sweep(next_run_at).await {
        tracing::warn!(job = name, error = %error, "cannot release the lease of a sweep, it will expire");
    }
    outcome
}

/// Runs a sweep without its lease, and records the run. The loop that deletes objects at once calls this often, so only the
/// runs that did something are logged.
pub async fn run_unleased(uploads: &Uploads, sweep: Sweep, lease: &SweepLease) -> Result<Report, VerbError> {
    let core = &uploads.core;
    let started_at = core.clock.now();
    let outcome = sweep.run(uploads, lease).await;
    record_run(core, sweep, lease, started_at, &outcome).await;
    outcome
}

/// Runs the due cleanups of a scope on request.
pub async fn run_cleanups_in(core: &Core, scope: &Scope) -> Result<pending_cleanups::Outcome, VerbError> {
    let (lease, started_at) = (SweepLease::unleased(core).with_stop(&core.draining), core.clock.now());
    let outcome = pending_cleanups::run(core, &lease, scope).await;
    // Cleanups of one tenant are not recorded as a run of the sweep.
    if *scope == Scope::All {
        let report = outcome.clone().map(Report::PendingCleanups);
        record_run(core, Sweep::PendingCleanups, &lease, started_at, &report).await;
    }
    outcome
}

/// Logs and records a run. A stopped run is recorded by the process that continues it.
async fn record_run(
    core: &Core,
    sweep: Sweep,
    lease: &SweepLease,
    started_at: UnixMs,
    outcome: &Result<Report, VerbError>,
) {
    if matches!(outcome, Err(VerbError::TakenOver)) || lease.is_stopped() {
        return;
    }
    let name = sweep.name();
    let ended_at = core.clock.now();
    let (result, error) = match outcome {
        Ok(report) => (serde_json::to_string(report).ok(), report.error_summary()),
        Err(error) => (None, Some(error.with_cause())),
    };
    let duration_ms = ended_at - started_at;
    match outcome {
        Ok(report) if !lease.is_fenced() && report.is_quiet() => {
            tracing::debug!(job = name, durationMs = duration_ms, action = "finished", "sweep finished");
        }
        Ok(report) => report.log_end(name, duration_ms, error.as_deref()),
        Err(_) => {
            tracing::error!(job = name, error, durationMs = duration_ms, action = "failed", "sweep failed");
        }
    }
    if error.is_none() {
        metric::sweep_succeeded(name, ended_at);
    }
    let record = SweepRecord { name, started_at, ended_at, result, error };
    if let Err(error) = lease.catalog.record_sweep(record).await {
        tracing::warn!(job = name, error = %error, "cannot record the result of a sweep");
    }
}
