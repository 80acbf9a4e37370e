//! Gauges that are computed when the metrics are scraped, from the catalog and from this process.

use std::time::{Duration, Instant};

use metrics::{counter, gauge};
use serde_json::Value;
use wharfinger_catalog::{CatalogError, Destination, Scope, SweepState, Table};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::quota::Quota;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;

use crate::app::App;
use crate::ingest::Ingest;
use crate::notify::disabled_since;
use crate::pipeline::stage_workers;
use crate::sweeps::Sweep;
use crate::telemetry::metric;

/// A count that takes longer than this is not repeated at every scrape.
const SLOW_COUNT: Duration = Duration::from_millis(50);
/// A slow count is repeated after its duration times this.
const SLOW_COUNT_PAUSE: u32 = 200;

/// A tenant with more than this share of its limit is near it.
const NEAR_PERCENT: u64 = 90;
const TENANTS_PER_PAGE: usize = 500;
const PAGES_PER_SCRAPE: usize = 4;

pub async fn refresh(app: &App) -> Result<(), CatalogError> {
    // First: these need no database.
    if let Some(ingest) = app.ingest.get() {
        spool(ingest, app.core.clock.now());
    }
    let counts = app.core.catalog.status_counts(&Scope::All).await?;
    for status in Status::ALL.into_iter().filter(|status| *status != Status::Deleted) {
        gauge!("file_pipeline_status", "status" => status.as_str()).set(counts.of(status) as f64);
    }
    for stage in Stage::ALL {
        gauge!("wharfinger_pipeline_queue_depth", "queue" => stage.queue())
            .set(counts.waiting_for(stage) as f64);
    }
    let without_worker = stage_workers::without_worker(&app.core.catalog, app.core.clock.now()).await?;
    for stage in Stage::ALL {
        let is_alone = without_worker.iter().any(|waiting| waiting.stage == stage);
        gauge!("wharfinger_stage_without_worker", "stage" => stage.as_str())
            .set(f64::from(u8::from(is_alone)));
    }
    gauge!("wharfinger_dead_letters").set(counts.dead_letters as f64);
    gauge!("wharfinger_active_batches").set(app.core.catalog.count_active_batches(&Scope::All).await? as f64);
    let unreadable = app.core.catalog.count_unreadable().await?;
    for table in Table::ALL {
        let rows = unreadable.get(table.as_str()).copied().unwrap_or(0);
        gauge!("wharfinger_unreadable_rows", "table" => table.as_str()).set(rows as f64);
    }
    counter!("wharfinger_rows_expired_total", "table" => "file_history")
        .absolute(wharfinger_catalog::history_lines_cut());
    count_findings(app).await?;
    count_full_tenants(app).await?;
    for destination in Destination::ALL {
        let (waiting, _) = app.core.catalog.outbox_depth(destination).await?;
        gauge!("wharfinger_outbox_lines", "destination" => destination.as_str()).set(waiting as f64);
    }
    if let Some(webhook) = &app.notifier.webhook {
        let since = disabled_since(&app.core.catalog, webhook.endpoint()).await?;
        metric::webhook_disabled(since.is_some());
    }
    // From the catalog, because another process may have run the sweep.
    for sweep in app.core.catalog.sweeps().await? {
        let Some(known) = Sweep::named(&sweep.name) else { continue };
        if let Some(at) = sweep.last_success_at {
            metric::sweep_succeeded(known.name(), at);
        }
        if let Some(at) = sweep.next_run_at {
            gauge!("wharfinger_sweep_next_run_timestamp_seconds", "sweep" => known.name())
                .set(at as f64 / 1_000.0);
        }
        sweep_state(known.name(), sweep.lease_until > app.core.clock.now(), sweep.last_error.is_some());
        last_run(known, &sweep);
    }
    let cleanups = app.core.catalog.cleanup_counts(&Scope::All).await?;
    gauge!("pending_cleanups", "state" => "pending").set(cleanups.pending as f64);
    gauge!("pending_cleanups", "state" => "exhausted").set(cleanups.exhausted as f64);
    Ok(())
}

