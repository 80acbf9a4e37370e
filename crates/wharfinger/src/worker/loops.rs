//! What runs all the time: each loop sleeps until something is due, and no longer. Told to stop, it finishes the item
//! it is at and begins no other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use wharfinger_catalog::Destination;
use wharfinger_lifecycle::UnixMs;

use crate::app::App;
use crate::checks;
use crate::checks::messages::{self, Broker};
use crate::core::VerbError;
use crate::ingest;
use crate::notify;
use crate::pipeline::search;
use crate::quota::refunds;
use crate::roles::ProcessRole;
use crate::store::{self, StoreState};
use crate::sweeps::{self, Sweep, SweepLease};
use crate::uploads::init::CHECK_QUEUE;

/// Another process may have enqueued something earlier than what we know of.
const CHECK_PAUSE_MS_MAX: i64 = 5_000;
const REAPER_PAUSE_MS_MAX: i64 = 5_000;
const NOTICE_PAUSE_MS_MAX: i64 = 5_000;
const ARCHIVE_PAUSE_MS_MAX: i64 = 5_000;
/// After an error of the catalog.
const ERROR_PAUSE_MS: i64 = 1_000;
const CLOCK_PAUSE_MS: i64 = 60_000;
/// How long Redis stays away at least once it was lost.
const REDIS_PAUSE: Duration = Duration::from_secs(1);
/// How often the broker is asked whether it is there.
const BROKER_PAUSE: Duration = Duration::from_secs(10);
const RELAY_PAUSE: Duration = Duration::from_secs(2);
const REAPER_GATHERS: Duration = Duration::from_millis(50);
const ARCHIVE_GATHERS: Duration = Duration::from_millis(100);
const METRICS_PAUSE: Duration = Duration::from_secs(5);
const ISSUER_PAUSE_MS: i64 = 5 * 60_000;
const COUNTER_PAUSE_MS: i64 = 3_600_000;
const VECTOR_COPIES_PAUSE_MS: i64 = 15 * 60_000;

