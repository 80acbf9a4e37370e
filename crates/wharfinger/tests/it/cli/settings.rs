//! Settings: each layer overrides the layer below, and a wrong setting stops the start with one line.

use serde_json::{Value, json};

use wharfinger::config::SETTINGS;

use super::program::{Place, Ran};

fn setting(ran: &Ran, name: &str) -> (String, String) {
    let [all] = &ran.json()[..] else { panic!("one object: {ran:?}") };
    let text = |member: &Value| member.as_str().expect("text").to_owned();
    (text(&all[name]["value"]), text(&all[name]["from"]))
}

#[test]
fn an_unknown_key_in_the_file_stops_every_command() {
    let place = Place::new();
    place.write("wharfinger.toml", "listn = \"127.0.0.1:9\"\n");
    for arguments in [
        &["serve"][..],
        &["config"],
        &["doctor"],
        &["migrate"],
        &["token", "--tenant", "t", "--user", "u"],
        &["quota", "show", "t"],
        &["put", "wharfinger.toml"],
    ] {
        place.run(arguments).expect_usage("listn");
    }
    assert!(!place.data().exists(), "nothing was created");
}

#[test]
fn an_unknown_name_in_the_environment_stops_the_start() {
    let place = Place::new();
    place.run_with(&[("WHARFINGER_BOGUS", "1")], &["serve"]).expect_usage("WHARFINGER_BOGUS");
    place.run_with(&[("WHARFINGER_BOGUS", "")], &["config"]).expect_usage("WHARFINGER_BOGUS");
    assert!(!place.data().exists());
}

#[test]
fn an_invalid_value_is_reported_with_its_key() {
    let place = Place::new();
    for (name, value) in [
        ("WHARFINGER_PUBLIC_URL", "files.example.com"),
        ("WHARFINGER_CORS_ORIGINS", "*"),
        ("WHARFINGER_CORS_ORIGINS", "https://ok.example,app.example.com"),
        ("WHARFINGER_CORS_ORIGINS", "https://app.example.com/"),
        ("WHARFINGER_DATABASE_URL", "mysql://x"),
        ("WHARFINGER_BLOB_URL", "ftp://x"),
        ("WHARFINGER_QUOTA_URL", "memcached://x"),
        ("QUOTA_WITHOUT_REDIS", "perhaps"),
        ("QUOTA_REDIS_TIMEOUT_MS", "30001"),
        ("WHARFINGER_BROKER_URL", "kafka://x"),
        ("AMQP_DELAYED_EXCHANGE", "1"),
        ("SHUTDOWN_DRAIN_MS", "soon"),
        ("WHARFINGER_JWT_SECRET", "short"),
        ("WHARFINGER_JWKS_FILE", "/nowhere/jwks.json"),
        ("DEFAULT_TENANT_QUOTA_BYTES", "-1"),
        ("MAX_FILE_SIZE_BYTES", "0"),
        ("UPLOAD_ALLOWED_TYPES", "image/png,pdf"),
        ("TENANT_REQUESTS_PER_SECOND", "-1"),
        ("UNCONFIRMED_LIMIT_PERCENT", "0"),
        ("UPLOAD_WINDOW_MS", "an hour"),
        ("UPLOAD_GRACE_MS", "-1"),
        ("UPLOAD_MIN_RATE_BYTES", "0"),
        ("UPLOAD_WINDOW_POLICY", "Rescue"),
        ("UPLOAD_WINDOW_SCHEDULE", "now and then"),
        ("IDEMPOTENCY_TTL_MS", "0"),
        ("DASHBOARD_CACHE_TTL", "-1"),
        ("TOMBSTONE_RETENTION_DAYS", "0.5"),
        ("CLEANUP_MAX_ATTEMPTS", "0"),
        ("CLEANUP_SWEEP_SCHEDULE", "* * *"),
        ("QUOTA_SYNC_SCHEDULE", "at night"),
        ("ORPHAN_CLEANUP_SCHEDULE", "daily"),
        ("ORPHAN_DELETE_LIMIT_PERCENT", "101"),
        ("ABANDONED_UPLOAD_THRESHOLD_MS", "0"),
        ("FAILED_FILE_RETENTION_DAYS", "a month"),
        ("FAILED_FILE_RETENTION_MS", "-1"),
        ("FAILED_FILE_WARNING_DAYS", "1.5"),
        ("FAILED_FILE_WARNING_MS", "soon"),
        ("MAX_STUCK_RETRIES", "-3"),
        ("STUCK_RECOVERY_SCHEDULE", "0 0 30 2 *"),
        ("BATCH_TIMEOUT_MS", "a day"),
        ("BATCH_TIMEOUT_SCHEDULE", "61 * * * *"),
        ("PIPELINE_STAGES", "scan,paint"),
        ("PIPELINE_STAGES", "scan,scan"),
        ("PIPELINE_STAGES", "chunk"),
        ("PIPELINE_STAGES", "extract,scan"),
        ("PIPELINE_STAGES", "extract,embed,chunk"),
        ("PIPELINE_BUILTIN_STAGES", "everything"),
        ("PIPELINE_CONCURRENCY", "0"),
        ("STUCK_FILE_THRESHOLD_MS", "0"),
        ("CLAMD_URL", "127.0.0.1:3310"),
        ("SCAN_HASHES_FILE", "/nowhere/hashes.txt"),
        ("EXTRACT_TEXT_BYTES_MAX", "0"),
        ("EXTRACT_MEMORY_BYTES_MAX", "1MiB"),
        ("EXTRACT_PAGES_MAX", "0"),
        ("EXTRACT_TIMEOUT_MS", "0"),
        ("CHUNK_UNIT", "words"),
        ("CHUNK_SIZE", "0"),
        ("CHUNK_OVERLAP", "1000"),
        ("EMBEDDINGS_URL", "api.example.com"),
        ("WEBHOOK_URL", "hooks.example.com"),
        ("WEBHOOK_URL", "http://169.254.169.254/"),
        ("WEBHOOK_ALLOW_PRIVATE", "1"),
        ("SLACK_WEBHOOK_URL", "slack"),
    ] {
        place.run_with(&[(name, value)], &["serve", "--listen", "127.0.0.1:0"]).expect_usage(name);
    }
    place.run_with(&[("WHARFINGER_LISTEN", "8080")], &["config"]).expect_usage("WHARFINGER_LISTEN");
    place.write("wharfinger.toml", "upload_window_ms = 0\n");
    place.run(&["serve"]).expect_usage("UPLOAD_WINDOW_MS");
    place.write("wharfinger.toml", "upload_window_ms = [1]\n");
    place.run(&["serve"]).expect_usage("upload_window_ms");
    place.write("wharfinger.toml", "= broken\n");
    place.run(&["serve"]).expect_usage("wharfinger.toml");
    place.run(&["--config", "nowhere.toml", "config"]).expect_usage("nowhere.toml");
}

