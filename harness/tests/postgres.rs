//! The guarantees that tests with PostgreSQL need: databases are separate, faults are real, and all servers and folders
//! are removed at the end.

mod observe;

use std::process::Child;
use std::thread;
use std::time::Duration;

use harness::postgres::{ADDRESS_VARIABLE, Options, Postgres, shared, shared_with_pgvector};
use observe::{becomes_true, folders_of, is_open, port_of, services};

const CONTENT: &str = "SELECT content FROM note";

fn write(postgres: &Postgres, url: &str, content: &str) {
    let statements =
        format!("CREATE TABLE note (content text NOT NULL); INSERT INTO note VALUES ('{content}')");
    postgres.psql(url, &statements).expect("written");
}

fn read(postgres: &Postgres, url: &str) -> String {
    postgres.psql(url, CONTENT).expect("read")
}

#[test]
fn databases_are_separate_and_can_be_copied() {
    let postgres = shared();
    let one = postgres.create_database();
    let other = postgres.create_database();
    write(postgres, &one, "one");
    write(postgres, &other, "other");
    assert_eq!(read(postgres, &one), "one");
    assert_eq!(read(postgres, &other), "other");

    let copy = postgres.create_database_from(&one);
    postgres.psql(&copy, "UPDATE note SET content = 'copy'").expect("updated");
    assert_eq!(read(postgres, &one), "one");
    assert_eq!(read(postgres, &copy), "copy");
}

#[test]
fn the_error_of_a_failed_statement_has_its_cause() {
    let error = shared().psql(&shared().admin_url(), "SELECT no_such_column").expect_err("no such column");
    assert!(error.to_string().contains("no_such_column"), "{error}");
}

#[test]
fn commits_are_durable_unless_fsync_is_off() {
    let fsync = |options: Options| {
        let postgres = Postgres::start_with(options).expect("started");
        postgres.psql(&postgres.admin_url(), "SHOW fsync").expect("shown")
    };
    assert_eq!(fsync(Options { fsync: false, ..Options::default() }), "off");
    assert_eq!(fsync(Options::default()), "on");
}

#[test]
fn pgvector_can_be_created() {
    let postgres = shared_with_pgvector();
    let url = postgres.create_database();
    let distance = "SELECT '[1,0]'::vector <=> '[0,1]'::vector";
    assert!(postgres.psql(&url, distance).is_err(), "the extension exists before it is created");
    postgres.psql(&url, "CREATE EXTENSION vector").expect("created");
    assert_eq!(postgres.psql(&url, distance).expect("compared"), "1");
}

#[test]
fn commits_survive_a_kill_and_a_drop_removes_everything() {
    let mut postgres = Postgres::start().expect("started");
    let port = postgres.port();
    let folder = postgres.folder().expect("started here");
    let url = postgres.create_database();
    write(&postgres, &url, "kept");

    postgres.kill().expect("killed");
    assert!(!is_open(port), "a killed server accepts connections");
    assert_eq!(postgres.pid(), None);
    assert!(postgres.kill().is_err(), "killed a server that does not run");
    postgres.start_again().expect("started after a kill");
    assert_eq!(postgres.port(), port);
    assert_eq!(read(&postgres, &url), "kept");

    postgres.stop().expect("stopped");
    assert!(!is_open(port), "a stopped server accepts connections");
    postgres.start_again().expect("started after a stop");
    assert!(postgres.start_again().is_err(), "started a server that already runs");

    postgres.pause().expect("paused");
    // Uses the psql of the shared server, because this server is borrowed by the call of `resume`. It is started before
    // the thread, so that its start does not use up the waiting time.
    let other = shared();
    let reader = thread::spawn({
        let url = url.clone();
        move || read(other, &url)
    });
    thread::sleep(Duration::from_millis(500));
    assert!(!reader.is_finished(), "a paused server answered");
    postgres.resume().expect("resumed");
    assert_eq!(reader.join().expect("answered"), "kept");

    drop(postgres);
    assert!(!is_open(port), "a dropped server accepts connections");
    assert!(!folder.exists(), "a dropped server left its folder");
}

#[test]
fn a_paused_server_can_be_dropped() {
    let mut postgres = Postgres::start().expect("started");
    postgres.pause().expect("paused");
    let port = postgres.port();
    drop(postgres);
    assert!(!is_open(port), "a dropped server accepts connections");
}

#[test]
fn a_standby_has_all_commits_and_can_be_promoted() {
    let mut primary = Postgres::start().expect("started");
    let url = primary.create_database();
    write(&primary, &url, "first");
    primary.require_standby(true).expect("required");
    let mut standby = Postgres::start_standby_of(&primary).expect("following");
    let copy = url.replace(&format!(":{}/", primary.port()), &format!(":{}/", standby.port()));
    assert_eq!(read(&standby, &copy), "first");
    assert!(standby.psql(&copy, "DELETE FROM note").is_err(), "a standby accepted a write");

    standby.kill().expect("killed");
    // Started before the thread, so that its start does not use up the waiting time.
    let other = shared();
    let waiting = thread::spawn({
        let url = url.clone();
        move || other.psql(&url, "UPDATE note SET content = 'second'")
    });
    thread::sleep(Duration::from_millis(500));
    assert!(!waiting.is_finished(), "committed without the standby");
    standby.start_again().expect("started after a kill");
    waiting.join().expect("answered").expect("committed with the standby");

    primary.kill().expect("killed");
    standby.promote().expect("promoted");
    assert_eq!(read(&standby, &copy), "second");
    standby.psql(&copy, "UPDATE note SET content = 'third'").expect("written to the new primary");
    assert!(standby.promote().is_err(), "promoted a server that is not a standby");
}

/// `cargo xtask services postgres` in a separate process, and the port of its server.
fn postgres_services() -> (Child, u16) {
    let (process, url) = services("postgres", ADDRESS_VARIABLE);
    let port = port_of(&url);
    assert!(is_open(port), "the server does not accept connections");
    (process, port)
}

#[test]
fn servers_and_folders_are_removed_when_their_process_is_killed() {
    let (mut process, port) = postgres_services();
    assert_eq!(folders_of(process.id()), 1);
    process.kill().expect("killed");
    process.wait().expect("reaped");
    let is_removed = || !is_open(port) && folders_of(process.id()) == 0;
    assert!(becomes_true(is_removed), "the server still runs");
}

#[test]
fn services_stop_at_the_end_of_their_input() {
    let (mut process, port) = postgres_services();
    drop(process.stdin.take());
    assert!(process.wait().expect("ended").success());
    assert!(!is_open(port), "the server still runs");
    assert_eq!(folders_of(process.id()), 0);
}
