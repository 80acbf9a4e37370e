//! The promises the tests of Redis rely on: faults that are real, data that comes back as asked
//! for and no further, and nothing left behind.

mod watching;

use std::io::Read;

use harness::redis::{ADDRESS_VARIABLE, Options, Persistence, Redis, shared};
use watching::{folders_of, in_the_end, is_open, is_silent, port_of, processes_of, say, services, told_of};

const PING: &[u8] = b"PING\r\n";

fn set(redis: &Redis, key: &str, value: &str) {
    assert_eq!(redis.cli(&["SET", key, value]).expect("written"), "OK");
}

/// Empty where there is none.
fn get(redis: &Redis, key: &str) -> String {
    redis.cli(&["GET", key]).expect("read")
}

/// By which clients tell that a server is not the process it was.
fn run_id(redis: &Redis) -> String {
    let info = redis.cli(&["INFO", "server"]).expect("told");
    let id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    id.expect("an id").trim().to_owned()
}

#[test]
fn keys_are_written_and_read() {
    let redis = shared();
    set(redis, "written and read", "a value");
    assert_eq!(get(redis, "written and read"), "a value");
    let error = redis.cli(&["LPUSH", "written and read", "x"]).expect_err("not a list");
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
}

#[test]
fn only_a_snapshot_survives_faults_and_nothing_survives_the_drop() {
    let mut redis = Redis::start().expect("started");
    let port = redis.port();
    let folder = redis.folder().expect("ours");
    let first_run = run_id(&redis);
    set(&redis, "key", "old");
    redis.snapshot().expect("saved");
    set(&redis, "key", "new");

    redis.kill().expect("killed");
    assert!(!is_open(port), "a killed server accepts connections");
    assert_eq!(redis.pid(), None);
    assert!(redis.cli(&["PING"]).is_err(), "a killed server answered");
    assert!(redis.kill().is_err(), "killed what does not run");
    redis.start_again().expect("started after a kill");
    assert!(redis.start_again().is_err(), "started what runs");
    assert_eq!(redis.port(), port);
    assert_eq!(get(&redis, "key"), "old");
    assert_ne!(run_id(&redis), first_run);

    set(&redis, "key", "newer");
    redis.stop().expect("stopped");
    assert!(!is_open(port), "a stopped server accepts connections");
    redis.start_again().expect("started after a stop");
    assert_eq!(get(&redis, "key"), "old");

    redis.pause().expect("paused");
    let mut question = say(port, PING);
    let mut answer = [0; 7];
    assert!(is_silent(&mut question), "a paused server answered");
    redis.resume().expect("resumed");
    question.read_exact(&mut answer).expect("answered at last");
    assert_eq!(&answer, b"+PONG\r\n");

    redis.wipe().expect("wiped");
    assert_eq!(redis.port(), port);
    assert_eq!(redis.cli(&["DBSIZE"]).expect("counted"), "0");

    drop(redis);
    assert!(!is_open(port), "a dropped server accepts connections");
    assert!(!folder.exists(), "a dropped server left its folder");
}

#[test]
fn what_comes_back_is_what_was_asked_for() {
    for (persistence, expected) in [(Persistence::None, ""), (Persistence::AppendOnly, "acknowledged")] {
        let mut redis = Redis::start_with(Options { persistence, ..Options::default() }).expect("started");
        set(&redis, "key", "acknowledged");
        assert!(redis.snapshot().is_err(), "a snapshot that nobody would read");
        redis.kill().expect("killed");
        redis.start_again().expect("started");
        assert_eq!(get(&redis, "key"), expected, "{persistence:?}");
        redis.wipe().expect("wiped");
        assert_eq!(get(&redis, "key"), "", "{persistence:?}");
    }
}

#[test]
fn a_cluster_of_one_serves_all_slots_whatever_it_went_through() {
    let mut redis = Redis::start_with(Options { cluster: true, ..Options::default() }).expect("started");
    let node = format!("0\n16383\n127.0.0.1\n{}\n", redis.port());
    let serves = |redis: &Redis| {
        assert!(redis.cli(&["CLUSTER", "SLOTS"]).expect("told").starts_with(&node));
        set(redis, "{slot}:key", "value");
        let error = redis.cli(&["MGET", "{slot}:key", "{other}:key"]).expect_err("two slots");
        assert!(error.to_string().contains("CROSSSLOT"), "{error}");
    };
    serves(&redis);
    redis.kill().expect("killed");
    redis.start_again().expect("started");
    serves(&redis);
    redis.wipe().expect("wiped");
    assert_eq!(get(&redis, "{slot}:key"), "");
    serves(&redis);
}

#[test]
fn a_password_counts() {
    let redis =
        Redis::start_with(Options { password: Some("a secret/"), ..Options::default() }).expect("started");
    assert_eq!(redis.url(), format!("redis://:a%20secret%2F@127.0.0.1:{}/0", redis.port()));
    set(&redis, "key", "value");
    let mut answer = [0; 7];
    say(redis.port(), PING).read_exact(&mut answer).expect("answered");
    assert_eq!(&answer, b"-NOAUTH");
    let test = "keys_are_written_and_read";
    assert!(told_of(ADDRESS_VARIABLE, &redis.url(), test), "the URL does not let in");
    assert!(!told_of(ADDRESS_VARIABLE, &redis.url().replace("secret", "guess"), test), "any password does");
    let benchmark = redis.command("redis-benchmark").args(["-n", "10", "-t", "set", "-q"]).output();
    assert!(String::from_utf8_lossy(&benchmark.expect("ran").stdout).contains("requests per second"));
}

#[test]
fn nothing_is_left_of_a_process_that_was_killed() {
    let (mut process, url) = services("redis", ADDRESS_VARIABLE);
    let pid = process.id();
    let port = port_of(&url);
    assert!(is_open(port), "the services do not run");
    // The server and its watchdog.
    assert_eq!((folders_of(pid), processes_of(pid)), (1, 2));
    process.kill().expect("killed");
    process.wait().expect("reaped");
    let gone = || !is_open(port) && folders_of(pid) == 0 && processes_of(pid) == 0;
    assert!(in_the_end(gone), "the server lives on");
}

#[test]
fn a_server_named_by_the_environment_is_used() {
    let test = "keys_are_written_and_read";
    assert!(told_of(ADDRESS_VARIABLE, &shared().url(), test));
    assert!(!told_of(ADDRESS_VARIABLE, "redis://127.0.0.1:1/0", test), "another server was started");
}
