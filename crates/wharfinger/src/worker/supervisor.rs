//! Spawns the background loops. A loop that panics is restarted. On stop, each loop has some time to finish its current
//! item.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::loops;
use crate::app::App;
use crate::pipeline;
use crate::roles::ProcessRole::{self, Api, Ingest, Sweeper, Worker};
use crate::sweeps::Sweep;

/// Runs until the token is cancelled.
type Loop = fn(Arc<App>, CancellationToken) -> BoxFuture<'static, ()>;

/// Each loop with the roles that run it.
const LOOPS: [(&str, &[ProcessRole], Loop); 21] = [
    ("delayed checks", &[Worker], |app, stop| Box::pin(loops::delayed_checks(app, stop))),
    ("pipeline", &[Worker], |app, stop| Box::pin(pipeline::run::work(app.pipeline.clone(), stop))),
    ("stage workers", &[Worker], |app, stop| Box::pin(loops::stage_workers(app, stop))),
    ("vector copies", &[Worker], |app, stop| Box::pin(loops::vector_copies(app, stop))),
    ("reaper", &[Worker], |app, stop| Box::pin(loops::reaper(app, stop))),
    ("refunds", &ProcessRole::ALL, |app, stop| Box::pin(loops::refunds(app, stop))),
    ("settlements", &[Api], |app, stop| Box::pin(loops::settlements(app, stop))),
    ("checks to broker", &ProcessRole::ALL, |app, stop| Box::pin(loops::checks_to_broker(app, stop))),
    ("checks from broker", &[Worker], |app, stop| Box::pin(loops::checks_from_broker(app, stop))),
    ("wake-ups to others", &ProcessRole::ALL, |app, stop| Box::pin(loops::wakeups_to_others(app, stop))),
    ("wake-ups from others", &[Worker], |app, stop| Box::pin(loops::wakeups_from_others(app, stop))),
    // In workers: more of them send faster.
    ("notifications", &[Worker], |app, stop| Box::pin(loops::notifications(app, stop))),
    ("events to store", &[Ingest], |app, stop| Box::pin(loops::events_to_store(app, stop))),
    ("spool recovery", &[Ingest], |app, stop| Box::pin(loops::spool_recovery(app, stop))),
    ("spool age", &[Ingest], |app, stop| Box::pin(loops::spool_age(app, stop))),
    ("archive", &[Ingest], |app, stop| Box::pin(loops::archive(app, stop))),
    ("clock", &ProcessRole::ALL, |app, stop| Box::pin(loops::follow_clock(app, stop))),
    ("store mark", &[Worker, Sweeper], |app, stop| Box::pin(loops::store_mark(app, stop))),
    ("metrics", &ProcessRole::ALL, |app, stop| Box::pin(loops::metrics_upkeep(app, stop))),
    // In all roles: each serves /metrics.
    ("service keys", &ProcessRole::ALL, |app, stop| Box::pin(loops::service_keys(app, stop))),
    ("issuer keys", &[Api, Ingest], |app, stop| Box::pin(loops::issuer_keys(app, stop))),
];

const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// A loop gets this long to finish its current item.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Supervisor {
    /// Cancelled: loops start no new item.
    stop: CancellationToken,
    /// Cancelled: loops end in the middle of their item.
    abort: CancellationToken,
    tasks: TaskTracker,
}

impl Supervisor {
    pub async fn start(app: &Arc<App>) -> Supervisor {
        loops::follow_server_clock(app).await;
        let supervisor = Supervisor::default();
        for (name, roles, body) in LOOPS {
            if app.roles.has_any(roles) {
                let app = app.clone();
                supervisor.spawn(name, move |stop| body(app.clone(), stop));
            }
        }
        for sweep in Sweep::ALL.into_iter().filter(|_| app.roles.has(Sweeper)) {
            let app = app.clone();
            supervisor.spawn(sweep.name(), move |stop| Box::pin(loops::scheduled(app.clone(), stop, sweep)));
        }
        supervisor
    }