/// Counts tenants near their limit, page by page: a catalog of many tenants is counted once in several scrapes.
async fn count_full_tenants(app: &App) -> Result<(), CatalogError> {
    let state = || app.full_tenants.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let limit = app.core.settings.default_quota_bytes;
    let is_near = |quota: &Quota| {
        quota.used_bytes > 0
            && u128::from(quota.used_bytes) * 100 >= u128::from(quota.limit_bytes) * u128::from(NEAR_PERCENT)
    };
    for _ in 0..PAGES_PER_SCRAPE {
        let (after, before) = state().clone();
        let page = app.core.catalog.quotas(&after, TENANTS_PER_PAGE, limit).await?;
        let count = before + page.iter().filter(|(_, quota)| is_near(quota)).count() as u64;
        let Some((last, _)) = page.last() else {
            gauge!("wharfinger_tenants_near_quota").set(count as f64);
            *state() = (String::new(), 0);
            break;
        };
        *state() = (last.to_string(), count);
    }
    Ok(())
}

/// Slow counts are not repeated at every scrape.
async fn count_findings(app: &App) -> Result<(), CatalogError> {
    let count_at = || app.count_findings_at.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let started = Instant::now();
    if started < *count_at() {
        return Ok(());
    }
    let stuck = app.core.catalog.count_stuck(&Scope::All, app.core.clock.now()).await?;
    gauge!("stuck_files").set(stuck as f64);
    let orphans = app.core.catalog.orphans(&Scope::All, 0).await?;
    gauge!("wharfinger_orphan_blobs").set(orphans.count as f64);
    let missing = app.core.catalog.missing_blobs(&Scope::All, 0).await?;
    gauge!("wharfinger_missing_blobs").set(missing.count as f64);
    let took = started.elapsed();
    if took > SLOW_COUNT {
        *count_at() = started + took * SLOW_COUNT_PAUSE;
    }
    Ok(())
}

fn spool(ingest: &Ingest, now: UnixMs) {
    let status = ingest.spool_status();
    gauge!("dlq_files_current").set(status.files as f64);
    gauge!("dlq_size_bytes").set(status.bytes as f64);
    gauge!("wharfinger_dlq_size_bytes_max").set(ingest.spool_bytes_max() as f64);
    let oldest_age = status.oldest_unix.map_or(0, |unix| (now.div_euclid(1_000) - unix).max(0));
    gauge!("dlq_oldest_age_seconds").set(oldest_age as f64);
    gauge!("wharfinger_dlq_oldest_age_seconds_max").set(ingest.spool_age_ms_max() as f64 / 1_000.0);
    gauge!("wharfinger_ingest_store_up").set(f64::from(u8::from(ingest.store_is_up())));
    gauge!("wharfinger_ingest_memory_bytes_free").set(ingest.free_bytes() as f64);
}

fn sweep_state(sweep: &'static str, is_running: bool, has_failed: bool) {
    gauge!("wharfinger_sweep_running", "sweep" => sweep).set(f64::from(u8::from(is_running)));
    gauge!("wharfinger_sweep_last_run_failed", "sweep" => sweep).set(f64::from(u8::from(has_failed)));
}

/// Gauges from the result of the last run, in whichever process it was.
fn last_run(sweep: Sweep, state: &SweepState) {
    let result = state.last_result.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let field = |field: &str| result.as_ref().and_then(|result| result[field].as_u64());
    match sweep {
        Sweep::QuotaSync => field("driftBytes").into_iter().for_each(metric::quota_drift),
        Sweep::OrphanCleanup => {
            field("executionTime")
                .and_then(|ms| i64::try_from(ms).ok())
                .into_iter()
                .for_each(metric::cleanup_took);
        }
        Sweep::StuckFiles => {
            let took = state.last_end_at.zip(state.last_start_at).map(|(end, start)| end - start);
            took.into_iter().for_each(metric::stuck_detection_took);
        }
        Sweep::BatchTimeout | Sweep::PendingCleanups | Sweep::UploadWindow => {}
    }
}
