//! The background loops. Each loop sleeps until something is due, or polls. On stop, it finishes its current item and
//! starts no other.

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
use crate::pipeline::stage_workers::{SEEN_EVERY_MS, see_own_stages};
use crate::quota::refunds;
use crate::roles::ProcessRole;
use crate::store::{self, StoreState};
use crate::sweeps::{self, ReaperRun, Sweep};
use crate::uploads::init::CHECK_QUEUE;

/// Upper limits for each sleep, because another process may have enqueued something earlier.
const CHECK_PAUSE_MS_MAX: i64 = 5_000;
const REAPER_PAUSE_MS_MAX: i64 = 5_000;
const NOTIFICATION_PAUSE_MS_MAX: i64 = 5_000;
const ARCHIVE_PAUSE_MS_MAX: i64 = 5_000;
/// After a failed catalog call.
const ERROR_PAUSE_MS: i64 = 1_000;
const CLOCK_PAUSE_MS: i64 = 60_000;
/// How often a Redis that does not answer is tried again.
const REDIS_PAUSE: Duration = Duration::from_secs(1);
/// How often the connection to the broker is checked.
const BROKER_PAUSE: Duration = Duration::from_secs(10);
const RELAY_PAUSE: Duration = Duration::from_secs(2);
const REAPER_BATCH_WAIT: Duration = Duration::from_millis(50);
const ARCHIVE_BATCH_WAIT: Duration = Duration::from_millis(100);
const METRICS_PAUSE: Duration = Duration::from_secs(5);
const ISSUER_PAUSE_MS: i64 = 5 * 60_000;
const SERVICE_KEYS_PAUSE_MS: i64 = 15_000;
const COUNTER_PAUSE_MS: i64 = 3_600_000;
const VECTOR_COPIES_PAUSE_MS: i64 = 15 * 60_000;

