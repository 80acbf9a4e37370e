//! The promises the tests of Azure rely on: signatures that count, faults that are real, blobs
//! that survive them, and nothing left behind.

mod watching;

use std::io::Read;

use harness::azurite::{ADDRESS_VARIABLE, Azurite, shared};
use watching::{ask, folders_of, in_the_end, is_open, is_silent, port_of, processes_of, services, told_of};

fn status(answer: Result<harness::Answer, harness::Error>) -> u16 {
    answer.expect("answered").status
}

#[test]
fn blobs_are_written_listed_and_read() {
    let azure = shared();
    let container = azure.create_container();
    assert_eq!(status(azure.request("PUT", &format!("/{container}/a%20b"), b"content")), 201);
    let path = format!("/{container}?restype=container&comp=list&prefix=a%20");
    let list = azure.request("GET", &path, b"").expect("listed");
    assert_eq!(list.status, 200);
    assert!(String::from_utf8_lossy(&list.body).contains("<Name>a b</Name>"));
    let blob = azure.request("GET", &format!("/{container}/a%20b"), b"").expect("read");
    assert_eq!((blob.status, &*blob.body), (200, &b"content"[..]));
}

#[test]
fn an_unsigned_request_is_refused() {
    let mut answer = [0; 12];
    let path = format!("/{}?comp=list", shared().account());
    ask(shared().port(), &path).read_exact(&mut answer).expect("answered");
    assert_eq!(&answer, b"HTTP/1.1 403");
}

#[test]
fn what_was_saved_survives_faults_and_nothing_survives_the_drop() {
    let mut azure = Azurite::start().expect("started");
    let port = azure.port();
    let folder = azure.folder().expect("ours");
    let blob = format!("/{}/blob", azure.create_container());
    assert_eq!(status(azure.request("PUT", &blob, b"kept")), 201);
    let read = |azure: &Azurite| azure.request("GET", &blob, b"").expect("read").body;

    azure.stop().expect("stopped");
    assert!(!is_open(port), "a stopped server accepts connections");
    azure.start_again().expect("started after a stop");
    assert!(azure.start_again().is_err(), "started what runs");
    assert_eq!(read(&azure), b"kept");

    azure.kill().expect("killed");
    assert!(!is_open(port), "a killed server accepts connections");
    assert_eq!(azure.pid(), None);
    assert!(azure.request("GET", &blob, b"").is_err(), "a killed server answered");
    assert!(azure.kill().is_err(), "killed what does not run");
    azure.start_again().expect("started after a kill");
    assert_eq!(azure.port(), port);
    assert_eq!(read(&azure), b"kept");

    azure.pause().expect("paused");
    let mut question = ask(port, "/");
    let mut answer = [0; 12];
    assert!(is_silent(&mut question), "a paused server answered");
    azure.resume().expect("resumed");
    question.read_exact(&mut answer).expect("answered at last");
    assert_eq!(read(&azure), b"kept");

    drop(azure);
    assert!(!is_open(port), "a dropped server accepts connections");
    assert!(!folder.exists(), "a dropped server left its folder");
}

#[test]
fn nothing_is_left_of_a_process_that_was_killed() {
    let (mut process, url) = services("azure", ADDRESS_VARIABLE);
    let pid = process.id();
    assert!(is_open(port_of(&url)), "the services do not run");
    // The server and its watchdog.
    assert_eq!((folders_of(pid), processes_of(pid)), (1, 2));
    process.kill().expect("killed");
    process.wait().expect("reaped");
    let gone = || !is_open(port_of(&url)) && folders_of(pid) == 0 && processes_of(pid) == 0;
    assert!(in_the_end(gone), "the server lives on");
}

#[test]
fn a_server_named_by_the_environment_is_used() {
    let test = "blobs_are_written_listed_and_read";
    assert!(told_of(ADDRESS_VARIABLE, &shared().url(), test));
    let nowhere = "http://devstoreaccount1:a2V5@127.0.0.1:1";
    assert!(!told_of(ADDRESS_VARIABLE, nowhere, test), "another server was started");
}
