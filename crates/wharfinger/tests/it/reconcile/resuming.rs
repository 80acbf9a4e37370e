//! Killed at any moment, the same command goes on where it was, and comes to the same answer.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{StoreFixture, report};

const OBJECTS: usize = 30_000;
const PATIENCE: Duration = Duration::from_secs(60);
/// Whoever watches may be held up until it is over.
const TRIES: usize = 20;

/// One in three has no key, one key in ten no object.
fn filled() -> (StoreFixture, String) {
    let fixture = StoreFixture::new();
    let mut list = String::new();
    for n in 0..OBJECTS {
        let key = format!("f{:02}/{n:06}", n % 50);
        if n % 10 != 9 {
            fixture.put(&key, 3);
        }
        if !n.is_multiple_of(3) {
            list.push_str(&key);
            list.push('\n');
        }
    }
    (fixture, list)
}

fn arguments(fixture: &StoreFixture, more: &[&str]) -> Vec<String> {
    let url = fixture.url();
    let fixed = ["reconcile", "--bucket", &url, "--keys", "keys", "--json", "--state", "state"];
    let fast = ["--objects-per-checkpoint", "1000"];
    [&fixed[..], &fast[..], more].concat().into_iter().map(str::to_owned).collect()
}

fn checkpoint(state: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(state.join("checkpoint.json")).ok()?).ok()
}

/// Starts it, and kills it as soon as its checkpoint says this. False if it was faster.
fn killed_when(fixture: &StoreFixture, more: &[&str], is_there: impl Fn(&Value) -> bool) -> bool {
    let mut command = fixture.place.command(&arguments(fixture, more));
    let mut child: Child =
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
    let state = fixture.place.path().join("state");
    let started = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        assert!(started.elapsed() < PATIENCE, "it does not come on");
        if checkpoint(&state).is_some_and(|at| is_there(&at)) {
            child.kill().expect("killed");
            return child.wait().expect("dead").signal().is_some() && checkpoint(&state).is_some();
        }
    }
    false
}

/// The same, once it was not faster.
fn caught_when(fixture: &StoreFixture, more: &[&str], is_there: impl Fn(&Value) -> bool) {
    assert!((0..TRIES).any(|_| killed_when(fixture, more, &is_there)), "it is always faster");
}

/// Starts it and waits for its first checkpoint.
fn begun(fixture: &StoreFixture) -> Child {
    let state = fixture.place.path().join("state");
    for _ in 0..TRIES {
        let mut command = fixture.place.command(&arguments(fixture, &[]));
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let started = Instant::now();
        while child.try_wait().expect("a child").is_none() {
            assert!(started.elapsed() < PATIENCE, "it does not come on");
            if checkpoint(&state).is_some_and(|at| at["after"].is_string()) {
                return child;
            }
        }
    }
    panic!("it is always faster")
}

const DELETE: [&str; 6] = ["--delete", "--yes", "--limit-percent", "50", "--deleted-to", "log"];

/// A fixture that was killed over in the middle of its deletion.
fn half_deleted() -> StoreFixture {
    for _ in 0..TRIES {
        let (fixture, list) = filled();
        fixture.place.write("keys", &list);
        if killed_when(&fixture, &DELETE, |at| at["deletion"]["deleted"]["objects"].as_u64() > Some(1_000)) {
            return fixture;
        }
    }
    panic!("it is always faster")
}

