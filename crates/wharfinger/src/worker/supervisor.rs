//! The only spawner of background loops. One that panics is started again; all stop on command.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::loops;
use crate::app::App;
use crate::roles::ProcessRole::{self, Api, Sweeper, Worker};
use crate::sweeps::Sweep;

type Loop = fn(Arc<App>) -> BoxFuture<'static, ()>;

/// Each with the roles that need it.
const LOOPS: [(&str, &[ProcessRole], Loop); 11] = [
    ("delayed checks", &[Worker], |app| Box::pin(loops::delayed_checks(app))),
    ("reaper", &[Worker], |app| Box::pin(loops::reaper(app))),
    ("scheduled cleanups", &[Sweeper], |app| Box::pin(loops::scheduled(app, Sweep::PendingCleanups))),
    ("upload window", &[Sweeper], |app| Box::pin(loops::scheduled(app, Sweep::UploadWindow))),
    ("quota sync", &[Sweeper], |app| Box::pin(loops::scheduled(app, Sweep::QuotaSync))),
    ("refunds", &ProcessRole::ALL, |app| Box::pin(loops::refunds(app))),
    ("settlements", &[Api], |app| Box::pin(loops::settlements(app))),
    ("clock", &ProcessRole::ALL, |app| Box::pin(loops::clock_keeping(app))),
    ("store mark", &[Worker, Sweeper], |app| Box::pin(loops::store_mark(app))),
    ("metrics", &ProcessRole::ALL, |app| Box::pin(loops::metrics_upkeep(app))),
    ("issuer keys", &[Api], |app| Box::pin(loops::issuer_keys(app))),
];

const RESTART_PAUSE: Duration = Duration::from_secs(1);

pub struct Supervisor {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Supervisor {
    pub async fn start(app: &Arc<App>) -> Supervisor {
        loops::follow_server_clock(app).await;
        let supervisor = Supervisor { stop: CancellationToken::new(), tasks: TaskTracker::new() };
        for (name, roles, body) in LOOPS {
            if !app.roles.has_any(roles) {
                continue;
            }
            let (app, stop) = (app.clone(), supervisor.stop.clone());
            supervisor.tasks.spawn(async move {
                stop.run_until_cancelled(keep_running(name, move || body(app.clone()))).await;
            });
        }
        supervisor
    }

    /// A loop stops at its next await. That is safe at every one of them: a crash there would be.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

async fn keep_running(name: &'static str, body: impl Fn() -> BoxFuture<'static, ()>) {
    loop {
        // A task of its own, so that a panic ends it and not us; dropped with us, it is aborted.
        let mut attempt = tokio::task::JoinSet::new();
        attempt.spawn(body());
        if let Some(Err(panicked)) = attempt.join_next().await {
            tracing::error!(job = name, error = %panicked, "a background loop panicked and is started again");
        }
        tokio::time::sleep(RESTART_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_is_started_again() {
        let runs = Arc::new(AtomicU32::new(0));
        let (again, stop) = (runs.clone(), CancellationToken::new());
        let stopper = stop.clone();
        let body = move || -> BoxFuture<'static, ()> {
            let (runs, stop) = (again.clone(), stopper.clone());
            Box::pin(async move {
                assert!(runs.fetch_add(1, Ordering::SeqCst) > 0, "the first run panics");
                stop.cancel();
            })
        };
        stop.run_until_cancelled(keep_running("a test", body)).await;
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }
}
