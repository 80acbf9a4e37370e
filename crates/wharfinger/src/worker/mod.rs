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
use crate::sweeps::{self, Sweep, Turn};

/// Does everything that is due now, until nothing is: what the loops do over time, in one go.
pub async fn run_all_due(app: &App) -> Result<(), VerbError> {
    if let Some(gate) = &app.redis_gate {
        gate.look_after().await;
        quota::refunds::relay(app).await?;
    }
    messages::relay(app).await?;
    Box::pin(checks::run_due(app, &CancellationToken::new())).await?;
    Box::pin(pipeline::run::run_due(app)).await?;
    sweeps::run(app, Sweep::StuckFiles, &Turn::by_hand(app)).await?;
    Box::pin(pipeline::run::run_due(app)).await?;
    pipeline::search::copy_vectors(app, &CancellationToken::new()).await?;
    for sweep in [Sweep::BatchTimeout, Sweep::UploadWindow, Sweep::PendingCleanups] {
        sweeps::run(app, sweep, &Turn::by_hand(app)).await?;
    }
    quota::refunds::relay(app).await?;
    notify::relay(app, &CancellationToken::new()).await?;
    ingest::archive::relay(app, &CancellationToken::new()).await?;
    Ok(())
}