pub(super) async fn delayed_checks(app: Arc<App>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let due_at = match run_overdue_checks(&app, &stop).await {
            Ok(due_at) => due_at,
            Err(error) => {
                tracing::warn!(job = CHECK_QUEUE, error = %error.with_cause(), "cannot run delayed checks");
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

/// Runs the checks that the broker did not deliver in time. Returns when to check again.
async fn run_overdue_checks(app: &App, stop: &CancellationToken) -> Result<Option<UnixMs>, VerbError> {
    checks::end_expired_leases(&app.core).await?;
    let grace_ms = app.broker.as_ref().map_or(0, Broker::delivery_grace_ms);
    let next = async || app.core.catalog.next_job_at(&[CHECK_QUEUE]).await;
    if next().await?.is_some_and(|at| at + grace_ms <= app.core.clock.now()) {
        checks::run_due(&app.uploads, stop).await?;
    }
    Ok(next().await?.map(|at| at + grace_ms))
}

/// Publishes delayed checks, and keeps track of whether the broker answers.
pub(super) async fn checks_to_broker(app: Arc<App>, stop: CancellationToken) {
    let Some(broker) = &app.broker else { return stop.cancelled().await };
    while !stop.is_cancelled() {
        broker.check_connection().await;
        let next_check = tokio::time::Instant::now() + BROKER_PAUSE;
        while !stop.is_cancelled() && tokio::time::Instant::now() < next_check {
            if let Err(error) = messages::relay(&app.core, broker).await {
                tracing::warn!(job = "checks to broker", error = %error, "cannot publish delayed checks to RabbitMQ, trying again");
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

pub(super) async fn wakeups_to_others(app: Arc<App>, stop: CancellationToken) {
    let Some(broker) = &app.broker else { return stop.cancelled().await };
    messages::send_wakeups(&app.core, broker, &stop).await;
}

pub(super) async fn wakeups_from_others(app: Arc<App>, stop: CancellationToken) {
    let Some(broker) = &app.broker else { return stop.cancelled().await };
    messages::receive_wakeups(&app.core, broker, &stop).await;
}

/// Runs the pending cleanups when they are due, or when it is woken.
pub(super) async fn reaper(app: Arc<App>, stop: CancellationToken) {
    let mut runs = ReaperRun::default();
    while !stop.is_cancelled() {
        let now = app.core.clock.now();
        let due_at = match app.core.catalog.next_cleanup_at().await {
            Ok(at) => at,
            Err(_) => Some(now + ERROR_PAUSE_MS),
        };
        if due_at.is_some_and(|at| at <= now) && runs.step(&app.core, &stop).await {
            // Deletes come in bursts: wait a moment, so that one batch takes many of them.
            tokio::time::sleep(REAPER_BATCH_WAIT).await;
            continue;
        }
        runs.pause(&app.core).await;
        // A cleanup that is due but was not claimed is leased by another process, or the catalog does not answer.
        let at = due_at.map_or(i64::MAX, |at| at.max(now + ERROR_PAUSE_MS)).min(now + REAPER_PAUSE_MS_MAX);
        tokio::select! {
            () = app.core.clock.sleep_until(at) => {}
            () = app.core.wakeups.cleanup.notified() => {}
            () = stop.cancelled() => {}
        }
    }
    runs.record(&app.core).await;
}

/// Runs one sweep on its schedule. Of several sweepers, the first to claim the lease runs it. The others check again at
/// the next scheduled time, or when the lease ends.
pub(super) async fn scheduled(app: Arc<App>, stop: CancellationToken, sweep: Sweep) {
    if let Err(error) = sweeps::apply_schedule(&app.core, sweep).await {
        tracing::warn!(job = sweep.name(), error = %error, "cannot apply a denser schedule now: it starts after the next run");
    }
    while !stop.is_cancelled() {
        let due = sweeps::run_if_due(&app.uploads, sweep, &stop).await;
        stop.run_until_cancelled(app.core.clock.sleep_until(due.again_at)).await;
    }
}

/// Delivers refunds to Redis, and checks whether a Redis that did not answer is back.
pub(super) async fn refunds(app: Arc<App>, stop: CancellationToken) {
    let Some(owner) = &app.quota.redis_owner else { return stop.cancelled().await };
    while !stop.is_cancelled() {
        owner.check_if_back().await;
        if let Err(error) = refunds::relay(&app.quota).await {
            tracing::warn!(job = "refunds", error = %error, "cannot deliver refunds to Redis");
        }
        tokio::select! {
            () = tokio::time::sleep(REDIS_PAUSE) => {}
            () = app.core.wakeups.refund.notified() => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Records that this process works on its stages.
pub(super) async fn stage_workers(app: Arc<App>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if let Err(error) = see_own_stages(&app.core).await {
            tracing::warn!(job = "stage workers", error = %error, "cannot record the stages of this process");
        }
        stop.run_until_cancelled(pause(&app, SEEN_EVERY_MS)).await;
    }
}

/// Copies vectors into the column of pgvector: those that were written before the column existed, or by a process that
/// does not use it.
pub(super) async fn vector_copies(app: Arc<App>, stop: CancellationToken) {
    while !stop.is_cancelled() && app.core.catalog.has_pgvector() {
        if let Err(error) = search::copy_vectors(&app.core, &stop).await {
            tracing::warn!(job = "vector copies", error = %error.with_cause(), "cannot copy vectors");
        }
        stop.run_until_cancelled(pause(&app, VECTOR_COPIES_PAUSE_MS)).await;
    }
    stop.cancelled().await;
}

/// Sends notifications to the webhook and alerts to Slack.
pub(super) async fn notifications(app: Arc<App>, stop: CancellationToken) {
    if !app.notifier.is_needed() {
        return stop.cancelled().await;
    }
    while !stop.is_cancelled() {
        let sent = async {
            notify::relay(&app.notifier, &stop).await?;
            notify::next_at(&app.notifier).await
        };
        let now = app.core.clock.now();
        let due_at = sent.await.unwrap_or_else(|error| {
            tracing::warn!(job = "notifications", error = %error, "cannot send notifications");
            None
        });
        // A line that is due but was not claimed is leased by another process, or waits for an earlier line.
        let at =
            due_at.map_or(i64::MAX, |at| at.max(now + ERROR_PAUSE_MS)).min(now + NOTIFICATION_PAUSE_MS_MAX);
        tokio::select! {
            () = app.core.clock.sleep_until(at) => {}
            () = app.core.wakeups.notification.notified() => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Archives file events. Lines that other processes wrote are found by polling. If `AUDIT_TO_INGEST` was switched off, the
/// lines that still wait are archived, then the loop is idle.
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
            tracing::warn!(job = "archive", error = %error, "cannot archive events");
            None
        });
        let now = app.core.clock.now();
        // A line that is due but was not claimed is leased by another process, or ingest has not started yet.
        let at = due_at.map_or(i64::MAX, |at| at.max(now + ERROR_PAUSE_MS)).min(now + ARCHIVE_PAUSE_MS_MAX);
        tokio::select! {
            () = app.core.clock.sleep_until(at) => {}
            () = app.core.wakeups.archive.notified() => {}
            () = stop.cancelled() => {}
        }
        // Events come in bursts, and many of them cost hardly more than one.
        stop.run_until_cancelled(tokio::time::sleep(ARCHIVE_BATCH_WAIT)).await;
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

/// Checks whether the store still belongs to this catalog. Sweepers also raise the counter in both: a catalog from a
/// backup is recognized by its lower counter.
pub(super) async fn store_mark(app: Arc<App>, stop: CancellationToken) {
    while stop.run_until_cancelled(pause(&app, COUNTER_PAUSE_MS)).await.is_some() {
        let state = match store::check(&app.core.catalog, &app.core.store_ref()).await {
            Ok(StoreState::Ours) if app.roles.has(ProcessRole::Sweeper) => {
                store::raise_counter(&app.core.catalog, &app.core.store_ref()).await
            }
            other => other,
        };
        if let Ok(state) = &state {
            app.core.store_is_ours.store(*state == StoreState::Ours, Ordering::Relaxed);
        }
        match state {
            Ok(StoreState::Ours) => {}
            Ok(other) => {
                tracing::error!(state = other.as_str(), "the store and the catalog do not belong together")
            }
            Err(error) => tracing::warn!(error = %error, "cannot read or write the marker of the store"),
        }
    }
}

/// The recorder keeps every histogram sample until it is drained. Without a scraper only this drains it.
pub(super) async fn metrics_upkeep(_app: Arc<App>, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(METRICS_PAUSE)).await.is_some() {
        crate::telemetry::prometheus().run_upkeep();
    }
}

/// Reads the issuer's keys again, so that withdrawn keys stop working.
pub(super) async fn issuer_keys(app: Arc<App>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        app.tokens.refresh(app.core.clock.now()).await;
        stop.run_until_cancelled(pause(&app, ISSUER_PAUSE_MS)).await;
    }
}

/// Reads the service keys again, so that revoked ones stop working, and writes when they were last used.
pub(super) async fn service_keys(app: Arc<App>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        app.service_keys.refresh().await;
        stop.run_until_cancelled(pause(&app, SERVICE_KEYS_PAUSE_MS)).await;
        // Also at the end: a process may live shorter than a pause.
        if let Err(error) = app.service_keys.record_uses().await {
            tracing::warn!(error = %error, "cannot write when service keys were last used");
        }
    }
}

/// Follows the database server's clock, so that all processes compare deadlines with the same clock.
pub(super) async fn follow_clock(app: Arc<App>, stop: CancellationToken) {
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
        Err(error) => tracing::warn!(error = %error, "cannot read the clock of the database server"),
    }
}
