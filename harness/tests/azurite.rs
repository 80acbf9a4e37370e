//! The guarantees that the tests of Azure need: signatures are verified, faults are real, blobs survive them, and all
//! servers and folders are removed at the end.

mod observe;

use std::io::Read;

use harness::azurite::{ADDRESS_VARIABLE, Azurite, shared};
use observe::{
    becomes_true, folders_of, gets_no_answer, is_open, port_of, processes_of, send_get, services,
    test_passes_with,
};

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
    send_get(shared().port(), &path).read_exact(&mut answer).expect("answered");
    assert_eq!(&answer, b"HTTP/1.1 403");
}

#[test]
fn saved_blobs_survive_a_kill_and_a_drop_removes_everything() {
    let mut azure = Azurite::start().expect("started");
    let port = azure.port();
    let folder = azure.folder().expect("started here");
    let blob = format!("/{}/blob", azure.create_container());
    assert_eq!(status(azure.request("PUT", &blob, b"kept")), 201);
    let read = |azure: &Azurite| azure.request("GET", &blob, b"").expect("read").body;

    azure.stop().expect("stopped");
    assert!(!is_open(port), "a stopped server accepts connections");
    azure.start_again().expect("started after a stop");
    assert!(azure.start_again().is_err(), "started a server that already runs");
    assert_eq!(read(&azure), b"kept");

    azure.kill().expect("killed");
    assert!(!is_open(port), "a killed server accepts connections");
    assert_eq!(azure.pid(), None);
    assert!(azure.request("GET", &blob, b"").is_err(), "a killed server answered");
    assert!(azure.kill().is_err(), "killed a server that does not run");
    azure.start_again().expect("started after a kill");
    assert_eq!(azure.port(), port);
    assert_eq!(read(&azure), b"kept");

    azure.pause().expect("paused");
    let mut connection = send_get(port, "/");
    let mut answer = [0; 12];
    assert!(gets_no_answer(&mut connection), "a paused server answered");
    azure.resume().expect("resumed");
    connection.read_exact(&mut answer).expect("answered after the pause");
    assert_eq!(read(&azure), b"kept");

    drop(azure);
    assert!(!is_open(port), "a dropped server accepts connections");
    assert!(!folder.exists(), "a dropped server left its folder");
}

#[test]
fn servers_and_folders_are_removed_when_their_process_is_killed() {
    let (mut process, url) = services("azure", ADDRESS_VARIABLE);
    let pid = process.id();
    assert!(is_open(port_of(&url)), "the server does not accept connections");
    // The server and its watchdog.
    assert_eq!((folders_of(pid), processes_of(pid)), (1, 2));
    process.kill().expect("killed");
    process.wait().expect("reaped");
    let is_removed = || !is_open(port_of(&url)) && folders_of(pid) == 0 && processes_of(pid) == 0;
    assert!(becomes_true(is_removed), "the server still runs");
}

#[test]
fn a_server_named_by_the_environment_is_used() {
    let test = "blobs_are_written_listed_and_read";
    assert!(test_passes_with(ADDRESS_VARIABLE, &shared().url(), test));
    let nowhere = "http://devstoreaccount1:a2V5@127.0.0.1:1";
    assert!(!test_passes_with(ADDRESS_VARIABLE, nowhere, test), "started another server instead");
}
