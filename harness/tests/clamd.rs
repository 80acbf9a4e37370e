//! The promises the tests of the scanner rely on: a clamd that knows our signatures at both its addresses, faults
//! that are real, and nothing left behind.

mod watching;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use harness::clamd::{
    ADDRESS_VARIABLE, Clamd, EICAR_SIGNATURE, KNOWN_FILE, KNOWN_FILE_SIGNATURE, Options, PATTERN,
    PATTERN_SIGNATURE, STREAM_BYTES_MAX, eicar, shared,
};
use watching::{folders_of, in_the_end, is_open, is_silent, processes_of, say, services, told_of};

trait Line: Read + Write {}
impl<L: Read + Write> Line for L {}

fn lines(clamd: &Clamd) -> [Box<dyn Line>; 2] {
    let tcp = TcpStream::connect(("127.0.0.1", clamd.port())).expect("connected");
    let url = clamd.unix_url();
    let path = url.strip_prefix("unix:").expect("a path");
    [Box::new(tcp), Box::new(UnixStream::connect(path).expect("connected"))]
}

/// What clamd says to a file in one piece.
fn scanned(mut line: impl Line, bytes: &[u8]) -> String {
    let length = u32::try_from(bytes.len()).expect("a small file").to_be_bytes();
    let all = [b"zINSTREAM\0", &length[..], bytes, &[0; 4]].concat();
    // It may have answered and hung up before it was sent everything.
    let _ = line.write_all(&all);
    let mut answer = Vec::new();
    let _ = line.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).trim_end_matches('\0').to_owned()
}

#[test]
fn our_signatures_are_found_at_both_addresses() {
    let clamd = shared();
    let buried = [&[b'a'; 70_000], PATTERN, &[b'b'; 70_000]].concat();
    let too_much = vec![b'c'; usize::try_from(STREAM_BYTES_MAX).expect("a small number") + 1];
    for (bytes, expected) in [
        (&b"harmless"[..], "stream: OK".to_owned()),
        (&eicar(), format!("stream: {EICAR_SIGNATURE} FOUND")),
        (&buried, format!("stream: {PATTERN_SIGNATURE} FOUND")),
        (KNOWN_FILE, format!("stream: {KNOWN_FILE_SIGNATURE} FOUND")),
        (&too_much, "INSTREAM size limit exceeded. ERROR".to_owned()),
    ] {
        for line in lines(clamd) {
            assert_eq!(scanned(line, bytes), expected);
        }
    }
}

#[test]
fn a_clamd_is_set_up_as_asked() {
    let options = Options { stream_bytes_max: 100, settings: &["LogClean yes"] };
    let clamd = Clamd::start(options).expect("started");
    for (size, expected) in [(100, "stream: OK"), (101, "INSTREAM size limit exceeded. ERROR")] {
        for line in lines(&clamd) {
            assert_eq!(scanned(line, &vec![b'a'; size]), expected);
        }
    }
    let log = clamd.folder().expect("ours").join("log");
    let tells =
        || fs::read_to_string(&log).is_ok_and(|log| log.contains("instream(127.0.0.1") && log.contains("OK"));
    // It answers first and writes its log then.
    assert!(in_the_end(tells), "{:?}", fs::read_to_string(&log));
}

#[test]
fn faults_are_real_and_nothing_survives_the_drop() {
    let mut clamd = Clamd::start(Options::default()).expect("started");
    let (port, url) = (clamd.port(), clamd.unix_url());
    let folder = clamd.folder().expect("ours");

    for fault in [Clamd::kill, Clamd::stop] {
        fault(&mut clamd).expect("ended");
        assert!(!is_open(port), "one that has ended accepts connections");
        assert!(UnixStream::connect(folder.join("socket")).is_err(), "at its socket too");
        assert_eq!(clamd.pid(), None);
        assert!(fault(&mut clamd).is_err(), "ended what does not run");
        clamd.start_again().expect("started");
        assert!(clamd.start_again().is_err(), "started what runs");
        assert_eq!((clamd.port(), clamd.unix_url()), (port, url.clone()));
        for line in lines(&clamd) {
            assert_eq!(scanned(line, &eicar()), format!("stream: {EICAR_SIGNATURE} FOUND"));
        }
    }

    clamd.pause().expect("paused");
    let mut question = say(port, b"zPING\0");
    let mut answer = [0; 5];
    assert!(is_silent(&mut question), "a paused clamd answered");
    clamd.resume().expect("resumed");
    question.read_exact(&mut answer).expect("answered at last");
    assert_eq!(&answer, b"PONG\0");

    drop(clamd);
    assert!(!is_open(port), "a dropped clamd accepts connections");
    assert!(!folder.exists(), "a dropped clamd left its folder");
}

#[test]
fn nothing_is_left_of_a_process_that_was_killed() {
    let (mut process, urls) = services("clamd", ADDRESS_VARIABLE);
    let pid = process.id();
    let (tcp, _) = urls.split_once(',').expect("two addresses");
    let port = watching::port_of(tcp);
    assert!(is_open(port), "the services do not run");
    // The daemon and its watchdog.
    assert_eq!((folders_of(pid), processes_of(pid)), (1, 2));
    process.kill().expect("killed");
    process.wait().expect("reaped");
    let gone = || !is_open(port) && folders_of(pid) == 0 && processes_of(pid) == 0;
    assert!(in_the_end(gone), "clamd lives on");
}

#[test]
fn a_clamd_named_by_the_environment_is_used() {
    let test = "our_signatures_are_found_at_both_addresses";
    assert!(told_of(ADDRESS_VARIABLE, &shared().sharing_url(), test));
    let nobody = "tcp://127.0.0.1:1,unix:/no/such/socket";
    assert!(!told_of(ADDRESS_VARIABLE, nobody, test), "another clamd was started");
}
