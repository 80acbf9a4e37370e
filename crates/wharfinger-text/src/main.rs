//! The child process as a separate program, for tests and manual use. `attack` sets the same sandbox and then tries
//! calls that hostile code would try.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, getppid, kill_process};
use wharfinger_text::{child, sandbox};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [child::SUBCOMMAND] => child::main(),
        ["attack", file] => attack(file),
        _ => {
            eprintln!("usage: extract-text {} (a request as JSON on standard input)", child::SUBCOMMAND);
            ExitCode::from(2)
        }
    }
}

/// Returns whether the attempt succeeded.
type Attempt<'a> = Box<dyn Fn() -> bool + 'a>;

/// Prints one line for each attempt that succeeded.
fn attack(file: &str) -> ExitCode {
    let mut status = File::open("/proc/self/status").expect("the status of this process");
    let mut open_before = File::options().append(true).open(file).expect("the file");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let parent = getppid().or(Pid::from_raw(1));
    let Ok(restricted) = sandbox::restrict_self(|| Ok::<(), Infallible>(()));
    println!("{restricted:?}");
    let mut status_text = String::new();
    let _ = status.read_to_string(&mut status_text);
    println!("{}", status_text.lines().find(|line| line.starts_with("NoNewPrivs")).unwrap_or_default());
    let attempts: [(&str, Attempt<'_>); 11] = [
        ("read", Box::new(|| File::open("/etc/passwd").is_ok())),
        ("read again", Box::new(|| File::open(file).is_ok())),
        ("create", Box::new(|| File::create(format!("{file}.new")).is_ok())),
        ("rename", Box::new(|| fs::rename(file, format!("{file}.moved")).is_ok())),
        ("unlink", Box::new(|| fs::remove_file(file).is_ok())),
        ("list", Box::new(|| fs::read_dir("/").is_ok())),
        ("connect", Box::new(|| TcpStream::connect(address).is_ok())),
        ("send", Box::new(|| UdpSocket::bind("127.0.0.1:0").is_ok())),
        ("unix", Box::new(|| UnixStream::pair().is_ok())),
        ("signal", Box::new(move || parent.is_some_and(|pid| kill_process(pid, Signal::URG).is_ok()))),
        ("fork", Box::new(|| Command::new("/bin/true").spawn().is_ok())),
    ];
    for (name, attempt) in &attempts {
        if attempt() {
            println!("possible: {name}");
        }
    }
    let spawned = std::thread::Builder::new().spawn(|| ());
    if spawned.is_ok() {
        println!("possible: thread");
    }
    match writeln!(open_before, "written") {
        Ok(()) => println!("the open file can be written"),
        Err(error) => println!("the open file cannot be written: {error}"),
    }
    ExitCode::SUCCESS
}
