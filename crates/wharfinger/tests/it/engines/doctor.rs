//! Engines that are set up wrongly: one line that names the setting and what is wrong, from `doctor` and at the start.

use harness::redis::{Options, Redis};

use crate::cli::program::{Place, Ran};

const QUOTA: &str = "WHARFINGER_QUOTA_URL";
const BROKER: &str = "WHARFINGER_BROKER_URL";
/// Where nobody listens.
const NOBODY: &str = "127.0.0.1:1";

fn said(ran: &Ran, check: &str) -> (bool, String) {
    let [report] = &ran.json()[..] else { panic!("one object: {ran:?}") };
    let checks = report["checks"].as_array().expect("a list");
    let found = checks.iter().find(|c| c["check"] == check).unwrap_or_else(|| panic!("{check} in {ran:?}"));
    (found["ok"] == true, found["detail"].as_str().expect("text").to_owned())
}

/// Doctor says so, and the program does not start.
#[track_caller]
fn stops_the_start(check: &str, environment: &[(&str, &str)], words: &[&str]) {
    let place = Place::new();
    let ran = place.run_with(environment, &["doctor", "--json"]).expect(1);
    let (ok, line) = said(&ran, check);
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

/// Doctor says so, and the program starts without it.
#[track_caller]
fn is_done_without(check: &str, environment: &[(&str, &str)], words: &[&str]) {
    let place = Place::new();
    let ran = place.run_with(environment, &["doctor", "--json"]).expect(1);
    let (ok, line) = said(&ran, check);
    assert!(!ok && words.iter().all(|word| line.contains(word)), "{line}");
    let served = place.serve(environment);
    let log = place.log();
    assert_eq!(log.lines().filter(|line| line.contains("\"ERROR\"")).count(), 1, "{log}");
    assert!(served.terminate().success());
}

#[test]
fn urls_that_are_none() {
    let place = Place::new();
    for (name, value) in [(QUOTA, "memcached://x"), (QUOTA, "redis://"), (BROKER, "kafka://x"), (BROKER, "x")]
    {
        place.run_with(&[(name, value)], &["serve"]).expect_usage(name);
    }
    place.run_with(&[("QUOTA_WITHOUT_REDIS", "maybe")], &["serve"]).expect_usage("QUOTA_WITHOUT_REDIS");
    place.run_with(&[("AMQP_DELAYED_EXCHANGE", "yes")], &["serve"]).expect_usage("AMQP_DELAYED_EXCHANGE");
}

#[test]
fn a_redis_that_is_away() {
    let url = format!("redis://:sesame@{NOBODY}/0");
    is_done_without("quota", &[(QUOTA, &url)], &["does not answer", "the database admits uploads"]);
    stops_the_start("quota", &[(QUOTA, &url), ("QUOTA_WITHOUT_REDIS", "refuse")], &["does not answer"]);
}

#[test]
fn a_redis_that_lets_us_in_for_too_little() {
    let server = Redis::start_with(Options { password: Some("open-sesame"), ..Default::default() });
    let server = server.expect("a server");
    let address = format!("127.0.0.1:{}", server.port());
    stops_the_start("quota", &[(QUOTA, &format!("redis://:sesame@{address}"))], &["password"]);
    stops_the_start("quota", &[(QUOTA, &format!("redis://{address}"))], &["password"]);
    server
        .cli(&["ACL", "SETUSER", "clerk", "on", ">sesame", "~quota:*", "+@all", "-evalsha"])
        .expect("a user");
    stops_the_start("quota", &[(QUOTA, &format!("redis://clerk:sesame@{address}"))], &["right"]);

    // Each right counts: without one of them nothing would ever be let in by Redis, and nobody be told why.
    for right in ["incrby", "hset", "sadd", "expire", "time"] {
        server
            .cli(&[
                "ACL",
                "SETUSER",
                "clerk",
                "reset",
                "on",
                ">sesame",
                "~quota:*",
                "+@all",
                &format!("-{right}"),
            ])
            .expect("a user");
        stops_the_start("quota", &[(QUOTA, &format!("redis://clerk:sesame@{address}"))], &["right"]);
    }

    let place = Place::new();
    let ran = place.run_with(&[(QUOTA, &server.url())], &["doctor", "--json"]).expect(0);
    assert!(said(&ran, "quota").1.contains("Redis "), "{ran:?}");
}

#[test]
fn a_redis_that_takes_no_writes() {
    let (leader, replica) = (Redis::start().expect("a server"), Redis::start().expect("another"));
    replica.cli(&["REPLICAOF", "127.0.0.1", &leader.port().to_string()]).expect("told");
    is_done_without("quota", &[(QUOTA, &replica.url())], &["replica"]);
    leader.cli(&["CONFIG", "SET", "maxmemory", "1"]).expect("set");
    is_done_without("quota", &[(QUOTA, &leader.url())], &["maxmemory"]);
}

#[test]
fn a_broker_that_is_away() {
    let url = format!("amqp://guest:sesame@{NOBODY}");
    is_done_without("broker", &[(BROKER, &url)], &[BROKER, "the database is polled"]);
    let place = Place::new();
    let ran = place.run_with(&[(BROKER, &url)], &["migrate"]).expect(1);
    assert!(ran.stderr.contains(BROKER) && !ran.stderr.contains("sesame"), "{ran:?}");
}

#[test]
fn a_broker_that_lets_us_in_for_too_little() {
    let server = harness::rabbitmq::shared();
    let url = server.create_vhost();
    let wrong = url.replace("guest:guest@", "guest:sesame@");
    stops_the_start("broker", &[(BROKER, &wrong)], &[]);
    stops_the_start("broker", &[(BROKER, &server.url_of("no such host"))], &["vhost"]);
    // What the operator says the broker has, it has not.
    stops_the_start("broker", &[(BROKER, &url), ("AMQP_DELAYED_EXCHANGE", "true")], &["x-delayed-message"]);

    let place = Place::new();
    place.run_with(&[(BROKER, &url)], &["migrate"]).expect(0);
    let vhost = url.rsplit('/').next().expect("a vhost");
    let queues = server.ctl(&["list_queues", "-p", vhost, "name"]).expect("queues");
    for queue in ["resource.delayed.3600000", "resource.cleanup", "resource.cleanup.dlq"] {
        assert!(queues.lines().any(|line| line.trim() == queue), "{queue} in {queues}");
    }
    let ran = place.run_with(&[(BROKER, &url)], &["doctor", "--json"]).expect(0);
    assert!(said(&ran, "broker").1.contains("RabbitMQ 3"), "{ran:?}");
}
