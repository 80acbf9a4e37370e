//! Alerts and panels use only exposed metrics, and every metric of the contract is exposed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use harness::promtool::Promtool;
use reqwest::Client;
use serde_json::{Value, json};

use super::alerts::expressions;
use super::expression::{Parsed, parse};
use super::{deploy, read};
use crate::cli::program::{Place, Served};

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The metrics of the contract with their labels. Those with a tenant label appear with the first tenant.
const CONTRACT: [(&str, &str, &[&str]); 39] = [
    ("resource_orphaned_files_cleaned_total", "counter", &["tenant_id"]),
    ("resource_quota_refunded_bytes_total", "counter", &["tenant_id"]),
    ("resource_cleanup_failures_total", "counter", &["error_type"]),
    ("file_pipeline_status", "gauge", &["status"]),
    ("stuck_file_recovery_total", "counter", &["action"]),
    ("stuck_file_detection_duration_seconds", "gauge", &[]),
    ("orphan_blobs_deleted_total", "counter", &[]),
    ("abandoned_uploads_deleted_total", "counter", &[]),
    ("cleanup_execution_duration_seconds", "gauge", &[]),
    ("dashboard_request_duration_seconds", "histogram", &["endpoint"]),
    ("s3_events_stored_total", "counter", &[]),
    ("s3_put_errors_total", "counter", &[]),
    ("dlq_events_expired_total", "counter", &[]),
    ("dlq_oldest_age_seconds", "gauge", &[]),
    ("pending_cleanups", "gauge", &["state"]),
    ("sweep_last_success_timestamp_seconds", "gauge", &["sweep"]),
    ("wharfinger_sweep_next_run_timestamp_seconds", "gauge", &["sweep"]),
    ("wharfinger_sweep_running", "gauge", &["sweep"]),
    ("wharfinger_sweep_last_run_failed", "gauge", &["sweep"]),
    ("stuck_files", "gauge", &[]),
    ("dlq_events_enqueued_total", "counter", &[]),
    ("dlq_events_reuploaded_total", "counter", &[]),
    ("dlq_events_dropped_total", "counter", &["reason"]),
    ("dlq_files_expired_total", "counter", &[]),
    ("dlq_files_current", "gauge", &[]),
    ("dlq_size_bytes", "gauge", &[]),
    ("quota_drift_bytes", "gauge", &[]),
    ("http_request_duration_seconds", "histogram", &["method", "route", "status"]),
    ("wharfinger_pipeline_queue_depth", "gauge", &["queue"]),
    ("wharfinger_dead_letters", "gauge", &[]),
    ("wharfinger_active_batches", "gauge", &[]),
    ("wharfinger_orphan_blobs", "gauge", &[]),
    ("wharfinger_missing_blobs", "gauge", &[]),
    ("wharfinger_outbox_lines", "gauge", &["destination"]),
    ("wharfinger_notification_deliveries_total", "counter", &["destination", "outcome"]),
    ("wharfinger_pipeline_stages_ended_total", "counter", &["outcome"]),
    ("wharfinger_broker_unknown_messages_total", "counter", &[]),
    ("wharfinger_rows_expired_total", "counter", &["table"]),
    ("wharfinger_outbox_lines_dropped_total", "counter", &["destination"]),
];

/// Counters of removed rows. All label values are exposed from the start.
const REMOVED_ROWS: [(&str, &str, &[&str]); 2] = [
    (
        "wharfinger_rows_expired_total",
        "table",
        &["deletion_log", "queue_tenants", "file_counts", "upload_batches", "file_history"],
    ),
    ("wharfinger_outbox_lines_dropped_total", "destination", &["broker", "archive"]),
];

fn client() -> Client {
    Client::builder().no_proxy().build().expect("a client")
}

/// One scrape: the type, the help and the samples of each metric.
#[derive(Default)]
struct Scrape {
    kinds: BTreeMap<String, String>,
    helps: BTreeMap<String, String>,
    /// By sample name, with suffixes like `_bucket`: the values of each label.
    labels: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
    values: BTreeMap<String, f64>,
}

impl Scrape {
    async fn of(server: &Served) -> Scrape {
        let answer = client().get(format!("{}/metrics", server.url)).send().await.expect("an answer");
        Scrape::read(&answer.text().await.expect("text"))
    }

