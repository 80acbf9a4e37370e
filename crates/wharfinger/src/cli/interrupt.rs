//! Ctrl-C, for commands that end at the next safe point.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Failure, failed};

/// Returns a token that Ctrl-C cancels, from this call on. A second Ctrl-C exits at once.
pub(super) fn cancelled_by_ctrl_c() -> Result<CancellationToken, Failure> {
    let stop = CancellationToken::new();
    let cancelled = stop.clone();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    tokio::spawn(async move {
        interrupt.recv().await;
        cancelled.cancel();
        interrupt.recv().await;
        std::process::exit(1);
    });
    Ok(stop)
}
