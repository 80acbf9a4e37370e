//! Tests of settings: valid values, and errors that name the key.

use wharfinger_lifecycle::retention::FailureRetention;

use super::*;

fn load(pairs: &[(&str, &str)]) -> Result<Settings, BadSetting> {
    Settings::from_values(&Values::for_tests(pairs))
}

#[test]
fn the_default_file_is_complete_and_valid() {
    let settings = load(&[]).expect("the defaults are valid");
    assert_eq!(settings.default_quota_bytes, 10 << 30);
    assert_eq!(settings.upload_window_ms, 3_600_000);
    assert!(settings.is_embedded());
}

#[test]
fn every_setting_is_in_the_example_files() {
    let example = include_str!("../../../../.env.example");
    let defaults = include_str!("../../../../wharfinger.default.toml");
    for setting in SETTINGS {
        assert!(example.contains(&format!("# {}=", setting.env)), "{} in .env.example", setting.env);
        let key = setting.key();
        assert!(
            defaults.lines().any(|line| line.trim_start_matches('#').starts_with(&format!("{key} = "))),
            "{key} in wharfinger.default.toml"
        );
    }
    for line in example.lines().filter_map(|line| line.strip_prefix("# ")?.split_once('=')) {
        if line.0.chars().all(|c| c.is_ascii_uppercase() || c == '_') {
            assert!(SETTINGS.iter().any(|setting| setting.env == line.0), "{} is a setting", line.0);
        }
    }
}

#[test]
fn an_invalid_value_is_reported_with_its_key() {
    for (name, value) in [
        ("UPLOAD_WINDOW_MS", "0"),
        ("UPLOAD_WINDOW_MS", "-5"),
        ("UPLOAD_WINDOW_MS", "soon"),
        ("UNCONFIRMED_LIMIT_PERCENT", "101"),
        ("DEFAULT_TENANT_QUOTA_BYTES", "10 parsecs"),
        ("UPLOAD_WINDOW_SCHEDULE", "every day"),
        ("UPLOAD_WINDOW_SCHEDULE", "0 0 31 2 *"),
        ("QUOTA_REDIS_TIMEOUT_MS", "0"),
        ("BATCH_TIMEOUT_MS", "0"),
        ("BATCH_TIMEOUT_SCHEDULE", "hourly"),
        ("WHARFINGER_DATABASE_URL", "mysql://x"),
        ("WHARFINGER_DATABASE_SCHEMA", "pg_ours"),
        ("WHARFINGER_DATABASE_SCHEMA", "Files; DROP"),
        ("WHARFINGER_BLOB_URL", "ftp://x"),
        ("WHARFINGER_JWT_SECRET", "short"),
        ("UPLOAD_WINDOW_POLICY", "maybe"),
        ("WHARFINGER_LISTEN", "8080"),
        ("UPLOAD_ALLOWED_TYPES", "image/*, pdf"),
        ("TENANT_REQUESTS_PER_SECOND", "-1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://me:hush@collector.example"),
        ("WEBHOOK_URL", "hooks.example.com"),
        ("WEBHOOK_URL", "https://127.0.0.1/hook"),
        ("WEBHOOK_ALLOW_PRIVATE", "yes"),
        ("SLACK_WEBHOOK_URL", "hooks.slack.com"),
        ("SLACK_WEBHOOK_URL", "http://[::1]/"),
        ("INGEST_ACK", "perhaps"),
        ("INGEST_BLOB_URL", "ftp://x"),
        ("INGEST_BLOB_URL", "s3://"),
        ("INGEST_BATCH_EVENTS", "0"),
        ("INGEST_BATCH_BYTES", "1"),
        ("INGEST_BATCH_BYTES", "128MiB"),
        ("INGEST_BATCH_AGE_MS", "0"),
        ("INGEST_MAX_INFLATED_BYTES", "lots"),
        ("INGEST_MEMORY_BYTES", "1MiB"),
        ("DLQ_MAX_AGE", "168"),
        ("AMQP_PREFIX", "amq.ours"),
        ("AMQP_PREFIX", "two words"),
        ("REDIS_PREFIX", "{shop}:"),
        ("REDIS_PREFIX", "shop :"),
        ("QUARANTINE_RETENTION_DAYS", "forever"),
        ("DLQ_MAX_AGE", "a week"),
        ("DLQ_MAX_SIZE_BYTES", "0"),
        ("AUDIT_TO_INGEST", "yes"),
    ] {
        let error = load(&[(name, value)]).expect_err(value);
        assert_eq!(error.name, name);
    }
}

