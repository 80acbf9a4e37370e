//! Logs and metrics. Logs are JSON lines on standard error, each with the instance. They contain no token and no signed URL
//! (`tests/it/http/logs.rs`).

pub mod events;
pub mod traces;

use std::io;
use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Logs at this level, unless RUST_LOG is set.
pub fn log_to_stderr(level: &str, instance: &str) {
    // The RabbitMQ driver is silent: `checks::messages` logs connection problems in one line.
    let filter = crate::config::log_filter().unwrap_or_else(|| format!("{level},lapin=off"));
    // A second call (in tests) keeps the first subscriber.
    let _ = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(WithInstance::new(instance))
        .try_init();
}

/// Writes lines to standard error, with the instance as the first member of each JSON object.
struct WithInstance {
    /// `{"instance":"name",`
    start: String,
}

impl WithInstance {
    fn new(instance: &str) -> WithInstance {
        WithInstance { start: format!("{{\"instance\":{},", serde_json::Value::from(instance)) }
    }
}

struct LineWriter<'w>(&'w str);

impl<'w> MakeWriter<'w> for WithInstance {
    type Writer = LineWriter<'w>;

    fn make_writer(&'w self) -> Self::Writer {
        LineWriter(&self.start)
    }
}

impl io::Write for LineWriter<'_> {
    /// The subscriber writes each line by one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let whole = match line.strip_prefix(b"{") {
            Some(rest) => [self.0.as_bytes(), rest].concat(),
            None => line.to_vec(),
        };
        io::stderr().lock().write_all(&whole)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

const REQUEST_BUCKETS_S: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// The metrics recorder of the process, installed at the first call.
pub fn prometheus() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let buckets = Matcher::Suffix("_request_duration_seconds".into());
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(buckets, &REQUEST_BUCKETS_S)
            .expect("the buckets are not empty")
            .build_recorder();
        let handle = recorder.handle();
        // Fails only if another recorder is already installed. Then this one stays empty.
        let _ = metrics::set_global_recorder(recorder);
        metric::describe();
        metric::begin();
        events::describe();
        handle
    })
}

pub mod metric {
    //! The metrics by name, with a bounded number of labels. Those of events are in `telemetry::events`.

    use std::collections::BTreeSet;
    use std::sync::Mutex;
    use std::time::Duration;

    use axum::http::{Method, StatusCode};
    use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
    use wharfinger_catalog::Destination;
    use wharfinger_lifecycle::UnixMs;
    use wharfinger_lifecycle::id::TenantId;
    use wharfinger_lifecycle::stage_end::CompletionResult;

    const TENANT_LABELS_MAX: usize = 200;
    const BROKER_UNKNOWN_MESSAGES: &str = "wharfinger_broker_unknown_messages_total";

