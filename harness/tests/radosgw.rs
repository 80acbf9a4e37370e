//! The guarantees that the tests of S3 need: signatures and rights are verified, faults are real, objects survive them,
//! and all servers and folders are removed at the end.

mod observe;

use std::io::Read;

use harness::radosgw::{ADDRESS_VARIABLE, Credentials, Options, Radosgw, Rights, shared};
use observe::{
    becomes_true, folders_of, gets_no_answer, is_open, port_of, processes_of, send_get, services,
    test_passes_with,
};

fn status(answer: Result<harness::Answer, harness::Error>) -> u16 {
    answer.expect("answered").status
}

#[test]
fn objects_are_written_listed_and_read() {
    let s3 = shared();
    let bucket = s3.create_bucket();
    assert_eq!(status(s3.request("PUT", &format!("/{bucket}/a%20b/%C3%A9"), b"content")), 200);
    let list = s3.request("GET", &format!("/{bucket}?list-type=2&prefix=a%20"), b"").expect("listed");
    assert_eq!(list.status, 200);
    assert!(String::from_utf8_lossy(&list.body).contains("<Key>a b/é</Key>"));
    let object = s3.request("GET", &format!("/{bucket}/a%20b/%C3%A9"), b"").expect("read");
    assert_eq!((object.status, &*object.body), (200, &b"content"[..]));
}

#[test]
fn large_objects_can_be_stored_on_disk() {
    let s3 = Radosgw::start_with(Options { on_disk: true }).expect("started");
    let object = format!("/{}/object", s3.create_bucket());
    let large = vec![7; 50_000_000];
    assert_eq!(status(s3.request("PUT", &object, &large)), 200);
    assert!(s3.request("GET", &object, b"").expect("read").body == large);
}

#[test]
fn a_wrong_signature_is_refused() {
    let s3 = shared();
    let bucket = s3.create_bucket();
    let keys = Credentials { access_key: s3.access_key().to_owned(), secret_key: "guessed".to_owned() };
    let answer = s3.request_as(&keys, "GET", &format!("/{bucket}"), b"").expect("answered");
    assert_eq!(answer.status, 403);
    assert!(String::from_utf8_lossy(&answer.body).contains("SignatureDoesNotMatch"));
}

#[test]
fn keys_have_only_their_own_rights() {
    let s3 = Radosgw::start().expect("started");
    let bucket = s3.create_bucket();
    let object = format!("/{bucket}/object");
    assert_eq!(status(s3.request("PUT", &object, b"content")), 200);
    let outcomes = |keys: &Credentials, bucket: &str| {
        let at = |method, path: &str, body| status(s3.request_as(keys, method, path, body));
        let object = format!("{bucket}/object");
        [
            at("GET", bucket, b""),
            at("GET", &object, b""),
            at("PUT", &object, b"new"),
            at("DELETE", &object, b""),
        ]
    };
    let owners_bucket = format!("/{bucket}");
    let reader = s3.add_keys(Rights::ReadOnly).expect("made");
    assert_eq!(outcomes(&reader, &owners_bucket), [200, 200, 403, 403]);
    let writer = s3.add_keys(Rights::WriteOnly).expect("made");
    assert_eq!(outcomes(&writer, &owners_bucket), [403, 403, 200, 204]);

    let separate = s3.add_keys(Rights::WithoutDelete).expect("made");
    assert_eq!(outcomes(&separate, &owners_bucket), [403, 403, 403, 403]);
    assert_eq!(status(s3.request_as(&separate, "PUT", "/separate", b"")), 200);
    assert_eq!(status(s3.request_as(&separate, "PUT", "/separate/object", b"content")), 200);
    assert_eq!(outcomes(&separate, "/separate"), [200, 200, 200, 403]);
}

#[test]
fn acknowledged_objects_survive_a_kill_and_a_drop_removes_everything() {
    let mut s3 = Radosgw::start().expect("started");
    let port = s3.port();
    let folder = s3.folder().expect("started here");
    let bucket = s3.create_bucket();
    let object = format!("/{bucket}/object");
    assert_eq!(status(s3.request("PUT", &object, b"kept")), 200);
    let read = |s3: &Radosgw| s3.request("GET", &object, b"").expect("read").body;

    s3.kill().expect("killed");
    assert!(!is_open(port), "a killed gateway accepts connections");
    assert_eq!(s3.pid(), None);
    assert!(s3.request("GET", &object, b"").is_err(), "a killed gateway answered");
    assert!(s3.kill().is_err(), "killed a server that does not run");
    s3.start_again().expect("started after a kill");
    assert_eq!(s3.port(), port);
    assert_eq!(read(&s3), b"kept");
    s3.create_bucket();

    s3.stop().expect("stopped");
    assert!(!is_open(port), "a stopped gateway accepts connections");
    s3.start_again().expect("started after a stop");
    assert!(s3.start_again().is_err(), "started a server that already runs");
    assert_eq!(read(&s3), b"kept");

    s3.pause().expect("paused");
    let mut connection = send_get(port, "/");
    let mut answer = [0; 12];
    assert!(gets_no_answer(&mut connection), "a paused gateway answered");
    s3.resume().expect("resumed");
    connection.read_exact(&mut answer).expect("answered after the pause");
    assert_eq!(&answer, b"HTTP/1.1 200");
    assert_eq!(read(&s3), b"kept");

    drop(s3);
    assert!(!is_open(port), "a dropped gateway accepts connections");
    assert!(!folder.exists(), "a dropped gateway left its folder");
}

#[test]
fn servers_and_folders_are_removed_when_their_process_is_killed() {
    let (mut process, url) = services("s3", ADDRESS_VARIABLE);
    let pid = process.id();
    assert!(is_open(port_of(&url)), "the server does not accept connections");
    // Monitor, OSD and gateway, each with its watchdog.
    assert_eq!((folders_of(pid), processes_of(pid)), (3, 6));
    process.kill().expect("killed");
    process.wait().expect("reaped");
    let is_removed = || !is_open(port_of(&url)) && folders_of(pid) == 0 && processes_of(pid) == 0;
    assert!(becomes_true(is_removed), "the servers still run");
}

#[test]
fn servers_and_folders_are_removed_at_the_end_of_input() {
    let (mut process, url) = services("s3", ADDRESS_VARIABLE);
    drop(process.stdin.take());
    assert!(process.wait().expect("ended").success());
    assert!(!is_open(port_of(&url)), "the server still runs");
    assert_eq!((folders_of(process.id()), processes_of(process.id())), (0, 0));
}

#[test]
fn a_server_named_by_the_environment_is_used() {
    let test = "objects_are_written_listed_and_read";
    assert!(test_passes_with(ADDRESS_VARIABLE, &shared().url(), test));
    assert!(
        !test_passes_with(ADDRESS_VARIABLE, "http://key:secret@127.0.0.1:1", test),
        "started another server instead"
    );
    assert!(
        !test_passes_with(ADDRESS_VARIABLE, &shared().url().replace("http://TEST", "http://OTHER"), test),
        "the server accepted wrong keys"
    );
}