#[test]
fn durations_may_have_units_and_schedules_may_have_quotes() {
    let settings = load(&[
        ("UPLOAD_WINDOW_MS", "1h30m"),
        ("UPLOAD_GRACE_MS", "0"),
        ("JOB_LEASE_MS", "1.5s"),
        ("DASHBOARD_CACHE_TTL", "2m"),
        ("FAILED_FILE_RETENTION_DAYS", "72h30m"),
        ("FAILED_FILE_WARNING_DAYS", "1"),
        ("QUARANTINE_RETENTION_DAYS", "10"),
        ("DLQ_MAX_AGE", "7d"),
        ("UPLOAD_WINDOW_SCHEDULE", "'*/7 * * * *'"),
        ("STUCK_RECOVERY_SCHEDULE", "\"30 */5 * * * *\""),
    ]);
    let settings = settings.expect("valid");
    assert_eq!((settings.upload_window_ms, settings.upload_grace_ms), (5_400_000, 0));
    assert_eq!((settings.job_lease_ms, settings.dashboard_cache_ms), (1_500, 120_000));
    let day = 86_400_000;
    let retention = |keep_ms| FailureRetention { keep_ms, warning_ms: day };
    assert_eq!(settings.sweeps.failures, retention(3 * day + 1_800_000));
    assert_eq!(settings.sweeps.quarantine, Some(retention(10 * day)));
    assert_eq!(settings.ingest.spool_age_ms_max, 7 * day);
    let start = crate::clock::to_utc(0);
    let next = |schedule: &croner::Cron| {
        schedule.find_next_occurrence(&start, false).expect("a time").timestamp_millis()
    };
    assert_eq!(next(&settings.sweeps.window_schedule), 7 * 60_000);
    assert_eq!(next(&settings.sweeps.stuck_schedule), 30_000);
    let never = load(&[("QUARANTINE_RETENTION_DAYS", "0")]).expect("valid");
    assert_eq!(never.sweeps.quarantine, None);
}

#[test]
fn an_invalid_duration_is_reported_with_an_example() {
    for (name, value, expected) in [
        (
            "UPLOAD_WINDOW_MS",
            "soon",
            "UPLOAD_WINDOW_MS: must be a duration from 1ms to 168h, for example 3600000 (milliseconds) or 1h, not \
             `soon`",
        ),
        ("DLQ_MAX_AGE", "168", "for example 168h, not `168`"),
        ("QUARANTINE_RETENTION_DAYS", "-1", "for example 90 (days) or 2160h, not `-1`"),
        ("UPLOAD_WINDOW_SCHEDULE", "'at noon'", "not a cron schedule like `*/5 * * * *`"),
    ] {
        let error = load(&[(name, value)]).expect_err(value).to_string();
        assert!(error.starts_with(name) && error.contains(expected), "{error}");
    }
}

#[test]
fn a_webhook_needs_a_valid_secret() {
    let url = ("WEBHOOK_URL", "https://hooks.example.com/wharf");
    let error = load(&[url]).expect_err("no secret");
    assert_eq!(error.name, "WEBHOOK_SECRET");
    for secret in ["hunter2", "whsec_", "whsec_c2hvcnQ=", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw,x"] {
        let error = load(&[url, ("WEBHOOK_SECRET", secret)]).expect_err(secret);
        assert_eq!(error.name, "WEBHOOK_SECRET");
        assert!(!error.to_string().contains(secret) || secret == "whsec_", "{error}");
    }
    let secret = ("WEBHOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let settings = load(&[url, secret]).expect("a webhook");
    assert!(settings.notify.webhook.is_some() && settings.notify.slack.is_none());
    assert!(!format!("{settings:?}").contains("MfKQ"), "no secret is shown");
    assert!(load(&[secret]).expect("a secret alone does nothing").notify.webhook.is_none());
    let private = ("WEBHOOK_URL", "http://127.0.0.1:9/hook");
    assert!(load(&[private, secret, ("WEBHOOK_ALLOW_PRIVATE", "true")]).is_ok());
}
