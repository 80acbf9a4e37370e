//! Misconfigured engines: `doctor` and the start print one line with the setting and the problem.

use harness::redis::{Options, Redis};

use crate::cli::program::{Place, Ran};

const QUOTA: &str = "WHARFINGER_QUOTA_URL";
const BROKER: &str = "WHARFINGER_BROKER_URL";
/// No process listens on this address.
const UNUSED_ADDRESS: &str = "127.0.0.1:1";

fn result_of(ran: &Ran, check: &str) -> (bool, String) {
    let [report] = &ran.json()[..] else { panic!("one object: {ran:?}") };
    let checks = report["checks"].as_array().expect("a list");
    let found = checks.iter().find(|c| c["check"] == check).unwrap_or_else(|| panic!("{check} in {ran:?}"));
    (found["ok"] == true, found["detail"].as_str().expect("text").to_owned())
}

/// `doctor` reports the problem, and the program does not start.
#[track_caller]
fn assert_start_fails(check: &str, environment: &[(&str, &str)], words: &[&str]) {
    let place = Place::new();
    let ran = place.run_with(environment, &["doctor", "--json"]).expect(1);
    let (ok, line) = result_of(&ran, check);
    assert!(!ok && !line.contains('\n') && !line.contains("sesame"), "{line}");
    let (setting, _) = environment[0];
    for word in words.iter().chain([&setting]) {
        assert!(line.contains(word), "{word} in {line}");
    }
    let ran = place.run_with(environment, &["serve", "--listen", "127.0.0.1:0"]);
    assert!(ran.code != 0 && !ran.stderr.contains("sesame"), "{ran:?}");
    let last = ran.stderr.lines().last().expect("a line").to_owned();
    assert!(last.contains(setting) && words.iter().all(|word| last.contains(word)), "{ran:?}");
}

/// `doctor` reports the problem, and the program starts without the engine.
#[track_caller]
fn assert_start_without(check: &str, environment: &[(&str, &str)], words: &[&str]) {
    let place = Place::new();
    let ran = place.run_with(environment, &["doctor", "--json"]).expect(1);
    let (ok, line) = result_of(&ran, check);
    assert!(!ok && words.iter().all(|word| line.contains(word)), "{line}");
    let served = place.serve(environment);
    let log = place.log();
    assert_eq!(log.lines().filter(|line| line.contains("\"ERROR\"")).count(), 1, "{log}");
    assert!(served.terminate().success());
}

#[test]
fn an_invalid_url_is_wrong_usage() {
    let place = Place::new();
    for (name, value) in [(QUOTA, "memcached://x"), (QUOTA, "redis://"), (BROKER, "kafka://x"), (BROKER, "x")]
    {
        place.run_with(&[(name, value)], &["serve"]).expect_usage(name);
    }
    place.run_with(&[("QUOTA_WITHOUT_REDIS", "maybe")], &["serve"]).expect_usage("QUOTA_WITHOUT_REDIS");
    place.run_with(&[("AMQP_DELAYED_EXCHANGE", "yes")], &["serve"]).expect_usage("AMQP_DELAYED_EXCHANGE");
}

#[test]
fn a_redis_that_is_down_is_reported() {
    let url = format!("redis://:sesame@{UNUSED_ADDRESS}/0");
    assert_start_without("quota", &[(QUOTA, &url)], &["Redis is unavailable", "the database admits uploads"]);
    assert_start_fails(
        "quota",
        &[(QUOTA, &url), ("QUOTA_WITHOUT_REDIS", "refuse")],
        &["Redis is unavailable"],
    );
}

#[test]
fn a_redis_user_without_rights_stops_the_start() {
    let server = Redis::start_with(Options { password: Some("open-sesame"), ..Default::default() });
    let server = server.expect("a server");
    let address = format!("127.0.0.1:{}", server.port());
    assert_start_fails("quota", &[(QUOTA, &format!("redis://:sesame@{address}"))], &["password"]);
    assert_start_fails("quota", &[(QUOTA, &format!("redis://{address}"))], &["password"]);
    server.cli(&["ACL", "SETUSER", "app", "on", ">sesame", "~quota:*", "+@all", "-evalsha"]).expect("a user");
    assert_start_fails(
        "quota",
        &[(QUOTA, &format!("redis://app:sesame@{address}"))],
        &["lacks a permission"],
    );

    // Every right is needed. Without one of them Redis would admit no upload, and no error would name the reason.
    for right in ["incrby", "hset", "sadd", "expire", "time"] {
        server
            .cli(&[
                "ACL",
                "SETUSER",
                "app",
                "reset",
                "on",
                ">sesame",
                "~quota:*",
                "+@all",
                &format!("-{right}"),
            ])
            .expect("a user");
        assert_start_fails(
            "quota",
            &[(QUOTA, &format!("redis://app:sesame@{address}"))],
            &["lacks a permission"],
        );
    }

    let place = Place::new();
    let ran = place.run_with(&[(QUOTA, &server.url())], &["doctor", "--json"]).expect(0);
    assert!(result_of(&ran, "quota").1.contains("Redis "), "{ran:?}");
}

#[test]
fn a_read_only_or_full_redis_is_reported() {
    let (leader, replica) = (Redis::start().expect("a server"), Redis::start().expect("another"));
    replica.cli(&["REPLICAOF", "127.0.0.1", &leader.port().to_string()]).expect("replicated");
    assert_start_without("quota", &[(QUOTA, &replica.url())], &["replica"]);
    leader.cli(&["CONFIG", "SET", "maxmemory", "1"]).expect("set");
    assert_start_without("quota", &[(QUOTA, &leader.url())], &["maxmemory"]);
}

#[test]
fn a_broker_that_is_down_is_reported() {
    let url = format!("amqp://guest:sesame@{UNUSED_ADDRESS}");
    assert_start_without("broker", &[(BROKER, &url)], &[BROKER, "the database is polled"]);
    let place = Place::new();
    let ran = place.run_with(&[(BROKER, &url)], &["migrate"]).expect(1);
    assert!(ran.stderr.contains(BROKER) && !ran.stderr.contains("sesame"), "{ran:?}");
}

#[test]
fn a_broker_with_wrong_credentials_or_without_its_plugin_stops_the_start() {
    let server = harness::rabbitmq::shared();
    let url = server.create_vhost();
    let wrong = url.replace("guest:guest@", "guest:sesame@");
    assert_start_fails("broker", &[(BROKER, &wrong)], &[]);
    assert_start_fails("broker", &[(BROKER, &server.url_of("no such host"))], &["vhost"]);
    // The broker does not have the plugin that the setting enables.
    assert_start_fails(
        "broker",
        &[(BROKER, &url), ("AMQP_DELAYED_EXCHANGE", "true")],
        &["rabbitmq_delayed_message_exchange"],
    );

    let place = Place::new();
    place.run_with(&[(BROKER, &url)], &["migrate"]).expect(0);
    let vhost = url.rsplit('/').next().expect("a vhost");
    let queues = server.ctl(&["list_queues", "-p", vhost, "name"]).expect("queues");
    for queue in [
        "wharfinger.resource.delayed.3600000",
        "wharfinger.resource.cleanup",
        "wharfinger.resource.cleanup.dlq",
    ] {
        assert!(queues.lines().any(|line| line.trim() == queue), "{queue} in {queues}");
    }
    let ran = place.run_with(&[(BROKER, &url)], &["doctor", "--json"]).expect(0);
    assert!(result_of(&ran, "broker").1.contains("RabbitMQ 3"), "{ran:?}");
}
