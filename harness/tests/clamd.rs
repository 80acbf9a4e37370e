//! The guarantees that the tests of the scanner need: clamd knows our signatures on both addresses, faults are real,
//! and all servers and folders are removed at the end.

mod observe;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use harness::clamd::{
    ADDRESS_VARIABLE, Clamd, EICAR_SIGNATURE, KNOWN_FILE, KNOWN_FILE_SIGNATURE, Options, PATTERN,
    PATTERN_SIGNATURE, STREAM_BYTES_MAX, eicar, shared,
};
use observe::{
    becomes_true, folders_of, gets_no_answer, is_open, processes_of, send, services, test_passes_with,
};

trait Connection: Read + Write {}
impl<C: Read + Write> Connection for C {}

fn connections(clamd: &Clamd) -> [Box<dyn Connection>; 2] {
    let tcp = TcpStream::connect(("127.0.0.1", clamd.port())).expect("connected");
    let url = clamd.unix_url();
    let path = url.strip_prefix("unix:").expect("a path");
    [Box::new(tcp), Box::new(UnixStream::connect(path).expect("connected"))]
}

/// clamd's answer to a file that is sent in one piece.
fn scan(mut connection: impl Connection, bytes: &[u8]) -> String {
    let length = u32::try_from(bytes.len()).expect("a small file").to_be_bytes();
    let all = [b"zINSTREAM\0", &length[..], bytes, &[0; 4]].concat();
    // clamd may answer and disconnect before it has read everything.
    let _ = connection.write_all(&all);
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).trim_end_matches('\0').to_owned()
}

#[test]
fn our_signatures_are_found_on_both_addresses() {
    let clamd = shared();
    let in_the_middle = [&[b'a'; 70_000], PATTERN, &[b'b'; 70_000]].concat();
    let too_much = vec![b'c'; usize::try_from(STREAM_BYTES_MAX).expect("a small number") + 1];
    for (bytes, expected) in [
        (&b"harmless"[..], "stream: OK".to_owned()),
        (&eicar(), format!("stream: {EICAR_SIGNATURE} FOUND")),
        (&in_the_middle, format!("stream: {PATTERN_SIGNATURE} FOUND")),
        (KNOWN_FILE, format!("stream: {KNOWN_FILE_SIGNATURE} FOUND")),
        (&too_much, "INSTREAM size limit exceeded. ERROR".to_owned()),
    ] {
        for connection in connections(clamd) {
            assert_eq!(scan(connection, bytes), expected);
        }
    }
}

#[test]
fn the_options_are_applied() {
    let options = Options { stream_bytes_max: 100, settings: &["LogClean yes"] };
    let clamd = Clamd::start(options).expect("started");
    for (size, expected) in [(100, "stream: OK"), (101, "INSTREAM size limit exceeded. ERROR")] {
        for connection in connections(&clamd) {
            assert_eq!(scan(connection, &vec![b'a'; size]), expected);
        }
    }
    let log = clamd.folder().expect("started here").join("log");
    let is_logged =
        || fs::read_to_string(&log).is_ok_and(|log| log.contains("instream(127.0.0.1") && log.contains("OK"));
    // clamd answers before it writes its log.
    assert!(becomes_true(is_logged), "{:?}", fs::read_to_string(&log));
}

#[test]
fn a_stopped_clamd_starts_again_and_a_drop_removes_everything() {
    let mut clamd = Clamd::start(Options::default()).expect("started");
    let (port, url) = (clamd.port(), clamd.unix_url());
    let folder = clamd.folder().expect("started here");

    for stop in [Clamd::kill, Clamd::stop] {
        stop(&mut clamd).expect("stopped");
        assert!(!is_open(port), "a stopped clamd accepts connections on its port");
        assert!(
            UnixStream::connect(folder.join("socket")).is_err(),
            "a stopped clamd accepts connections on its socket"
        );
        assert_eq!(clamd.pid(), None);
        assert!(stop(&mut clamd).is_err(), "stopped a clamd that does not run");
        clamd.start_again().expect("started");
        assert!(clamd.start_again().is_err(), "started a server that already runs");
        assert_eq!((clamd.port(), clamd.unix_url()), (port, url.clone()));
        for connection in connections(&clamd) {
            assert_eq!(scan(connection, &eicar()), format!("stream: {EICAR_SIGNATURE} FOUND"));
        }
    }

    clamd.pause().expect("paused");
    let mut connection = send(port, b"zPING\0");
    let mut answer = [0; 5];
    assert!(gets_no_answer(&mut connection), "a paused clamd answered");
    clamd.resume().expect("resumed");
    connection.read_exact(&mut answer).expect("answered after the pause");
    assert_eq!(&answer, b"PONG\0");

    drop(clamd);
    assert!(!is_open(port), "a dropped clamd accepts connections");
    assert!(!folder.exists(), "a dropped clamd left its folder");
}

#[test]
fn servers_and_folders_are_removed_when_their_process_is_killed() {
    let (mut process, urls) = services("clamd", ADDRESS_VARIABLE);
    let pid = process.id();
    let (tcp, _) = urls.split_once(',').expect("two addresses");
    let port = observe::port_of(tcp);
    assert!(is_open(port), "the server does not accept connections");
    // The daemon and its watchdog.
    assert_eq!((folders_of(pid), processes_of(pid)), (1, 2));
    process.kill().expect("killed");
    process.wait().expect("reaped");
    let is_removed = || !is_open(port) && folders_of(pid) == 0 && processes_of(pid) == 0;
    assert!(becomes_true(is_removed), "clamd still runs");
}

#[test]
fn a_clamd_named_by_the_environment_is_used() {
    let test = "our_signatures_are_found_on_both_addresses";
    assert!(test_passes_with(ADDRESS_VARIABLE, &shared().sharing_url(), test));
    let nowhere = "tcp://127.0.0.1:1,unix:/no/such/socket";
    assert!(!test_passes_with(ADDRESS_VARIABLE, nowhere, test), "started another clamd instead");
}
