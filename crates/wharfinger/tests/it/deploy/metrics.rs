//! Alerts and panels ask for what the program really exposes, and it exposes all that is promised.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use harness::promtool::Promtool;
use reqwest::Client;
use serde_json::{Value, json};

use super::alerts::expressions;
use super::expression::{Named, named};
use super::{deploy, read};
use crate::cli::program::{Place, Served};

const PATIENCE: Duration = Duration::from_secs(60);

/// The names that are fixed, with the labels of each; with a tenant's nothing is known before a tenant comes.
const PROMISED: [(&str, &str, &[&str]); 38] = [
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
    ("sweep_next_run_timestamp_seconds", "gauge", &["sweep"]),
    ("sweep_running", "gauge", &["sweep"]),
    ("sweep_last_run_failed", "gauge", &["sweep"]),
    ("stuck_files", "gauge", &[]),
    ("dlq_events_enqueued_total", "counter", &[]),
    ("dlq_events_reuploaded_total", "counter", &[]),
    ("dlq_events_dropped_total", "counter", &["reason"]),
    ("dlq_files_expired_total", "counter", &[]),
    ("dlq_files_current", "gauge", &[]),
    ("dlq_size_bytes", "gauge", &[]),
    ("quota_drift_bytes", "gauge", &[]),
    ("http_request_duration_seconds", "histogram", &["method", "route", "status"]),
    ("pipeline_queue_depth", "gauge", &["queue"]),
    ("dead_letters", "gauge", &[]),
    ("active_batches", "gauge", &[]),
    ("orphan_blobs", "gauge", &[]),
    ("missing_blobs", "gauge", &[]),
    ("outbox_lines", "gauge", &["destination"]),
    ("notification_deliveries_total", "counter", &["destination", "outcome"]),
    ("pipeline_stages_ended_total", "counter", &["outcome"]),
    ("wharfinger_rows_expired_total", "counter", &["table"]),
    ("wharfinger_outbox_lines_dropped_total", "counter", &["destination"]),
];

