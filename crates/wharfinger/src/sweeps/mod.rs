//! Healers. Each looks at the catalog and the store and mends what it finds, in bounded batches; an error on
//! one item never ends a sweep.

pub mod expired_batches;
pub mod pending_cleanups;
pub mod quota_sync;
pub mod stuck_files;
mod turn;
pub mod unfinished_uploads;
pub mod upload_window;

pub use turn::{LEASE_MS, Looked, Sweep, Turn, take_turn};

use serde::Serialize;
use wharfinger_backends::catalog::SweepRecord;
use wharfinger_lifecycle::UnixMs;

use crate::app::App;
use crate::telemetry::metric;
use crate::uploads::VerbError;

/// Writes down how a sweep went, for those who ask later; of one that did not come to its end, who goes on with it
/// does.
async fn record<T: Serialize>(
    app: &App,
    turn: &Turn,
    name: &'static str,
    started_at: UnixMs,
    outcome: &Result<T, VerbError>,
) {
    if matches!(outcome, Err(VerbError::TakenOver)) || turn.is_cut_short() {
        return;
    }
    let ended_at = app.clock.now();
    let (result, error) = match outcome {
        Ok(result) => (serde_json::to_string(result).ok(), None),
        Err(error) => (None, Some(format!("{error:?}"))),
    };
    if let Some(error) = &error {
        tracing::error!(job = name, error = %error, durationMs = ended_at - started_at, "a sweep failed");
    } else {
        metric::sweep_succeeded(name, ended_at);
    }
    let record = SweepRecord { name, started_at, ended_at, result, error };
    if let Err(error) = turn.catalog.record_sweep(record).await {
        tracing::warn!(job = name, error = %error, "a sweep's outcome could not be written down");
    }
}