    fn read(text: &str) -> Scrape {
        let mut scrape = Scrape::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let (what, name) = (words.next().expect("a word"), words.next().expect("a name"));
                let text = words.next().unwrap_or_default().to_owned();
                let into = if what == "TYPE" { &mut scrape.kinds } else { &mut scrape.helps };
                into.insert(name.to_owned(), text);
                continue;
            }
            let (sample, value) = line.rsplit_once(' ').expect("a value");
            scrape.values.insert(sample.to_owned(), value.parse().expect("a number"));
            let (name, labels) = sample.trim_end_matches('}').split_once('{').unwrap_or((sample, ""));
            let known = scrape.labels.entry(name.to_owned()).or_default();
            for (label, value) in labels.split("\",").filter_map(|pair| pair.split_once("=\"")) {
                known.entry(label.to_owned()).or_default().insert(value.trim_end_matches('"').to_owned());
            }
        }
        scrape
    }

    fn assert_exposes(&self, origin: &str, expression: &Parsed) {
        assert!(!expression.metrics.is_empty(), "{origin} uses no metric");
        // Prometheus adds these labels.
        let mut known: BTreeSet<&str> = BTreeSet::from(["instance", "job"]);
        for selector in expression.metrics.iter().filter(|selector| selector.metric != "up") {
            let Some(labels) = self.labels.get(&selector.metric) else {
                panic!("{origin}: {} is not exposed", selector.metric)
            };
            known.extend(labels.keys().map(String::as_str));
            for (label, values) in &selector.labels {
                let exposed = labels
                    .get(label)
                    .unwrap_or_else(|| panic!("{origin}: {} has no {label}", selector.metric));
                // The test does not cause every HTTP status.
                let is_http_status =
                    label == "status" && selector.metric.starts_with("http_request_duration_seconds");
                for value in values.iter().filter(|_| !is_http_status) {
                    let is_exposed = match value.strip_suffix(".*") {
                        Some(prefix) => exposed.iter().any(|exposed| exposed.starts_with(prefix)),
                        None => exposed.contains(value),
                    };
                    assert!(is_exposed, "{origin}: {label} is never {value:?}, only {exposed:?}");
                }
            }
        }
        for label in &expression.groupings {
            assert!(known.contains(label.as_str()), "{origin}: no metric has the label {label}");
        }
    }
}

/// A server with every engine, and an upload window that is short enough to expire in the test.
fn server_with_all_engines(place: &Place) -> Served {
    let (redis, vhost) =
        (harness::redis::shared().own_database(), harness::rabbitmq::shared().create_vhost());
    place.serve(&[
        ("WHARFINGER_QUOTA_URL", redis.as_str()),
        ("WHARFINGER_BROKER_URL", vhost.as_str()),
        ("WEBHOOK_URL", "https://receiver.invalid/hook"),
        ("WEBHOOK_SECRET", "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="),
        ("UPLOAD_WINDOW_MS", "1000"),
        ("UPLOAD_GRACE_MS", "100"),
        ("UPLOAD_MIN_RATE_BYTES", "1000000000"),
    ])
}

