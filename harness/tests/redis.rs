//! The guarantees that the tests of Redis need: faults are real, a restart loads exactly the requested data, and all
//! servers and folders are removed at the end.

mod observe;

use std::io::Read;

use harness::redis::{ADDRESS_VARIABLE, Options, Persistence, Redis, shared};
use observe::{
    becomes_true, folders_of, gets_no_answer, is_open, port_of, processes_of, send, services,
    test_passes_with,
};

const PING: &[u8] = b"PING\r\n";

fn set(redis: &Redis, key: &str, value: &str) {
    assert_eq!(redis.cli(&["SET", key, value]).expect("written"), "OK");
}

/// Empty if there is no value.
fn get(redis: &Redis, key: &str) -> String {
    redis.cli(&["GET", key]).expect("read")
}

/// Clients notice a restart by this id.
fn run_id(redis: &Redis) -> String {
    let info = redis.cli(&["INFO", "server"]).expect("answered");
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
fn only_a_snapshot_survives_a_kill_and_a_drop_removes_everything() {
    let mut redis = Redis::start().expect("started");
    let port = redis.port();
    let folder = redis.folder().expect("started here");
    let first_run = run_id(&redis);
    set(&redis, "key", "old");
    redis.snapshot().expect("saved");
    set(&redis, "key", "new");

    redis.kill().expect("killed");
    assert!(!is_open(port), "a killed server accepts connections");
    assert_eq!(redis.pid(), None);
    assert!(redis.cli(&["PING"]).is_err(), "a killed server answered");
    assert!(redis.kill().is_err(), "killed a server that does not run");
    redis.start_again().expect("started after a kill");
    assert!(redis.start_again().is_err(), "started a server that already runs");
    assert_eq!(redis.port(), port);
    assert_eq!(get(&redis, "key"), "old");
    assert_ne!(run_id(&redis), first_run);

    set(&redis, "key", "newer");
    redis.stop().expect("stopped");
    assert!(!is_open(port), "a stopped server accepts connections");
    redis.start_again().expect("started after a stop");
    assert_eq!(get(&redis, "key"), "old");

    redis.pause().expect("paused");
    let mut connection = send(port, PING);
    let mut answer = [0; 7];
    assert!(gets_no_answer(&mut connection), "a paused server answered");
    redis.resume().expect("resumed");
    connection.read_exact(&mut answer).expect("answered after the pause");
    assert_eq!(&answer, b"+PONG\r\n");

    redis.wipe().expect("wiped");
    assert_eq!(redis.port(), port);
    assert_eq!(redis.cli(&["DBSIZE"]).expect("counted"), "0");

    drop(redis);
    assert!(!is_open(port), "a dropped server accepts connections");
    assert!(!folder.exists(), "a dropped server left its folder");
}

#[test]
fn a_restart_loads_the_data_that_the_persistence_keeps() {
    for (persistence, expected) in [(Persistence::None, ""), (Persistence::AppendOnly, "acknowledged")] {
        let mut redis = Redis::start_with(Options { persistence, ..Options::default() }).expect("started");
        set(&redis, "key", "acknowledged");
        assert!(redis.snapshot().is_err(), "took a snapshot that is never loaded");
        redis.kill().expect("killed");
        redis.start_again().expect("started");
        assert_eq!(get(&redis, "key"), expected, "{persistence:?}");
        redis.wipe().expect("wiped");
        assert_eq!(get(&redis, "key"), "", "{persistence:?}");
    }
}

#[test]
fn a_cluster_of_one_serves_all_slots_after_a_kill_and_a_wipe() {
    let mut redis = Redis::start_with(Options { cluster: true, ..Options::default() }).expect("started");
    let node = format!("0\n16383\n127.0.0.1\n{}\n", redis.port());
    let serves = |redis: &Redis| {
        assert!(redis.cli(&["CLUSTER", "SLOTS"]).expect("answered").starts_with(&node));
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
fn a_password_is_required() {
    let redis =
        Redis::start_with(Options { password: Some("a secret/"), ..Options::default() }).expect("started");
    assert_eq!(redis.url(), format!("redis://:a%20secret%2F@127.0.0.1:{}/0", redis.port()));
    set(&redis, "key", "value");
    let mut answer = [0; 7];
    send(redis.port(), PING).read_exact(&mut answer).expect("answered");
    assert_eq!(&answer, b"-NOAUTH");
    let test = "keys_are_written_and_read";
    assert!(test_passes_with(ADDRESS_VARIABLE, &redis.url(), test), "the password of the URL is refused");
    assert!(
        !test_passes_with(ADDRESS_VARIABLE, &redis.url().replace("secret", "guess"), test),
        "a wrong password is accepted"
    );
    let benchmark = redis.command("redis-benchmark").args(["-n", "10", "-t", "set", "-q"]).output();
    assert!(String::from_utf8_lossy(&benchmark.expect("ran").stdout).contains("requests per second"));
}

#[test]
fn servers_and_folders_are_removed_when_their_process_is_killed() {
    let (mut process, url) = services("redis", ADDRESS_VARIABLE);
    let pid = process.id();
    let port = port_of(&url);
    assert!(is_open(port), "the server does not accept connections");
    // The server and its watchdog.
    assert_eq!((folders_of(pid), processes_of(pid)), (1, 2));
    process.kill().expect("killed");
    process.wait().expect("reaped");
    let is_removed = || !is_open(port) && folders_of(pid) == 0 && processes_of(pid) == 0;
    assert!(becomes_true(is_removed), "the server still runs");
}

#[test]
fn a_server_named_by_the_environment_is_used() {
    let test = "keys_are_written_and_read";
    assert!(test_passes_with(ADDRESS_VARIABLE, &shared().url(), test));
    assert!(
        !test_passes_with(ADDRESS_VARIABLE, "redis://127.0.0.1:1/0", test),
        "started another server instead"
    );
}
