//! What the tests of all servers look at: ports, processes, folders, and `cargo xtask services`.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// For what has to come in the end, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);
const SILENCE: Duration = Duration::from_millis(500);

pub fn is_open(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

pub fn in_the_end(condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Sends an unsigned request.
pub fn ask(port: u16, path: &str) -> TcpStream {
    say(port, format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes())
}

/// Sends this on a connection of its own.
pub fn say(port: u16, words: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream.write_all(words).expect("sent");
    stream
}

/// Whether nothing comes for a while.
pub fn is_silent(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(SILENCE)).expect("set");
    let is_silent = stream.read(&mut [0]).is_err();
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    is_silent
}

/// Whether a test of this binary passes in a process that is told of a server.
pub fn told_of(variable: &str, url: &str, test: &str) -> bool {
    Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", test])
        .env(variable, url)
        .output()
        .expect("started")
        .status
        .success()
}

/// `cargo xtask services` in a process of its own, and what it prints for the variable.
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

/// The port in a URL that ends with it, or has only a path after it.
pub fn port_of(url: &str) -> u16 {
    let (_, port_and_path) = url.rsplit_once(':').expect("a port");
    port_and_path.split('/').next().and_then(|port| port.parse().ok()).expect("a number")
}

/// Folders of the servers that the process started.
pub fn folders_of(pid: u32) -> usize {
    std::env::temp_dir()
        .read_dir()
        .expect("readable")
        .flatten()
        .filter(|entry| is_of(pid, &entry.file_name().to_string_lossy()))
        .count()
}

/// Processes with such a folder among their arguments: servers and watchdogs alike.
pub fn processes_of(pid: u32) -> usize {
    fs::read_dir("/proc")
        .expect("readable")
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .filter(|arguments| is_of(pid, &String::from_utf8_lossy(arguments)))
        .count()
}

fn is_of(pid: u32, text: &str) -> bool {
    text.contains("wharfinger-") && text.contains(&format!("-{pid}-"))
}