/// Repeats the scrape until the check is true.
async fn scrape_until(server: &Served, what: &str, check: impl Fn(&Scrape) -> bool) -> Scrape {
    let started = Instant::now();
    loop {
        let scrape = Scrape::of(server).await;
        if check(&scrape) {
            return scrape;
        }
        assert!(started.elapsed() < TIME_LIMIT, "time limit reached: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn send_requests(place: &Place, server: &Served) {
    let (user, operator) = (place.token("t", "u", "user"), place.token("ops", "op", "operator"));
    let client = client();
    let unconfirmed = json!({ "fileName": "unconfirmed", "size": 5 });
    let call = client.post(format!("{}/api/v2/files/init", server.url)).bearer_auth(&user).json(&unconfirmed);
    assert_eq!(call.send().await.expect("an answer").status(), 201);
    let call =
        client.post(format!("{}/api/v2/events", server.url)).bearer_auth(&user).json(&json!({ "a": 1 }));
    assert_eq!(call.send().await.expect("an answer").status(), 202);
    for (path, status) in [
        ("/", 200),
        ("/dashboard/style.css", 200),
        ("/docs/", 200),
        ("/healthz", 200),
        ("/no-such-place", 404),
        ("/readyz", 200),
        ("/api/v2/uploads/dashboard", 200),
    ] {
        let call = client.get(format!("{}{path}", server.url)).bearer_auth(&operator);
        assert_eq!(call.send().await.expect("an answer").status(), status, "{path}");
    }
}

fn panels() -> Vec<(String, String)> {
    let text = read(&deploy("grafana/dashboard.json"));
    let dashboard: Value = serde_json::from_str(&text).expect("a dashboard is JSON");
    for member in ["title", "uid", "schemaVersion", "templating"] {
        assert!(!dashboard[member].is_null(), "an import needs {member}");
    }
    assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource");
    let (mut ids, mut found) = (BTreeSet::new(), Vec::new());
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title").to_owned();
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title} has the id of another panel");
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title} has a fixed data source");
        for target in panel["targets"].as_array().expect("targets") {
            found.push((title.clone(), target["expr"].as_str().expect("an expression").to_owned()));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_and_panels_use_only_exposed_metrics() {
    let place = Place::new();
    let server = server_with_all_engines(&place);
    send_requests(&place, &server).await;
    let scrape = scrape_until(
        &server,
        "an upload is reclaimed, all sweeps have run, RabbitMQ is connected",
        |scrape| {
            let labels =
                |metric: &str, label: &str| scrape.labels.get(metric).and_then(|labels| labels.get(label));
            scrape.labels.contains_key("resource_quota_refunded_bytes_total")
                && scrape.labels.contains_key("resource_orphaned_files_cleaned_total")
                && scrape.labels.contains_key("wharfinger_broker_up")
                && labels("sweep_last_success_timestamp_seconds", "sweep")
                    .is_some_and(|sweeps| sweeps.len() == 6)
                && labels("http_request_duration_seconds_count", "route")
                    .is_some_and(|r| r.contains("/metrics"))
        },
    )
    .await;

    let (rules, panels) = (expressions(&read(&deploy("prometheus/rules.yml"))), panels());
    assert!(rules.len() > 20 && panels.len() > 40, "{} rules, {} panels", rules.len(), panels.len());
    for (origin, expression) in rules.iter().chain(&panels) {
        scrape.assert_exposes(origin, &parse(expression));
    }
    // Every exposed metric also has a panel.
    let shown: BTreeSet<String> = panels
        .iter()
        .flat_map(|(_, expression)| parse(expression).metrics)
        .map(|selector| selector.metric)
        .collect();
    for (name, kind) in &scrape.kinds {
        let sample = if kind == "histogram" { format!("{name}_bucket") } else { name.clone() };
        assert!(shown.contains(&sample), "{name} is in no panel");
        assert!(scrape.helps.get(name).is_some_and(|help| help.len() > 5), "{name} has no help");
    }
    for (name, kind, labels) in CONTRACT {
        assert_eq!(scrape.kinds.get(name).map(String::as_str), Some(kind), "{name}");
        let sample = if kind == "histogram" { format!("{name}_count") } else { name.to_owned() };
        let exposed: Vec<&str> = scrape.labels[&sample].keys().map(String::as_str).collect();
        assert_eq!(exposed, labels, "{name}");
    }
}

/// `increase()` misses the first event if the first value of a series is not 0.
#[tokio::test(flavor = "multi_thread")]
async fn counters_start_at_zero() {
    let place = Place::new();
    let server = place.serve(&[]);
    let scrape = Scrape::of(&server).await;
    for (name, kind, labels) in CONTRACT {
        if kind == "counter" && !labels.contains(&"tenant_id") {
            let samples = scrape.values.iter().filter(|(sample, _)| sample.split('{').next() == Some(name));
            let values: Vec<f64> = samples.map(|(_, value)| *value).collect();
            assert!(!values.is_empty(), "{name} is missing");
            assert!(values.iter().all(|value| *value == 0.0), "{name} is not 0");
        } else if kind == "gauge" && !labels.contains(&"sweep") {
            assert!(scrape.kinds.contains_key(name), "{name} is missing");
        }
    }
    for (name, label, values) in REMOVED_ROWS {
        for value in values {
            let sample = format!("{name}{{{label}=\"{value}\"}}");
            assert_eq!(scrape.values.get(&sample), Some(&0.0), "{sample}");
        }
    }
}

#[test]
fn promtool_accepts_the_expression_of_every_panel() {
    let rules: String = panels()
        .iter()
        .enumerate()
        .map(|(at, (_, expression))| {
            let expression = expression.replace("$__rate_interval", "5m");
            assert!(!expression.contains('$'), "{expression} has a variable");
            // A JSON string is also a YAML string.
            format!("      - record: panel:{at}\n        expr: {}\n", json!(expression))
        })
        .collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("panels.yml");
    std::fs::write(&file, format!("groups:\n  - name: panels\n    rules:\n{rules}")).expect("written");
    Promtool::find_or_unpack().expect("promtool").check_rules(&file).expect("expressions of Prometheus");
}