#[test]
fn another_database_needs_a_configured_secret() {
    let place = Place::new();
    let url = "postgres://unknown@127.0.0.1:1/none";
    for arguments in [&["serve"][..], &["token", "--tenant", "t", "--user", "u"]] {
        let ran = place.run_with(&[("WHARFINGER_DATABASE_URL", url)], arguments);
        ran.expect_usage("WHARFINGER_JWT_SECRET");
    }
}

#[test]
fn flags_override_the_environment_the_file_and_the_defaults() {
    let place = Place::new();
    let show = |environment: &[(&str, &str)], arguments: &[&str]| {
        place.run_with(environment, &[arguments, &["config", "--json"]].concat()).expect(0)
    };
    let name = "WHARFINGER_DATA_DIR";
    let (value, from) = setting(&show(&[], &[]), name);
    assert_eq!((value.as_str(), from.as_str()), ("./wharfinger-data", "the defaults"));
    place.write("wharfinger.toml", "data_dir = \"./from-file\"\nupload_window_ms = 1000\n");
    let (value, from) = setting(&show(&[], &[]), name);
    assert_eq!((value.as_str(), from.as_str()), ("./from-file", "wharfinger.toml"));
    let environment = [(name, "./from-environment")];
    let (value, from) = setting(&show(&environment, &[]), name);
    assert_eq!((value.as_str(), from.as_str()), ("./from-environment", "the environment"));
    let ran = show(&environment, &["--data-dir", "./from-flag"]);
    assert_eq!(setting(&ran, name), ("./from-flag".to_owned(), "a flag".to_owned()));
    assert_eq!(setting(&ran, "UPLOAD_WINDOW_MS").0, "1000", "a flag hides only its own setting");
    // Compose files pass an unset variable as an empty one.
    assert_eq!(setting(&show(&[(name, "")], &[]), name).1, "wharfinger.toml");

    place.write("elsewhere.toml", "data_dir = \"./from-elsewhere\"\n");
    let ran = show(&[], &["--config", "elsewhere.toml"]);
    assert_eq!(setting(&ran, name).0, "./from-elsewhere");
    assert_eq!(setting(&ran, "UPLOAD_WINDOW_MS").0, "3600000", "the other file is not read");
    let plain = place.run(&["config"]).expect(0).stdout;
    assert!(
        plain.lines().any(|line| line.starts_with("UPLOAD_WINDOW_MS ") && line.contains("1000")),
        "{plain}"
    );
}