    pub(super) fn describe() {
        describe_counter!(
            "resource_orphaned_files_cleaned_total",
            "Uploads that were not confirmed in time and were removed"
        );
        describe_counter!(
            "resource_quota_refunded_bytes_total",
            "Bytes of uploads that were not confirmed in time, returned to tenants' quotas"
        );
        describe_counter!(
            "resource_cleanup_failures_total",
            "Checks of uploads and deletes in the store that failed, by kind of error"
        );
        describe_counter!(
            "wharfinger_hook_objects_total",
            "Objects that a store reported to /hooks/object-created, by outcome"
        );
        describe_gauge!("file_pipeline_status", "Files in each status");
        describe_counter!(
            "wharfinger_quota_rebuilds_total",
            "Rebuilds of a tenant's quota counter in Redis, by reason"
        );
        describe_gauge!(
            "wharfinger_quota_redis_away",
            "1 while the Redis of WHARFINGER_QUOTA_URL does not answer this process"
        );
        describe_counter!(
            BROKER_UNKNOWN_MESSAGES,
            "Messages of the broker that this process could not read and moved to the dead letters"
        );
        describe_gauge!("wharfinger_broker_up", "0 while the broker does not answer this process, else 1");
        describe_gauge!(
            "quota_drift_bytes",
            "The difference of quota counters and files at the last quota sync"
        );
        describe_gauge!("wharfinger_outbox_lines", "Outbox lines that wait to be sent, by destination");
        describe_counter!(
            "wharfinger_pipeline_stages_ended_total",
            "Finished attempts of pipeline stages, by outcome"
        );
        describe_counter!(
            "wharfinger_notification_deliveries_total",
            "Attempts to send to the webhook and Slack, by destination and outcome"
        );
        describe_gauge!(
            "wharfinger_webhook_disabled",
            "1 if the webhook is disabled, because its receiver answered 410 Gone"
        );
        describe_counter!("orphan_blobs_deleted_total", "Objects without a row that were deleted");
        describe_gauge!(
            "wharfinger_orphan_blobs",
            "Objects without a row that were found and not deleted yet"
        );
        describe_gauge!(
            "wharfinger_missing_blobs",
            "Objects of live files that the last scan did not find in the store"
        );
        describe_gauge!(
            "stuck_files",
            "Files in the pipeline without progress for too long, including those that wait in a queue"
        );
        describe_counter!("stuck_file_recovery_total", "Recoveries of stuck files, by action");
        describe_gauge!(
            "stuck_file_detection_duration_seconds",
            "Duration of the last check for stuck files"
        );
        describe_gauge!("pending_cleanups", "Deletes in the store that wait, by state");
        describe_gauge!("sweep_last_success_timestamp_seconds", "When each sweep last succeeded");
        describe_gauge!("wharfinger_sweep_running", "1 while a process runs this sweep");
        describe_gauge!("wharfinger_sweep_last_run_failed", "1 if the last run of this sweep had errors");
        describe_counter!(
            "abandoned_uploads_deleted_total",
            "Unconfirmed uploads that only the orphan cleanup found and removed"
        );
        describe_gauge!("cleanup_execution_duration_seconds", "Duration of the last orphan cleanup");
        describe_histogram!(
            "dashboard_request_duration_seconds",
            "Time to answer the dashboard's calls, by endpoint"
        );
        describe_gauge!("wharfinger_pipeline_queue_depth", "Files that wait for a stage, by queue");
        describe_gauge!(
            "wharfinger_stage_without_worker",
            "1 while files have waited for this stage for a minute and no worker asks for its jobs"
        );
        describe_gauge!("wharfinger_dead_letters", "Failed jobs that wait for a redrive");
        describe_gauge!("wharfinger_tenants_near_quota", "Tenants that use at least 90 % of their limit");
        describe_gauge!("wharfinger_active_batches", "Batches that have not ended");
        describe_gauge!("wharfinger_unreadable_rows", "Rows that cannot be read and are skipped, by table");
        describe_counter!(
            "wharfinger_rows_expired_total",
            "Rows removed at the end of their retention, by table"
        );
        describe_counter!(
            "wharfinger_outbox_lines_dropped_total",
            "Outbox lines removed unsent because they were too old, by destination. For the archive these are lost events"
        );
        describe_gauge!("wharfinger_sweep_next_run_timestamp_seconds", "When each sweep is due next");
        describe_histogram!("http_request_duration_seconds", "Time to answer, by route, method and status");
    }

    /// Tables whose rows are removed at the end of their retention.
    const EXPIRING_TABLES: [&str; 6] =
        ["deletion_log", "audit_log", "queue_tenants", "file_counts", "upload_batches", "file_history"];
    /// Destinations whose old lines are removed unsent.
    const EXPIRING_DESTINATIONS: [Destination; 2] = [Destination::Broker, Destination::Archive];
    const RECOVERIES: [&str; 2] = ["reEnqueued", "permanentlyFailed"];
    const CLEANUP_ERRORS: [&str; 3] = ["unavailable", "refused", "internal"];
    /// The names of `quota::rebuild::RebuildReason` (test `every_reason_is_a_label_of_the_metric`).
    pub(crate) const REBUILD_REASONS: [&str; 6] = ["lost", "moved", "back", "doubt", "full", "sync"];
    const HOOK_OUTCOMES: [&str; 5] = ["confirmed", "repeated", "refused", "unknown", "failed"];
    const STAGE_OUTCOMES: [&str; 5] = ["done", "retried", "failed", "quarantined", "lease_lost"];

