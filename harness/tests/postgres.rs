//! The promises the other crates' tests rely on: databases apart from each other, faults that are
//! real, and nothing left behind.

mod watching;

use std::process::Child;
use std::thread;
use std::time::Duration;

use harness::postgres::{ADDRESS_VARIABLE, Options, Postgres, shared, shared_with_pgvector};
use watching::{folders_of, in_the_end, is_open, port_of, services};

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
fn databases_are_apart_and_can_be_copied() {
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
fn a_failed_statement_is_an_error_that_says_why() {
    let error =
        shared().psql(&shared().admin_url(), "SELECT nothing_of_the_kind").expect_err("no such column");
    assert!(error.to_string().contains("nothing_of_the_kind"), "{error}");
}

#[test]
fn commits_are_durable_unless_asked_otherwise() {
    let fsync = |options: Options| {
        let postgres = Postgres::start_with(options).expect("started");
        postgres.psql(&postgres.admin_url(), "SHOW fsync").expect("shown")
    };
    assert_eq!(fsync(Options { fsync: false, ..Options::default() }), "off");
    assert_eq!(fsync(Options::default()), "on");
}

#[test]
fn pgvector_is_there_for_those_who_ask() {
    let postgres = shared_with_pgvector();
    let url = postgres.create_database();
    let distance = "SELECT '[1,0]'::vector <=> '[0,1]'::vector";
    assert!(postgres.psql(&url, distance).is_err(), "nobody has asked for the extension yet");
    postgres.psql(&url, "CREATE EXTENSION vector").expect("created");
    assert_eq!(postgres.psql(&url, distance).expect("compared"), "1");
}

#[test]
fn what_was_committed_survives_faults_and_nothing_survives_the_drop() {
    let mut postgres = Postgres::start().expect("started");
    let port = postgres.port();
    let folder = postgres.folder().expect("ours");
    let url = postgres.create_database();
    write(&postgres, &url, "kept");

    postgres.kill().expect("killed");
    assert!(!is_open(port), "a killed server accepts connections");
    assert_eq!(postgres.pid(), None);
    assert!(postgres.kill().is_err(), "killed what does not run");
    postgres.start_again().expect("started after a kill");
    assert_eq!(postgres.port(), port);
    assert_eq!(read(&postgres, &url), "kept");

    postgres.stop().expect("stopped");
    assert!(!is_open(port), "a stopped server accepts connections");
    postgres.start_again().expect("started after a stop");
    assert!(postgres.start_again().is_err(), "started what runs");

    postgres.pause().expect("paused");
    // Asked with the other server's psql, for this one has to be free to be resumed. Started
    // beforehand, for its start would take the time in which no answer is to come.
    let other = shared();
    let question = thread::spawn({
        let url = url.clone();
        move || read(other, &url)
    });
    thread::sleep(Duration::from_millis(500));
    assert!(!question.is_finished(), "a paused server answered");
    postgres.resume().expect("resumed");
    assert_eq!(question.join().expect("answered"), "kept");

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
fn a_standby_has_what_was_committed_and_takes_the_primarys_place() {
    let mut primary = Postgres::start().expect("started");
    let url = primary.create_database();
    write(&primary, &url, "first");
    primary.require_standby(true).expect("required");
    let mut standby = Postgres::start_standby_of(&primary).expect("following");
    let copy = url.replace(&format!(":{}/", primary.port()), &format!(":{}/", standby.port()));
    assert_eq!(read(&standby, &copy), "first");
    assert!(standby.psql(&copy, "DELETE FROM note").is_err(), "a standby was written to");

    standby.kill().expect("killed");
    // Started beforehand, for its start would take the time in which nothing is to happen.
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
    assert!(standby.promote().is_err(), "promoted what is no standby");
}

/// PostgreSQL in a process of its own, and its port.
fn postgres_elsewhere() -> (Child, u16) {
    let (process, url) = services("postgres", ADDRESS_VARIABLE);
    let port = port_of(&url);
    assert!(is_open(port), "the services do not run");
    (process, port)
}

#[test]
fn a_server_ends_with_the_process_that_started_it_even_if_killed() {
    let (mut process, port) = postgres_elsewhere();
    assert_eq!(folders_of(process.id()), 1);
    process.kill().expect("killed");
    process.wait().expect("reaped");
    let gone = || !is_open(port) && folders_of(process.id()) == 0;
    assert!(in_the_end(gone), "the server lives on");
}

#[test]
fn services_end_when_their_input_does() {
    let (mut process, port) = postgres_elsewhere();
    drop(process.stdin.take());
    assert!(process.wait().expect("ended").success());
    assert!(!is_open(port), "the server lives on");
    assert_eq!(folders_of(process.id()), 0);
}
