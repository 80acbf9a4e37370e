//! After a kill at any moment, the same command resumes and gives the same report.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{StoreFixture, report};

const OBJECTS: usize = 30_000;
const TIMEOUT: Duration = Duration::from_secs(60);
/// The program may finish before the test can stop it. Then the test tries again.
const TRIES: usize = 20;

/// Every third object has no key, and every tenth key has no object.
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

/// Starts the program and kills it when its checkpoint meets the condition. False: it finished before.
fn try_kill_when(fixture: &StoreFixture, more: &[&str], condition: impl Fn(&Value) -> bool) -> bool {
    let mut command = fixture.place.command(&arguments(fixture, more));
    let mut child: Child =
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
    let state = fixture.place.path().join("state");
    let started = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        assert!(started.elapsed() < TIMEOUT, "no checkpoint in time");
        if checkpoint(&state).is_some_and(|at| condition(&at)) {
            child.kill().expect("killed");
            return child.wait().expect("the program ends").signal().is_some()
                && checkpoint(&state).is_some();
        }
    }
    false
}

/// Like `try_kill_when`, repeated until the kill succeeds.
fn kill_when(fixture: &StoreFixture, more: &[&str], condition: impl Fn(&Value) -> bool) {
    assert!(
        (0..TRIES).any(|_| try_kill_when(fixture, more, &condition)),
        "the program always finishes before"
    );
}

/// Starts the program and waits for its first checkpoint.
fn started_until_checkpoint(fixture: &StoreFixture) -> Child {
    let state = fixture.place.path().join("state");
    for _ in 0..TRIES {
        let mut command = fixture.place.command(&arguments(fixture, &[]));
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let started = Instant::now();
        while child.try_wait().expect("a child").is_none() {
            assert!(started.elapsed() < TIMEOUT, "no checkpoint in time");
            if checkpoint(&state).is_some_and(|at| at["after"].is_string()) {
                return child;
            }
        }
    }
    panic!("the program always finishes before")
}

const DELETE: [&str; 6] = ["--delete", "--yes", "--limit-percent", "50", "--deleted-to", "log"];

/// A fixture whose deletion was killed in the middle.
fn half_deleted() -> StoreFixture {
    for _ in 0..TRIES {
        let (fixture, list) = filled();
        fixture.place.write("keys", &list);
        if try_kill_when(&fixture, &DELETE, |at| at["deletion"]["deleted"]["objects"].as_u64() > Some(1_000))
        {
            return fixture;
        }
    }
    panic!("the program always finishes before")
}