    /// Starts the counters at 0: `increase()` in an alert needs a first value. Labels of tenants are not known yet.
    pub(super) fn begin() {
        for name in ["orphan_blobs_deleted_total", "abandoned_uploads_deleted_total", BROKER_UNKNOWN_MESSAGES]
        {
            counter!(name).increment(0);
        }
        for action in RECOVERIES {
            counter!("stuck_file_recovery_total", "action" => action).increment(0);
        }
        for error_type in CLEANUP_ERRORS {
            counter!("resource_cleanup_failures_total", "error_type" => error_type).increment(0);
        }
        for outcome in HOOK_OUTCOMES {
            counter!("wharfinger_hook_objects_total", "outcome" => outcome).increment(0);
        }
        for outcome in STAGE_OUTCOMES {
            counter!("wharfinger_pipeline_stages_ended_total", "outcome" => outcome).increment(0);
        }
        for reason in REBUILD_REASONS {
            counter!("wharfinger_quota_rebuilds_total", "reason" => reason).increment(0);
        }
        for destination in [Destination::Webhook, Destination::Slack] {
            for outcome in Delivery::ALL {
                count_deliveries(destination, outcome, 0);
            }
        }
        for table in EXPIRING_TABLES {
            rows_expired(table, 0);
        }
        for destination in EXPIRING_DESTINATIONS {
            outbox_lines_dropped(destination, 0);
        }
        stuck_detection_took(0);
        cleanup_took(0);
        quota_drift(0);
    }

    /// The first tenants get a label each, all others share one, so that a scrape stays small.
    fn tenant_label(tenant: &TenantId) -> String {
        static KNOWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if known.contains(tenant.as_str()) || known.len() < TENANT_LABELS_MAX {
            known.insert(tenant.to_string());
            tenant.to_string()
        } else {
            "other".to_owned()
        }
    }

    pub fn orphan_cleaned(tenant: &TenantId) {
        counter!("resource_orphaned_files_cleaned_total", "tenant_id" => tenant_label(tenant)).increment(1);
    }

    pub fn quota_refunded(tenant: &TenantId, bytes: u64) {
        counter!("resource_quota_refunded_bytes_total", "tenant_id" => tenant_label(tenant)).increment(bytes);
    }

    pub fn hook_event(outcome: &'static str) {
        counter!("wharfinger_hook_objects_total", "outcome" => outcome).increment(1);
    }

    pub fn quota_rebuilt(reason: &'static str) {
        counter!("wharfinger_quota_rebuilds_total", "reason" => reason).increment(1);
    }

    pub fn redis_away(is_away: bool) {
        gauge!("wharfinger_quota_redis_away").set(f64::from(u8::from(is_away)));
    }

    pub fn broker_up(is_up: bool) {
        gauge!("wharfinger_broker_up").set(f64::from(u8::from(is_up)));
    }

    /// A message was moved to the dead letters.
    pub fn broker_unknown_message() {
        counter!(BROKER_UNKNOWN_MESSAGES).increment(1);
    }

    pub fn stage_ended(ended: CompletionResult) {
        let outcome = match ended {
            CompletionResult::Next(_) | CompletionResult::Ready => "done",
            CompletionResult::Retried => "retried",
            CompletionResult::Failed => "failed",
            CompletionResult::Quarantined => "quarantined",
            CompletionResult::LeaseLost => "lease_lost",
        };
        counter!("wharfinger_pipeline_stages_ended_total", "outcome" => outcome).increment(1);
    }