/// What removes rows for good: each kind from the beginning.
const EXPIRING: [(&str, &str, &[&str]); 2] = [
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

/// One scrape: of each metric its kind, its help, and its samples.
#[derive(Default)]
struct Scrape {
    kinds: BTreeMap<String, String>,
    helps: BTreeMap<String, String>,
    /// By name as it is written, `_bucket` and the like included: label by label the values that are there.
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
                let said = words.next().unwrap_or_default().to_owned();
                let into = if what == "TYPE" { &mut scrape.kinds } else { &mut scrape.helps };
                into.insert(name.to_owned(), said);
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

    fn assert_answers(&self, origin: &str, asked: &Named) {
        assert!(!asked.metrics.is_empty(), "{origin} asks for nothing");
        // What Prometheus itself puts there.
        let mut known: BTreeSet<&str> = BTreeSet::from(["instance", "job"]);
        for picked in asked.metrics.iter().filter(|picked| picked.metric != "up") {
            let Some(labels) = self.labels.get(&picked.metric) else {
                panic!("{origin}: {} is not exposed", picked.metric)
            };
            known.extend(labels.keys().map(String::as_str));
            for (label, values) in &picked.labels {
                let there =
                    labels.get(label).unwrap_or_else(|| panic!("{origin}: {} has no {label}", picked.metric));
                // Not every answer that a call may give was given.
                let is_answer =
                    label == "status" && picked.metric.starts_with("http_request_duration_seconds");
                for value in values.iter().filter(|_| !is_answer) {
                    let is_there = match value.strip_suffix(".*") {
                        Some(beginning) => there.iter().any(|there| there.starts_with(beginning)),
                        None => there.contains(value),
                    };
                    assert!(is_there, "{origin}: {label} is never {value:?}, but {there:?}");
                }
            }
        }
        for label in &asked.groupings {
            assert!(known.contains(label.as_str()), "{origin}: nothing has the label {label}");
        }
    }
}

/// A server with every engine, of which everything that is counted by tenant has happened once.
fn server_with_all(place: &Place) -> Served {
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

/// Asks until the scrape is as it should be.
async fn scrape_until(server: &Served, what: &str, is_so: impl Fn(&Scrape) -> bool) -> Scrape {
    let started = Instant::now();
    loop {
        let scrape = Scrape::of(server).await;
        if is_so(&scrape) {
            return scrape;
        }
        assert!(started.elapsed() < PATIENCE, "never came about: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn use_it(place: &Place, server: &Served) {
    let (user, operator) = (place.token("t", "u", "user"), place.token("ops", "op", "operator"));
    let client = client();
    let forgotten = json!({ "fileName": "forgotten", "size": 5 });
    let call = client.post(format!("{}/api/v2/files/init", server.url)).bearer_auth(&user).json(&forgotten);
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
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title} has another's id");
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title} is for any Prometheus");
        for target in panel["targets"].as_array().expect("targets") {
            found.push((title.clone(), target["expr"].as_str().expect("an expression").to_owned()));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_and_panels_ask_for_what_is_exposed() {
    let place = Place::new();
    let server = server_with_all(&place);
    use_it(&place, &server).await;
    let scrape =
        scrape_until(&server, "an upload is reclaimed, a sweep has run, RabbitMQ is asked", |scrape| {
            let labels =
                |metric: &str, label: &str| scrape.labels.get(metric).and_then(|labels| labels.get(label));
            scrape.labels.contains_key("resource_quota_refunded_bytes_total")
                && scrape.labels.contains_key("resource_orphaned_files_cleaned_total")
                && scrape.labels.contains_key("broker_up")
                && labels("sweep_last_success_timestamp_seconds", "sweep")
                    .is_some_and(|sweeps| sweeps.len() == 6)
                && labels("http_request_duration_seconds_count", "route")
                    .is_some_and(|r| r.contains("/metrics"))
        })
        .await;

    let (rules, panels) = (expressions(&read(&deploy("prometheus/rules.yml"))), panels());
    assert!(rules.len() > 20 && panels.len() > 40, "{} rules, {} panels", rules.len(), panels.len());
    for (origin, expression) in rules.iter().chain(&panels) {
        scrape.assert_answers(origin, &named(expression));
    }
    // The other way round: what is exposed is in a panel.
    let shown: BTreeSet<String> = panels
        .iter()
        .flat_map(|(_, expression)| named(expression).metrics)
        .map(|picked| picked.metric)
        .collect();
    for (name, kind) in &scrape.kinds {
        let written = if kind == "histogram" { format!("{name}_bucket") } else { name.clone() };
        assert!(shown.contains(&written), "{name} is in no panel");
        assert!(scrape.helps.get(name).is_some_and(|help| help.len() > 5), "{name} has no help");
    }
    for (name, kind, labels) in PROMISED {
        assert_eq!(scrape.kinds.get(name).map(String::as_str), Some(kind), "{name}");
        let sample = if kind == "histogram" { format!("{name}_count") } else { name.to_owned() };
        let there: Vec<&str> = scrape.labels[&sample].keys().map(String::as_str).collect();
        assert_eq!(there, labels, "{name}");
    }
}

/// `increase()` sees nothing of a series whose first value is not 0.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_not_happened_yet_is_zero() {
    let place = Place::new();
    let server = place.serve(&[]);
    let scrape = Scrape::of(&server).await;
    for (name, kind, labels) in PROMISED {
        if kind == "counter" && !labels.contains(&"tenant_id") {
            let samples = scrape.values.iter().filter(|(sample, _)| sample.split('{').next() == Some(name));
            let values: Vec<f64> = samples.map(|(_, value)| *value).collect();
            assert!(!values.is_empty(), "{name} is not there");
            assert!(values.iter().all(|value| *value == 0.0), "{name} has counted");
        } else if kind == "gauge" && !labels.contains(&"sweep") {
            assert!(scrape.kinds.contains_key(name), "{name} is not there");
        }
    }
    for (name, label, values) in EXPIRING {
        for value in values {
            let sample = format!("{name}{{{label}=\"{value}\"}}");
            assert_eq!(scrape.values.get(&sample), Some(&0.0), "{sample}");
        }
    }
}

#[test]
fn prometheus_understands_every_panel() {
    let rules: String = panels()
        .iter()
        .enumerate()
        .map(|(at, (_, expression))| {
            let expression = expression.replace("$__rate_interval", "5m");
            assert!(!expression.contains('$'), "{expression} has a variable");
            // JSON's strings are YAML's, too.
            format!("      - record: panel:{at}\n        expr: {}\n", json!(expression))
        })
        .collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("panels.yml");
    std::fs::write(&file, format!("groups:\n  - name: panels\n    rules:\n{rules}")).expect("written");
    Promtool::find_or_unpack().expect("promtool").check_rules(&file).expect("expressions of Prometheus");
}