    fn spawn(
        &self,
        name: &'static str,
        body: impl Fn(CancellationToken) -> BoxFuture<'static, ()> + Send + 'static,
    ) {
        let (stop, abort) = (self.stop.clone(), self.abort.clone());
        self.tasks.spawn(async move {
            abort.run_until_cancelled(keep_running(name, stop, body)).await;
        });
    }

    /// Each loop finishes its current item and starts no other.
    pub async fn stop(self) {
        self.stop_or_abort(std::future::pending()).await;
    }

    /// The same, until `hurry` completes or `FINISH_TIMEOUT` is over. Then each loop ends at its next await. That is as
    /// safe as a crash at that place.
    pub async fn stop_or_abort(self, hurry: impl Future<Output = ()>) {
        self.stop.cancel();
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => return,
            () = tokio::time::sleep(FINISH_TIMEOUT) => tracing::warn!("some loops did not finish in time"),
            () = hurry => {}
        }
        self.abort.cancel();
        self.tasks.wait().await;
    }
}

async fn keep_running(
    name: &'static str,
    stop: CancellationToken,
    body: impl Fn(CancellationToken) -> BoxFuture<'static, ()>,
) {
    while !stop.is_cancelled() {
        // In a separate task: a panic ends only that task. The JoinSet aborts it when this future is dropped.
        let mut attempt = tokio::task::JoinSet::new();
        attempt.spawn(body(stop.clone()));
        if let Some(Err(panicked)) = attempt.join_next().await {
            tracing::error!(job = name, error = %panicked, "a background loop panicked and is restarted");
        }
        stop.run_until_cancelled(tokio::time::sleep(RESTART_PAUSE)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_is_restarted() {
        let runs = Arc::new(AtomicU32::new(0));
        let counter = runs.clone();
        let body = move |stop: CancellationToken| -> BoxFuture<'static, ()> {
            let runs = counter.clone();
            Box::pin(async move {
                assert!(runs.fetch_add(1, Ordering::SeqCst) > 0, "the first run panics");
                stop.cancel();
            })
        };
        keep_running("a test", CancellationToken::new(), body).await;
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }

    /// Spawns a loop whose items take `item` each. Returns how many it started and finished.
    fn spawn_slow_loop(supervisor: &Supervisor, item: Duration) -> (Arc<AtomicU32>, Arc<AtomicU32>) {
        let (started, finished) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let counters = (started.clone(), finished.clone());
        supervisor.spawn("a test", move |stop| {
            let (started, finished) = counters.clone();
            Box::pin(async move {
                while !stop.is_cancelled() {
                    started.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(item).await;
                    finished.fetch_add(1, Ordering::SeqCst);
                }
            })
        });
        (started, finished)
    }

    #[tokio::test(start_paused = true)]
    async fn on_stop_the_current_item_is_finished_and_no_new_one_is_started() {
        let supervisor = Supervisor::default();
        let (started, finished) = spawn_slow_loop(&supervisor, FINISH_TIMEOUT / 2);
        tokio::time::sleep(FINISH_TIMEOUT * 3 / 4).await;
        supervisor.stop().await;
        assert_eq!((started.load(Ordering::SeqCst), finished.load(Ordering::SeqCst)), (2, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_item_is_aborted_and_hurry_aborts_every_item() {
        let supervisor = Supervisor::default();
        let (started, finished) = spawn_slow_loop(&supervisor, FINISH_TIMEOUT * 100);
        tokio::time::sleep(Duration::from_millis(1)).await;
        supervisor.stop().await;
        assert_eq!((started.load(Ordering::SeqCst), finished.load(Ordering::SeqCst)), (1, 0));

        let supervisor = Supervisor::default();
        let (started, finished) = spawn_slow_loop(&supervisor, FINISH_TIMEOUT / 2);
        tokio::time::sleep(Duration::from_millis(1)).await;
        supervisor.stop_or_abort(std::future::ready(())).await;
        assert_eq!((started.load(Ordering::SeqCst), finished.load(Ordering::SeqCst)), (1, 0));
    }
}
