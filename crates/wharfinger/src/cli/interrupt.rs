//! Ctrl-C, for commands that end at the next safe point.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Failure, failed};

/// Answers what Ctrl-C cancels. It is heard from now on, not only when a task comes to listen for it.
pub(super) fn stopped_by_hand() -> Result<CancellationToken, Failure> {
    let stop = CancellationToken::new();
    let asked = stop.clone();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    tokio::spawn(async move {
        interrupt.recv().await;
        asked.cancel();
        // Whoever asks twice does not want to wait.
        interrupt.recv().await;
        std::process::exit(1);
    });
    Ok(stop)
}