fn run(fixture: &StoreFixture, more: &[&str]) -> super::Ran {
    let all = arguments(fixture, more);
    fixture.place.run(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_comparison_goes_on_after_a_kill_and_answers_the_same() {
    let (fixture, list) = filled();
    fixture.place.write("keys", &list);
    let lists = ["--orphans-to", "orphans.jsonl", "--missing-to", "missing.jsonl"];
    let whole = report(&run(&fixture, &lists).expect(0));
    let read = |name: &str| std::fs::read(fixture.place.path().join(name)).expect("a list");
    let (orphans, missing) = (read("orphans.jsonl"), read("missing.jsonl"));
    assert_eq!(whole["orphans"]["objects"].as_u64().map(|n| n > 5_000), Some(true));
    assert!(!fixture.place.path().join("state").exists(), "what has ended leaves nothing");

    let state = fixture.place.path().join("state");
    let mut kills = 0;
    // Each run is killed a little further on.
    for share in 1..6 {
        let after = format!("f{:02}/", share * 8);
        kills +=
            u32::from(killed_when(&fixture, &[], |at| at["after"].as_str().is_some_and(|at| *at >= *after)));
    }
    assert!(kills >= 2, "it was interrupted {kills} times");
    if checkpoint(&state).is_none() {
        caught_when(&fixture, &[], |at| at["after"].is_string());
    }
    let ran = run(&fixture, &lists).expect(0);
    assert!(ran.stderr.contains("goes on with what was interrupted"), "{ran:?}");
    assert_eq!(report(&ran), whole);
    assert!(read("orphans.jsonl") == orphans && read("missing.jsonl") == missing, "to the last byte");
}

/// Ctrl-C: what was done is written down before it ends.
#[test]
fn an_interrupt_says_how_to_go_on() {
    let (fixture, list) = filled();
    fixture.place.write("keys", &list);
    let interrupted = (0..TRIES).find_map(|_| {
        let child = begun(&fixture);
        let sent = std::process::Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        let ran = super::Ran::from(child.wait_with_output().expect("it ends"));
        (ran.code != 0).then_some(ran)
    });
    super::refused(
        interrupted.expect("not always over by then"),
        &["interrupted: the same command goes on from here"],
    );
    let ran = run(&fixture, &[]).expect(0);
    assert!(ran.stderr.contains("goes on with what was interrupted"), "{ran:?}");
    assert_eq!(report(&ran)["listed"]["objects"], OBJECTS - OBJECTS / 10);
}

#[test]
fn a_folder_that_holds_something_else_is_left_alone() {
    let fixture = StoreFixture::with(&["a"]);
    fixture.place.write("theirs/keys", "precious");
    fixture.compare("a\n", &["--state", "theirs"]).expect_usage("theirs");
    assert_eq!(std::fs::read(fixture.place.path().join("theirs/keys")).expect("a file"), b"precious");
}

#[test]
fn another_command_or_another_list_begins_anew() {
    let (fixture, list) = filled();
    fixture.place.write("keys", &list);
    let is_begun = |at: &Value| at["after"].is_string();
    caught_when(&fixture, &[], is_begun);
    let other = run(&fixture, &["--grace", "2h"]).expect(0);
    assert!(!other.stderr.contains("goes on"), "{other:?}");
    caught_when(&fixture, &[], is_begun);
    let fresh = run(&fixture, &["--fresh"]).expect(0);
    assert!(!fresh.stderr.contains("goes on"), "{fresh:?}");
    caught_when(&fixture, &[], is_begun);
    fixture.place.write("keys", format!("{list}f00/one-more\n"));
    let changed = run(&fixture, &[]).expect(0);
    assert!(!changed.stderr.contains("goes on"), "{changed:?}");
    assert_eq!(
        report(&changed)["missing"]["keys"].as_u64(),
        report(&fresh)["missing"]["keys"].as_u64().map(|n| n + 1)
    );
}

/// What was never gone on with does not stay for ever.
#[test]
fn what_was_left_long_ago_is_cleared_away() {
    let fixture = StoreFixture::with(&["kept"]);
    let cache = fixture.place.path().join("cache");
    let left = |name: &str, days_old: u64| {
        let folder = cache.join("wharfinger/reconcile").join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("keys"), "many").expect("a list");
        std::fs::write(folder.join("wharfinger-reconcile.lock"), "").expect("a lock");
        super::age(&folder.join("wharfinger-reconcile.lock"), days_old);
        folder
    };
    let (old, recent) = (left("0123456789abcdef", 2), left("fedcba9876543210", 0));
    let held = left("0000000000000000", 2);
    let lock = std::fs::File::open(held.join("wharfinger-reconcile.lock")).expect("a lock");
    lock.lock().expect("held");
    fixture.place.write("keys", "kept\n");
    let mut command = fixture.place.command(&["reconcile", "--bucket", &fixture.url(), "--keys", "keys"]);
    let ran = super::Ran::from(command.env("XDG_CACHE_HOME", &cache).output().expect("it runs"));
    ran.expect(0);
    assert!(!old.exists() && recent.exists() && held.exists());
}

#[test]
fn two_at_once_are_one_too_many() {
    let (fixture, list) = filled();
    fixture.place.write("keys", &list);
    let stopped = (0..TRIES).find_map(|_| {
        let mut first = begun(&fixture);
        let sent = std::process::Command::new("kill").args(["-s", "STOP", &first.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        first.try_wait().expect("a child").is_none().then_some(first)
    });
    let mut first = stopped.expect("not always over by then");
    super::refused(run(&fixture, &[]), &["is running"]);
    first.kill().expect("killed");
    first.wait().expect("dead");
    run(&fixture, &[]).expect(0);
}

/// What was deleted before is not denied by a run that deletes nothing more.
#[test]
fn a_deletion_that_goes_on_and_is_refused_says_what_was_deleted() {
    let fixture = half_deleted();
    fixture.put(".wharfinger/store", 0);
    let ran = run(&fixture, &DELETE);
    let found = report(&ran);
    let deleted = found["deletion"]["objects"].as_u64().expect("a number");
    assert!(deleted > 1_000, "{found}");
    super::refused(ran, &[&format!("nothing more was deleted than {deleted} objects before")]);
}

#[test]
fn a_deletion_goes_on_after_a_kill() {
    let orphans = (0..OBJECTS).filter(|n| n % 10 != 9 && n.is_multiple_of(3)).count() as u64;
    let fixture = half_deleted();
    let ran = run(&fixture, &DELETE).expect(0);
    assert!(ran.stderr.contains("goes on"), "{ran:?}");
    let deletion = report(&ran)["deletion"].clone();
    let count = |name: &str| deletion[name].as_u64().expect("a number");
    assert_eq!(
        (count("objects"), count("gone")),
        (orphans, 0),
        "what went before the kill is known: {deletion}"
    );
    for n in 0..OBJECTS {
        let key = format!("f{:02}/{n:06}", n % 50);
        assert_eq!(fixture.has(&key), n % 10 != 9 && !n.is_multiple_of(3), "{key}");
    }
    let log = std::fs::read_to_string(fixture.place.path().join("log")).expect("a log");
    let told: std::collections::BTreeSet<&str> = log.lines().collect();
    assert!(told.len() as u64 >= orphans, "{} of {orphans}", told.len());
}