pub(super) async fn delayed_checks(app: Arc<App>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let due_at = match run_overdue_checks(&app, &stop).await {
            Ok(due_at) => due_at,
            Err(error) => {
                tracing::warn!(job = CHECK_QUEUE, error = ?error, "checks could not be run");
                Some(app.core.clock.now() + ERROR_PAUSE_MS)
            }
        };
        let now = app.core.clock.now();
        let at = due_at.map_or(i64::MAX, |at| at.max(now + 1)).min(now + CHECK_PAUSE_MS_MAX);
        tokio::select! {
            () = app.core.clock.sleep_until(at) => {}
            () = app.core.wakeups.check.woken_before(at) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Leaves the broker its time to bring a check, and runs what it did not bring. Answers when to look again.
async fn run_overdue_checks(app: &App, stop: &CancellationToken) -> Result<Option<UnixMs>, VerbError> {
    checks::take_back(&app.core).await?;
    let slack_ms = app.broker.as_ref().map_or(0, Broker::slack_ms);
    let next = async || app.core.catalog.next_job_at(&[CHECK_QUEUE]).await;
    if next().await?.is_some_and(|at| at + slack_ms <= app.core.clock.now()) {
        checks::run_due(&app.uploads, stop).await?;
    }
    Ok(next().await?.map(|at| at + slack_ms))
}

/// Publishes delayed checks, and knows whether the broker is there.
pub(super) async fn checks_to_broker(app: Arc<App>, stop: CancellationToken) {
    let Some(broker) = &app.broker else { return stop.cancelled().await };
    while !stop.is_cancelled() {
        broker.look_after().await;
        let next_look = tokio::time::Instant::now() + BROKER_PAUSE;
        while !stop.is_cancelled() && tokio::time::Instant::now() < next_look {
            if let Err(error) = messages::relay(&app.core, broker).await {
                tracing::warn!(job = "checks to broker", error = %error, "checks could not be published");
            }
            tokio::select! {
                () = tokio::time::sleep(RELAY_PAUSE) => {}
                () = app.core.wakeups.broker.notified() => {}
                () = stop.cancelled() => {}
            }
        }
    }
}

pub(super) async fn checks_from_broker(app: Arc<App>, stop: CancellationToken) {
    let Some(broker) = &app.broker else { return stop.cancelled().await };
    messages::consume(&app.uploads, broker, &stop).await;
}

/// Wakes the reapers of other processes.
pub(super) async fn wakes_to_others(app: Arc<App>, stop: CancellationToken) {
    let Some(broker) = &app.broker else { return stop.cancelled().await };
    while stop.run_until_cancelled(app.core.wakeups.other_processes.notified()).await.is_some() {
        // Who does not hear of it looks by itself, a little later.
        let _ = broker.rabbit.wake(messages::CLEANUPS).await;
        tokio::time::sleep(messages::WAKE_GATHERS).await;
    }
}

pub(super) async fn wakes_from_others(app: Arc<App>, stop: CancellationToken) {
    let Some(broker) = &app.broker else { return stop.cancelled().await };
    let mut wakes = broker.rabbit.wakes();
    while let Some(topic) = stop.run_until_cancelled(wakes.next()).await {
        if topic == messages::CLEANUPS {
            app.core.wakeups.cleanup.notify_one();
        }
    }
}

/// Deletes bytes as soon as it is woken, and whatever else falls due.
pub(super) async fn reaper(app: Arc<App>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let now = app.core.clock.now();
        let due_at = match app.core.catalog.next_cleanup_at().await {
            Ok(at) => at,
            Err(_) => Some(now + ERROR_PAUSE_MS),
        };
        if due_at.is_some_and(|at| at <= now)
            && let Ok(report) = sweeps::run(
                &app.uploads,
                Sweep::PendingCleanups,
                &SweepLease::by_hand(&app.core).until(&stop),
            )
            .await
            && !report.is_quiet()
        {
            // Deletes come in showers: one batch for many of them instead of many of one.
            tokio::time::sleep(REAPER_GATHERS).await;
            continue;
        }
        // What is due and was not taken is under another's lease, or the catalog is away.
        let at = due_at.map_or(i64::MAX, |at| at.max(now + ERROR_PAUSE_MS)).min(now + REAPER_PAUSE_MS_MAX);
        tokio::select! {
            () = app.core.clock.sleep_until(at) => {}
            () = app.core.wakeups.cleanup.notified() => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Whoever of the sweepers comes first runs it; the others look again when it is due next, or its lease is over.
pub(super) async fn scheduled(app: Arc<App>, stop: CancellationToken, sweep: Sweep) {
    if let Err(error) = sweeps::follow_schedule(&app.core, sweep).await {
        tracing::warn!(job = sweep.name(), error = %error, "a denser schedule holds from the next run on");
    }
    while !stop.is_cancelled() {
        let looked = sweeps::run_if_due(&app.uploads, sweep, &stop).await;
        stop.run_until_cancelled(app.core.clock.sleep_until(looked.again_at)).await;
    }
}

/// Tells Redis what was refunded, and looks after it while it is away.
pub(super) async fn refunds(app: Arc<App>, stop: CancellationToken) {
    let Some(owner) = &app.quota.redis_owner else { return stop.cancelled().await };
    while !stop.is_cancelled() {
        owner.look_after().await;
        if let Err(error) = refunds::relay(&app.quota).await {
            tracing::warn!(job = "refunds", error = %error, "refunds could not be told to Redis");
        }
        tokio::select! {
            () = tokio::time::sleep(REDIS_PAUSE) => {}
            () = app.core.wakeups.refund.notified() => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Lets the database compare what was embedded before it could, or by a process that did not know.
pub(super) async fn vector_copies(app: Arc<App>, stop: CancellationToken) {
    while !stop.is_cancelled() && app.core.catalog.has_pgvector() {
        if let Err(error) = search::copy_vectors(&app.core, &stop).await {
            tracing::warn!(job = "vector copies", error = ?error, "vectors could not be copied");
        }
        stop.run_until_cancelled(pause(&app, VECTOR_COPIES_PAUSE_MS)).await;
    }
    stop.cancelled().await;
}

/// Tells the webhook and Slack what owners were told.
pub(super) async fn notices(app: Arc<App>, stop: CancellationToken) {
    if !app.notifier.is_needed() {
        return stop.cancelled().await;
    }
    while !stop.is_cancelled() {
        let told = async {
            notify::relay(&app.notifier, &stop).await?;
            notify::next_at(&app.notifier).await
        };
        let now = app.core.clock.now();
        let due_at = told.await.unwrap_or_else(|error| {
            tracing::warn!(job = "notices", error = %error, "notices could not be told");
            None
        });
        // What is due and was not taken is another's for now, or waits for an earlier one.
        let at = due_at.map_or(i64::MAX, |at| at.max(now + ERROR_PAUSE_MS)).min(now + NOTICE_PAUSE_MS_MAX);
        tokio::select! {
            () = app.core.clock.sleep_until(at) => {}
            () = app.core.wakeups.notice.notified() => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Archives what happens to files. What other processes wrote down is found by looking, a little later. Where nothing more
/// is to be archived, what waits already is.
pub(super) async fn archive(app: Arc<App>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if !app.core.settings.ingest.archive
            && app
                .core
                .catalog
                .outbox_depth(Destination::Archive)
                .await
                .is_ok_and(|(waiting, _)| waiting == 0)
        {
            return stop.cancelled().await;
        }
        let archived = async {
            if let Some(ingest) = app.ingest.get() {
                ingest::archive::relay(&app.core, ingest, &stop).await?;
            }
            app.core.catalog.next_outbox_at(Destination::Archive).await
        };
        let due_at = archived.await.unwrap_or_else(|error| {
            tracing::warn!(job = "archive", error = %error, "events could not be archived");
            None
        });
        let now = app.core.clock.now();
        // What is due and was not taken is another's for now, or there is nobody yet to take it.
        let at = due_at.map_or(i64::MAX, |at| at.max(now + ERROR_PAUSE_MS)).min(now + ARCHIVE_PAUSE_MS_MAX);
        tokio::select! {
            () = app.core.clock.sleep_until(at) => {}
            () = app.core.wakeups.archive.notified() => {}
            () = stop.cancelled() => {}
        }
        // Events come in showers: many of them cost hardly more than one.
        stop.run_until_cancelled(tokio::time::sleep(ARCHIVE_GATHERS)).await;
    }
}

pub(super) async fn events_to_store(app: Arc<App>, stop: CancellationToken) {
    let Some(ingest) = app.ingest.get() else { return stop.cancelled().await };
    ingest::upload::run(ingest, &stop).await;
}

pub(super) async fn spool_recovery(app: Arc<App>, stop: CancellationToken) {
    let Some(ingest) = app.ingest.get() else { return stop.cancelled().await };
    ingest::recover::run(ingest, &stop).await;
}

pub(super) async fn spool_age(app: Arc<App>, stop: CancellationToken) {
    let Some(ingest) = app.ingest.get() else { return stop.cancelled().await };
    ingest::recover::limit_age(ingest, &stop).await;
}

pub(super) async fn settlements(app: Arc<App>, stop: CancellationToken) {
    let Some(owner) = &app.quota.redis_owner else { return stop.cancelled().await };
    while stop.run_until_cancelled(owner.settle_gathered()).await.is_some() {}
}

/// The store's mark and the catalog count together, so that a catalog from a backup is known for what it is. Who
/// looks at uploads must know how they stand; sweepers count.
pub(super) async fn store_mark(app: Arc<App>, stop: CancellationToken) {
    while stop.run_until_cancelled(pause(&app, COUNTER_PAUSE_MS)).await.is_some() {
        let state = match store::check(&app.core.catalog, &app.core.place()).await {
            Ok(StoreState::Ours) if app.roles.has(ProcessRole::Sweeper) => {
                store::count_on(&app.core.catalog, &app.core.place()).await
            }
            other => other,
        };
        if let Ok(state) = &state {
            app.core.store_is_ours.store(*state == StoreState::Ours, Ordering::Relaxed);
        }
        match state {
            Ok(StoreState::Ours) => {}
            Ok(other) => tracing::error!(state = ?other, "the store and the catalog do not agree"),
            Err(error) => tracing::warn!(error = %error, "the store's mark could not be read or written"),
        }
    }
}

/// Histograms keep every sample until somebody reads them; nobody may be asking.
pub(super) async fn metrics_upkeep(_app: Arc<App>, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(METRICS_PAUSE)).await.is_some() {
        crate::telemetry::prometheus().run_upkeep();
    }
}

/// Keys that the issuer withdrew are not trusted for long.
pub(super) async fn issuer_keys(app: Arc<App>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        app.tokens.refresh(app.core.clock.now()).await;
        stop.run_until_cancelled(pause(&app, ISSUER_PAUSE_MS)).await;
    }
}

/// Follows the database server's clock, so that all processes compare deadlines with one.
pub(super) async fn clock_keeping(app: Arc<App>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        follow_server_clock(&app).await;
        stop.run_until_cancelled(pause(&app, CLOCK_PAUSE_MS)).await;
    }
}

async fn pause(app: &App, ms: i64) {
    app.core.clock.sleep_until(app.core.clock.now() + ms).await;
}

pub(super) async fn follow_server_clock(app: &App) {
    let before = app.core.clock.machine_now();
    match app.core.catalog.server_time().await {
        Ok(Some(server_now)) => app.core.clock.follow(server_now, before),
        Ok(None) => {}
        Err(error) => tracing::warn!(error = %error, "the database server's clock could not be read"),
    }
}