    pub fn stuck_recovered(action: &'static str) {
        counter!("stuck_file_recovery_total", "action" => action).increment(1);
    }

    pub fn stuck_detection_took(ms: i64) {
        gauge!("stuck_file_detection_duration_seconds").set(ms as f64 / 1_000.0);
    }

    pub fn quota_drift(bytes: u64) {
        gauge!("quota_drift_bytes").set(bytes as f64);
    }

    pub fn cleanup_failed(error_type: &'static str) {
        counter!("resource_cleanup_failures_total", "error_type" => error_type).increment(1);
    }

    pub fn rows_expired(table: &'static str, count: u64) {
        counter!("wharfinger_rows_expired_total", "table" => table).increment(count);
    }

    pub fn outbox_lines_dropped(destination: Destination, count: u64) {
        counter!("wharfinger_outbox_lines_dropped_total", "destination" => destination.as_str())
            .increment(count);
    }

    pub fn orphans_deleted(count: u64) {
        counter!("orphan_blobs_deleted_total").increment(count);
    }

    /// The outcome of sending a line to another system.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Delivery {
        Delivered,
        /// It will be retried.
        Failed,
        GivenUp,
        /// The receiver is disabled.
        Dropped,
    }

    impl Delivery {
        const ALL: [Delivery; 4] =
            [Delivery::Delivered, Delivery::Failed, Delivery::GivenUp, Delivery::Dropped];

        fn as_str(self) -> &'static str {
            match self {
                Delivery::Delivered => "delivered",
                Delivery::Failed => "failed",
                Delivery::GivenUp => "given_up",
                Delivery::Dropped => "dropped",
            }
        }
    }

    pub fn count_deliveries(destination: Destination, outcome: Delivery, count: u64) {
        let labels = [("destination", destination.as_str()), ("outcome", outcome.as_str())];
        counter!("wharfinger_notification_deliveries_total", &labels).increment(count);
    }

    pub fn webhook_disabled(is_disabled: bool) {
        gauge!("wharfinger_webhook_disabled").set(f64::from(u8::from(is_disabled)));
    }

    pub fn sweep_succeeded(sweep: &'static str, at: UnixMs) {
        gauge!("sweep_last_success_timestamp_seconds", "sweep" => sweep).set(at as f64 / 1_000.0);
    }

    pub fn abandoned_upload_deleted() {
        counter!("abandoned_uploads_deleted_total").increment(1);
    }

    pub fn cleanup_took(ms: i64) {
        gauge!("cleanup_execution_duration_seconds").set(ms as f64 / 1_000.0);
    }

    /// The server closed the connection.
    pub fn connection_closed(reason: &'static str) {
        counter!("wharfinger_connections_closed_total", "reason" => reason).increment(1);
    }

    pub fn request(route: &str, method: &Method, status: StatusCode, took: Duration) {
        let method = match *method {
            Method::GET => "GET",
            Method::HEAD => "HEAD",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::DELETE => "DELETE",
            Method::OPTIONS => "OPTIONS",
            _ => "other",
        };
        histogram!(
            "http_request_duration_seconds",
            "route" => route.to_owned(),
            "method" => method,
            "status" => status.as_str().to_owned(),
        )
        .record(took.as_secs_f64());
    }

    pub fn dashboard_request(route: &str, took: Duration) {
        let endpoint = match route {
            "/api/v2/uploads/dashboard" => "dashboard",
            "/api/v2/uploads/trend" => "trend",
            "/api/v2/uploads/stuck" => "stuck",
            "/api/v2/uploads/orphans" => "orphans",
            "/api/v2/uploads/stuck/{fileId}/retry" => "retry",
            "/api/v2/uploads/stuck/retry-all" => "retry-all",
            _ => return,
        };
        histogram!("dashboard_request_duration_seconds", "endpoint" => endpoint).record(took.as_secs_f64());
    }
}
