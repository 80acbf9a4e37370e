//! Background work: the delayed checks, the reaper, the scheduled sweeps, and the supervisor that runs them.

pub mod checks;
mod loops;
mod supervisor;

pub use supervisor::Supervisor;

use crate::app::App;
use crate::uploads::VerbError;
use crate::{quota, sweeps};

/// Does everything that is due now, until nothing is: what the loops do over time, in one go.
pub async fn run_all_due(app: &App) -> Result<(), VerbError> {
    if let Some(gate) = &app.redis_gate {
        gate.look_after().await;
        quota::refunds::relay(app).await?;
    }
    checks::run_due(app).await?;
    sweeps::upload_window::run(app).await?;
    sweeps::pending_cleanups::run(app).await?;
    quota::refunds::relay(app).await?;
    Ok(())
}
