//! Running a sweep: when it is due and nobody else is at it, or because a person said so. How it went is written down
//! and logged.

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

/// After an error of the catalog.
const ERROR_PAUSE_MS: i64 = 1_000;

/// What came of looking whether a sweep is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueRun {
    /// Whether it was, and was ours to run.
    pub ran: bool,
    /// When to look again.
    pub again_at: UnixMs,
}

/// Runs a sweep if it is due and nobody else is at it. Runs that nobody was there for are made up for by one.
pub async fn run_if_due(uploads: &Uploads, sweep: Sweep, stop: &CancellationToken) -> DueRun {
    let core = &uploads.core;
    let scheduled = |at: UnixMs| DueRun { ran: false, again_at: at.min(sweep.next_time(core)) };
    match core.catalog.claim_sweep(claim(core, sweep)).await {
        Ok(SweepClaimOutcome::Leased(fence)) => {
            // Not after the end: a time that comes while the end is written down would be slept through.
            let again_at = sweep.next_time(core);
            let _ = run_under_lease(uploads, sweep, &SweepLease::under(core, fence).until(stop)).await;
            DueRun { ran: true, again_at }
        }
        Ok(SweepClaimOutcome::NotDue { next_run_at }) => scheduled(next_run_at),
        Ok(SweepClaimOutcome::Taken { lease_until, .. }) => scheduled(lease_until),
        Err(error) => {
            tracing::warn!(job = sweep.name(), error = %error, "whether a sweep is due is not known");
            scheduled(core.clock.now() + ERROR_PAUSE_MS)
        }
    }
}

/// The schedule may be denser than it was when the next run was written down.
pub async fn follow_schedule(core: &Core, sweep: Sweep) -> Result<(), CatalogError> {
    let written = core.catalog.sweeps().await?.into_iter().find(|state| state.name == sweep.name());
    let next_time = sweep.next_time(core);
    match written.and_then(|state| state.next_run_at) {
        Some(at) if at > next_time => core.catalog.advance_sweep(sweep.name(), at, next_time).await,
        _ => Ok(()),
    }
}

/// A run that a person asked for and that came to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    pub started_at: UnixMs,
    pub ended_at: UnixMs,
    pub report: Report,
}

#[derive(Clone, Debug, PartialEq)]
pub enum NotRun {
    /// Another process is at it.
    Busy {
        owner: String,
        lease_until: UnixMs,
    },
    Failed(VerbError),
}

impl From<VerbError> for NotRun {
    fn from(error: VerbError) -> Self {
        NotRun::Failed(error)
    }
}

/// How a person wants a sweep to be run.
#[derive(Clone, Debug, Default)]
pub struct ByHand {
    /// Find everything and change nothing.
    pub is_dry_run: bool,
    pub stop: CancellationToken,
    /// Counts what was looked at.
    pub items: Arc<AtomicU64>,
}

/// Runs a sweep whether it is due or not, and waits for its end. A dry run goes beside whoever is at it.
pub async fn run_now(uploads: &Uploads, sweep: Sweep, by_hand: &ByHand) -> Result<Ran, NotRun> {
    let core = &uploads.core;
    let started_at = core.clock.now();
    let ended = |report| Ran { started_at, ended_at: core.clock.now(), report };
    if by_hand.is_dry_run {
        let lease = SweepLease::dry(core).of(by_hand);
        let report = sweep.run(uploads, &lease).await?;
        return if lease.is_cut_short() { Err(stopped()) } else { Ok(ended(report)) };
    }
    let claim = SweepClaim { only_if_due: false, ..claim(core, sweep) };
    match core.catalog.claim_sweep(claim).await.map_err(VerbError::from)? {
        SweepClaimOutcome::Leased(fence) => {
            let lease = SweepLease::under(core, fence).of(by_hand);
            let report = run_under_lease(uploads, sweep, &lease).await?;
            if lease.is_cut_short() {
                return Err(stopped());
            }
            Ok(ended(report))
        }
        SweepClaimOutcome::NotDue { next_run_at } => {
            Err(VerbError::Internal(format!("due at {next_run_at} although it was to be run now")).into())
        }
        SweepClaimOutcome::Taken { owner, lease_until } => Err(NotRun::Busy { owner, lease_until }),
    }
}

fn stopped() -> NotRun {
    NotRun::Failed(VerbError::Unavailable("told to stop, and stopped at a safe point".into()))
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
    let outcome = tokio::select! {
        biased;
        outcome = sweep.run(uploads, lease) => outcome,
        lost = lease.keep(core, name) => Err(lost),
    };
    write_down(core, sweep, lease, started_at, &outcome).await;
    if outcome == Err(VerbError::TakenOver) {
        tracing::warn!(job = name, "another process has taken this sweep over");
        return outcome;
    }
    // A sweep that failed has said so itself, and is due again as scheduled; one that was cut short, at once.
    let next_run_at = (!lease.is_cut_short()).then(|| sweep.next_time(core));
    if let Err(error) = lease.catalog.release_sweep(next_run_at).await {
        tracing::warn!(job = name, error = %error, "cannot release the lease of a sweep, it runs out");
    }
    outcome
}

/// Runs a sweep beside the process that holds its lease, and writes down how it went.
pub async fn run(uploads: &Uploads, sweep: Sweep, lease: &SweepLease) -> Result<Report, VerbError> {
    let core = &uploads.core;
    let started_at = core.clock.now();
    let outcome = sweep.run(uploads, lease).await;
    write_down(core, sweep, lease, started_at, &outcome).await;
    outcome
}

/// Carries out the deletes of a scope that are due, for somebody who asked.
pub async fn run_cleanups_of(core: &Core, scope: &Scope) -> Result<pending_cleanups::Outcome, VerbError> {
    let (lease, started_at) = (SweepLease::by_hand(core).until(&core.draining), core.clock.now());
    let outcome = pending_cleanups::run(core, &lease, scope).await;
    // One tenant's are not the sweep.
    if *scope == Scope::All {
        let report = outcome.clone().map(Report::PendingCleanups);
        write_down(core, Sweep::PendingCleanups, &lease, started_at, &report).await;
    }
    outcome
}

/// For those who ask later. Of a sweep that did not come to its end, who goes on with it does.
async fn write_down(
    core: &Core,
    sweep: Sweep,
    lease: &SweepLease,
    started_at: UnixMs,
    outcome: &Result<Report, VerbError>,
) {
    if matches!(outcome, Err(VerbError::TakenOver)) || lease.is_cut_short() {
        return;
    }
    let name = sweep.name();
    let ended_at = core.clock.now();
    let (result, error) = match outcome {
        Ok(report) => (serde_json::to_string(report).ok(), report.trouble()),
        Err(error) => (None, Some(error.with_cause())),
    };
    let (shown, duration_ms) = (result.as_deref().unwrap_or("{}"), ended_at - started_at);
    match &error {
        Some(error) => {
            tracing::error!(
                job = name,
                error,
                result = shown,
                durationMs = duration_ms,
                "a sweep met errors"
            );
        }
        None => {
            metric::sweep_succeeded(name, ended_at);
            match outcome.as_ref().is_ok_and(Report::is_quiet) {
                true => tracing::debug!(job = name, durationMs = duration_ms, "a sweep found nothing"),
                false => {
                    tracing::info!(job = name, result = shown, durationMs = duration_ms, "a sweep ended")
                }
            }
        }
    }
    let record = SweepRecord { name, started_at, ended_at, result, error };
    if let Err(error) = lease.catalog.record_sweep(record).await {
        tracing::warn!(job = name, error = %error, "a sweep's outcome could not be written down");
    }
}
