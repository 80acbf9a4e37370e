//! Helpers for the tests of all servers: ports, processes, folders, and `cargo xtask services`.

#![allow(dead_code, reason = "each test binary uses only some of them")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);
const SILENCE_TIME: Duration = Duration::from_millis(500);

pub fn is_open(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

pub fn becomes_true(condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Sends an unsigned request.
pub fn send_get(port: u16, path: &str) -> TcpStream {
    send(port, format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes())
}

/// Sends these bytes on a new connection.
pub fn send(port: u16, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    stream.write_all(bytes).expect("sent");
    stream
}

/// Whether no bytes come for half a second.
pub fn gets_no_answer(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(SILENCE_TIME)).expect("set");
    let gets_no_answer = stream.read(&mut [0]).is_err();
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    gets_no_answer
}

/// Whether a test of this binary passes in a process in which the variable has this URL.
pub fn test_passes_with(variable: &str, url: &str, test: &str) -> bool {
    Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", test])
        .env(variable, url)
        .output()
        .expect("started")
        .status
        .success()
}

/// Starts `cargo xtask services` in a separate process, and returns the value that it prints for the variable.
pub fn services(name: &str, variable: &str) -> (Child, String) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_harness"))
        .args(["services", name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let output = process.stdout.as_mut().expect("piped");
    let start = format!("{variable}=");
    let value = BufReader::new(output)
        .lines()
        .map(|line| line.expect("a line of text"))
        .find_map(|line| Some(line.strip_prefix(&start)?.to_owned()))
        .expect("the variable is printed");
    (process, value)
}

/// The port of a URL.
pub fn port_of(url: &str) -> u16 {
    let (_, port_and_path) = url.rsplit_once(':').expect("a port");
    port_and_path.split('/').next().and_then(|port| port.parse().ok()).expect("a number")
}

/// The number of folders of servers that the process started.
pub fn folders_of(pid: u32) -> usize {
    std::env::temp_dir()
        .read_dir()
        .expect("readable")
        .flatten()
        .filter(|entry| belongs_to(pid, &entry.file_name().to_string_lossy()))
        .count()
}

/// The number of processes, servers and watchdogs, that have such a folder in their arguments.
pub fn processes_of(pid: u32) -> usize {
    fs::read_dir("/proc")
        .expect("readable")
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .filter(|arguments| belongs_to(pid, &String::from_utf8_lossy(arguments)))
        .count()
}

fn belongs_to(pid: u32, text: &str) -> bool {
    text.contains("wharfinger-") && text.contains(&format!("-{pid}-"))
}