fn run(fixture: &StoreFixture, more: &[&str]) -> super::Ran {
    let all = arguments(fixture, more);
    fixture.place.run(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_killed_comparison_resumes_with_the_same_result() {
    let (fixture, list) = filled();
    fixture.place.write("keys", &list);
    let lists = ["--orphans-to", "orphans.jsonl", "--missing-to", "missing.jsonl"];
    let whole = report(&run(&fixture, &lists).expect(0));
    let read = |name: &str| std::fs::read(fixture.place.path().join(name)).expect("a list");
    let (orphans, missing) = (read("orphans.jsonl"), read("missing.jsonl"));
    assert_eq!(whole["orphans"]["objects"].as_u64().map(|n| n > 5_000), Some(true));
    assert!(!fixture.place.path().join("state").exists(), "a finished run removes its state");

    let state = fixture.place.path().join("state");
    let mut kills = 0;
    // Each run is killed a little later.
    for share in 1..6 {
        let after = format!("f{:02}/", share * 8);
        kills += u32::from(try_kill_when(&fixture, &[], |at| {
            at["after"].as_str().is_some_and(|at| *at >= *after)
        }));
    }
    assert!(kills >= 2, "it was interrupted {kills} times");
    if checkpoint(&state).is_none() {
        kill_when(&fixture, &[], |at| at["after"].is_string());
    }
    let ran = run(&fixture, &lists).expect(0);
    assert!(ran.stderr.contains("resuming the interrupted run"), "{ran:?}");
    assert_eq!(report(&ran), whole);
    assert!(read("orphans.jsonl") == orphans && read("missing.jsonl") == missing, "the lists are identical");
}

/// After Ctrl-C the program saves a checkpoint before it ends.
#[test]
fn ctrl_c_saves_the_progress_and_says_how_to_resume() {
    let (fixture, list) = filled();
    fixture.place.write("keys", &list);
    let interrupted = (0..TRIES).find_map(|_| {
        let child = started_until_checkpoint(&fixture);
        let sent = std::process::Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        let ran = super::Ran::from(child.wait_with_output().expect("the program ends"));
        (ran.code != 0).then_some(ran)
    });
    super::refused(
        interrupted.expect("the program was interrupted in time"),
        &["interrupted. Run the same command again to resume"],
    );
    let ran = run(&fixture, &[]).expect(0);
    assert!(ran.stderr.contains("resuming the interrupted run"), "{ran:?}");
    assert_eq!(report(&ran)["listed"]["objects"], OBJECTS - OBJECTS / 10);
}

#[test]
fn a_state_folder_with_other_files_is_rejected() {
    let fixture = StoreFixture::with(&["a"]);
    fixture.place.write("theirs/keys", "precious");
    fixture.compare("a\n", &["--state", "theirs"]).expect_usage("theirs");
    assert_eq!(std::fs::read(fixture.place.path().join("theirs/keys")).expect("a file"), b"precious");
}

#[test]
fn another_command_or_another_list_starts_from_the_beginning() {
    let (fixture, list) = filled();
    fixture.place.write("keys", &list);
    let has_position = |at: &Value| at["after"].is_string();
    kill_when(&fixture, &[], has_position);
    let other = run(&fixture, &["--grace", "2h"]).expect(0);
    assert!(!other.stderr.contains("resuming"), "{other:?}");
    kill_when(&fixture, &[], has_position);
    let fresh = run(&fixture, &["--fresh"]).expect(0);
    assert!(!fresh.stderr.contains("resuming"), "{fresh:?}");
    kill_when(&fixture, &[], has_position);
    fixture.place.write("keys", format!("{list}f00/one-more\n"));
    let changed = run(&fixture, &[]).expect(0);
    assert!(!changed.stderr.contains("resuming"), "{changed:?}");
    assert_eq!(
        report(&changed)["missing"]["keys"].as_u64(),
        report(&fresh)["missing"]["keys"].as_u64().map(|n| n + 1)
    );
}

#[test]
fn states_older_than_a_day_are_removed_unless_their_run_is_active() {
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
    let active = left("0000000000000000", 2);
    let lock = std::fs::File::open(active.join("wharfinger-reconcile.lock")).expect("a lock");
    lock.lock().expect("locked");
    fixture.place.write("keys", "kept\n");
    let mut command = fixture.place.command(&["reconcile", "--bucket", &fixture.url(), "--keys", "keys"]);
    let ran = super::Ran::from(command.env("XDG_CACHE_HOME", &cache).output().expect("the program runs"));
    ran.expect(0);
    assert!(!old.exists() && recent.exists() && active.exists());
}

#[test]
fn two_runs_of_one_command_at_the_same_time_are_rejected() {
    let (fixture, list) = filled();
    fixture.place.write("keys", &list);
    let stopped = (0..TRIES).find_map(|_| {
        let mut first = started_until_checkpoint(&fixture);
        let sent = std::process::Command::new("kill").args(["-s", "STOP", &first.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        first.try_wait().expect("a child").is_none().then_some(first)
    });
    let mut first = stopped.expect("the program was interrupted in time");
    super::refused(run(&fixture, &[]), &["is already running"]);
    first.kill().expect("killed");
    first.wait().expect("the program ends");
    run(&fixture, &[]).expect(0);
}

/// A resumed run that deletes nothing must report the deletes of the interrupted run.
#[test]
fn a_refused_resumed_deletion_reports_the_earlier_deletes() {
    let fixture = half_deleted();
    fixture.put(".wharfinger/store", 0);
    let ran = run(&fixture, &DELETE);
    let found = report(&ran);
    let deleted = found["deletion"]["objects"].as_u64().expect("a number");
    assert!(deleted > 1_000, "{found}");
    super::refused(ran, &[&format!("an earlier run deleted {deleted} objects, this run deleted nothing")]);
}

#[test]
fn a_killed_deletion_resumes() {
    let orphans = (0..OBJECTS).filter(|n| n % 10 != 9 && n.is_multiple_of(3)).count() as u64;
    let fixture = half_deleted();
    let ran = run(&fixture, &DELETE).expect(0);
    assert!(ran.stderr.contains("resuming"), "{ran:?}");
    let deletion = report(&ran)["deletion"].clone();
    let count = |name: &str| deletion[name].as_u64().expect("a number");
    assert_eq!(
        (count("objects"), count("alreadyDeleted")),
        (orphans, 0),
        "deletes before the kill count as deleted: {deletion}"
    );
    for n in 0..OBJECTS {
        let key = format!("f{:02}/{n:06}", n % 50);
        assert_eq!(fixture.has(&key), n % 10 != 9 && !n.is_multiple_of(3), "{key}");
    }
    let log = std::fs::read_to_string(fixture.place.path().join("log")).expect("a log");
    let lines: std::collections::BTreeSet<&str> = log.lines().collect();
    assert!(lines.len() as u64 >= orphans, "{} of {orphans}", lines.len());
}