#[test]
fn config_shows_durations_and_schedules_as_they_are_in_force() {
    let place = Place::new();
    let environment = [
        ("UPLOAD_WINDOW_MS", "1h30m"),
        ("DASHBOARD_CACHE_TTL", "2m"),
        ("QUARANTINE_RETENTION_DAYS", "36h"),
        ("DLQ_MAX_AGE", "7d"),
        ("ORPHAN_CLEANUP_SCHEDULE", "'30 4 * * *'"),
    ];
    let ran = place.run_with(&environment, &["config", "--json"]).expect(0);
    for (name, value) in [
        ("UPLOAD_WINDOW_MS", "5400000"),
        ("DASHBOARD_CACHE_TTL", "120"),
        ("QUARANTINE_RETENTION_DAYS", "36h"),
        ("DLQ_MAX_AGE", "168h"),
        ("ORPHAN_CLEANUP_SCHEDULE", "30 4 * * *"),
        ("QUOTA_SYNC_SCHEDULE", "30 2 * * *"),
    ] {
        assert_eq!(setting(&ran, name).0, value, "{name}");
    }
}

#[test]
fn no_secret_is_ever_shown() {
    let place = Place::new();
    for (name, value, secret) in [
        ("WHARFINGER_JWT_SECRET", "correct-horse-battery-staple-and-more", "horse"),
        ("WHARFINGER_JWT_SECRET", "correct://horse-battery-staple-and-more", "horse"),
        ("WHARFINGER_JWT_SECRET", "correct-horse-battery-staple-and-more:", "horse"),
        ("WHARFINGER_DATABASE_URL", "postgres://app:horse@db.example/wharf", "horse"),
        ("WHARFINGER_DATABASE_URL", "postgres://app:ho@rse@db.example/wharf", "rse@"),
        ("WHARFINGER_DATABASE_URL", "postgres://db.example/wharf?user=app&password=horse", "horse"),
        (
            "WHARFINGER_DATABASE_URL",
            "postgres://app@db.example/wharf?sslmode=require&password=horse&x=y",
            "horse",
        ),
        ("SLACK_WEBHOOK_URL", "https://hooks.slack.com/services/T0/B0/horse", "horse"),
        ("WEBHOOK_SECRET", "whsec_horseRWtOrseRWtOrseRWtOrseRWtOrs", "horse"),
    ] {
        let environment = [(name, value)];
        for arguments in [&["config"][..], &["config", "--json"]] {
            let ran = place.run_with(&environment, arguments).expect(0);
            assert!(!ran.stdout.contains(secret), "{value} in {}", ran.stdout);
            assert!(ran.stdout.contains("********"), "{}", ran.stdout);
        }
    }
    // A secret can be the user name, the fragment or a query value. No command and no error may show it.
    for setting in
        SETTINGS.iter().filter(|setting| setting.env.contains("URL") || setting.env.contains("ENDPOINT"))
    {
        let scheme = match setting.env {
            "WHARFINGER_DATABASE_URL" => "postgres",
            "WHARFINGER_QUOTA_URL" => "redis",
            "WHARFINGER_BROKER_URL" => "amqp",
            "WHARFINGER_BLOB_URL" | "INGEST_BLOB_URL" => "s3",
            "CLAMD_URL" => "tcp",
            _ => "https",
        };
        let value = format!("{scheme}://horse@host.example/?code=horse&auth=horse&pass=horse#horse");
        let ran = place.run_with(&[(setting.env, &value)], &["config"]);
        assert!(!ran.stdout.contains("horse") && !ran.stderr.contains("horse"), "{ran:?}");
        assert!(ran.code == 2 || ran.stdout.contains("********"), "{ran:?}");
    }
    let environment = [("WHARFINGER_DATABASE_URL", "postgres://app:horse@db.example/wharf?sslmode=require")];
    let shown = setting(&place.run_with(&environment, &["config", "--json"]), "WHARFINGER_DATABASE_URL");
    assert_eq!(
        json!(shown),
        json!(["postgres://app:********@db.example/wharf?sslmode=require", "the environment"])
    );
    assert!(!place.data().exists(), "config created files");
}
