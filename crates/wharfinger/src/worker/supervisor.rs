//! The only spawner of background loops. One that panics is started again; told to stop, each finishes what it is at.

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

/// Runs until the token says that nothing new is to be begun.
type Loop = fn(Arc<App>, CancellationToken) -> BoxFuture<'static, ()>;

/// Each with the roles that need it.
const LOOPS: [(&str, &[ProcessRole], Loop); 19] = [
    ("delayed checks", &[Worker], |app, stop| Box::pin(loops::delayed_checks(app, stop))),
    ("pipeline", &[Worker], |app, stop| Box::pin(pipeline::run::work(app.pipeline.clone(), stop))),
    ("vector copies", &[Worker], |app, stop| Box::pin(loops::vector_copies(app, stop))),
    ("reaper", &[Worker], |app, stop| Box::pin(loops::reaper(app, stop))),
    ("refunds", &ProcessRole::ALL, |app, stop| Box::pin(loops::refunds(app, stop))),
    ("settlements", &[Api], |app, stop| Box::pin(loops::settlements(app, stop))),
    ("checks to broker", &ProcessRole::ALL, |app, stop| Box::pin(loops::checks_to_broker(app, stop))),
    ("checks from broker", &[Worker], |app, stop| Box::pin(loops::checks_from_broker(app, stop))),
    ("wakes to others", &ProcessRole::ALL, |app, stop| Box::pin(loops::wakes_to_others(app, stop))),
    ("wakes from others", &[Worker], |app, stop| Box::pin(loops::wakes_from_others(app, stop))),
    // Of the workers: they are the ones that reach out, and sending is work that more of them do faster.
    ("notices", &[Worker], |app, stop| Box::pin(loops::notices(app, stop))),
    ("events to store", &[Ingest], |app, stop| Box::pin(loops::events_to_store(app, stop))),
    ("spool recovery", &[Ingest], |app, stop| Box::pin(loops::spool_recovery(app, stop))),
    ("spool age", &[Ingest], |app, stop| Box::pin(loops::spool_age(app, stop))),
    ("archive", &[Ingest], |app, stop| Box::pin(loops::archive(app, stop))),
    ("clock", &ProcessRole::ALL, |app, stop| Box::pin(loops::clock_keeping(app, stop))),
    ("store mark", &[Worker, Sweeper], |app, stop| Box::pin(loops::store_mark(app, stop))),
    ("metrics", &ProcessRole::ALL, |app, stop| Box::pin(loops::metrics_upkeep(app, stop))),
    ("issuer keys", &[Api, Ingest], |app, stop| Box::pin(loops::issuer_keys(app, stop))),
];

const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// What a loop is at gets this long to be finished.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Supervisor {
    /// Nothing new is begun.
    stop: CancellationToken,
    /// What is under way is broken off.
    cut: CancellationToken,
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
        let (stop, cut) = (self.stop.clone(), self.cut.clone());
        self.tasks.spawn(async move {
            cut.run_until_cancelled(keep_running(name, stop, body)).await;
        });
    }

    /// Each loop finishes the item it is at and begins no other.
    pub async fn stop(self) {
        self.stop_or_cut(std::future::pending()).await;
    }

    /// The same, until `hurry` is through or it takes too long. Then a loop ends at its next await, which is safe at
    /// every one of them: a crash there would be.
    pub async fn stop_or_cut(self, hurry: impl Future<Output = ()>) {
        self.stop.cancel();
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => return,
            () = tokio::time::sleep(FINISH_TIMEOUT) => tracing::warn!("some loops did not finish in time"),
            () = hurry => {}
        }
        self.cut.cancel();
        self.tasks.wait().await;
    }
}

async fn keep_running(
    name: &'static str,
    stop: CancellationToken,
    body: impl Fn(CancellationToken) -> BoxFuture<'static, ()>,
) {
    while !stop.is_cancelled() {
        // A task of its own, so that a panic ends it and not us; dropped with us, it is aborted.
        let mut attempt = tokio::task::JoinSet::new();
        attempt.spawn(body(stop.clone()));
        if let Some(Err(panicked)) = attempt.join_next().await {
            tracing::error!(job = name, error = %panicked, "a background loop panicked and is started again");
        }
        stop.run_until_cancelled(tokio::time::sleep(RESTART_PAUSE)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_is_started_again() {
        let runs = Arc::new(AtomicU32::new(0));
        let again = runs.clone();
        let body = move |stop: CancellationToken| -> BoxFuture<'static, ()> {
            let runs = again.clone();
            Box::pin(async move {
                assert!(runs.fetch_add(1, Ordering::SeqCst) > 0, "the first run panics");
                stop.cancel();
            })
        };
        keep_running("a test", CancellationToken::new(), body).await;
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }

    /// A loop of items that take so long each; answers how many it began and finished.
    fn working(supervisor: &Supervisor, item: Duration) -> (Arc<AtomicU32>, Arc<AtomicU32>) {
        let (begun, finished) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let counters = (begun.clone(), finished.clone());
        supervisor.spawn("a test", move |stop| {
            let (begun, finished) = counters.clone();
            Box::pin(async move {
                while !stop.is_cancelled() {
                    begun.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(item).await;
                    finished.fetch_add(1, Ordering::SeqCst);
                }
            })
        });
        (begun, finished)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_is_finished_and_nothing_new_is_begun() {
        let supervisor = Supervisor::default();
        let (begun, finished) = working(&supervisor, FINISH_TIMEOUT / 2);
        tokio::time::sleep(FINISH_TIMEOUT * 3 / 4).await;
        supervisor.stop().await;
        assert_eq!((begun.load(Ordering::SeqCst), finished.load(Ordering::SeqCst)), (2, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_too_long_is_cut_and_so_is_all_in_a_hurry() {
        let supervisor = Supervisor::default();
        let (begun, finished) = working(&supervisor, FINISH_TIMEOUT * 100);
        tokio::time::sleep(Duration::from_millis(1)).await;
        supervisor.stop().await;
        assert_eq!((begun.load(Ordering::SeqCst), finished.load(Ordering::SeqCst)), (1, 0));

        let supervisor = Supervisor::default();
        let (begun, finished) = working(&supervisor, FINISH_TIMEOUT / 2);
        tokio::time::sleep(Duration::from_millis(1)).await;
        supervisor.stop_or_cut(std::future::ready(())).await;
        assert_eq!((begun.load(Ordering::SeqCst), finished.load(Ordering::SeqCst)), (1, 0));
    }
}
