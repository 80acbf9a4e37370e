//! Background work: the delayed checks, the reaper, the scheduled sweeps, and the supervisor that runs them.

pub mod gauges;
mod loops;
mod supervisor;

pub use supervisor::Supervisor;

use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::checks::{self, messages};
use crate::core::VerbError;
use crate::ingest;
use crate::notify;
use crate::pipeline;
use crate::quota;
use crate::sweeps::{self, Sweep, SweepLease};

/// Runs everything that is due now, once: what the loops do over time. For tests.
pub async fn run_all_due(app: &App) -> Result<(), VerbError> {
    let (core, uploads) = (&app.core, &app.uploads);
    let stop = CancellationToken::new();
    if let Some(owner) = &app.quota.redis_owner {
        owner.check_if_back().await;
        quota::refunds::relay(&app.quota).await?;
    }
    if let Some(broker) = &app.broker {
        messages::relay(core, broker).await?;
    }
    Box::pin(checks::run_due(uploads, &stop)).await?;
    pipeline::stage_workers::see_own_stages(core).await?;
    Box::pin(pipeline::run::run_due(&app.pipeline)).await?;
    sweeps::run_unleased(uploads, Sweep::StuckFiles, &SweepLease::unleased(core)).await?;
    Box::pin(pipeline::run::run_due(&app.pipeline)).await?;
    pipeline::search::copy_vectors(core, &stop).await?;
    for sweep in [Sweep::BatchTimeout, Sweep::UploadWindow, Sweep::PendingCleanups] {
        sweeps::run_unleased(uploads, sweep, &SweepLease::unleased(core)).await?;
    }
    quota::refunds::relay(&app.quota).await?;
    app.service_keys.record_uses().await?;
    notify::relay(&app.notifier, &stop).await?;
    if let Some(ingest) = app.ingest.get() {
        ingest::archive::relay(core, ingest, &stop).await?;
    }
    Ok(())
}
