//! A server process with a temporary folder: started, signalled together with all its child processes, and stopped on
//! drop. The same code runs every kind of server.

mod listener;
mod ports;
mod process_tree;
mod watchdog;

use std::fs::{self, DirBuilder, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use self::listener::listens;
pub use self::ports::free_address;
pub(crate) use self::ports::{free_port, on_free_ports};
use self::watchdog::Watchdog;
use crate::Error;
use crate::account::Account;
use crate::command;

const POLL: Duration = Duration::from_millis(10);

/// How long a server may take to stop on drop before it is killed.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the kernel may take to apply a signal.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(60);

/// A server's folder, its process if it runs, and its watchdog.
pub(crate) struct Server {
    folder: PathBuf,
    account: Option<Account>,
    stop_signal: &'static str,
    process: Option<Child>,
    watchdog: Watchdog,
}

impl Server {
    /// Creates the folder. `stop_signal` stops this kind of server at once; the server still removes its shared memory
    /// and child processes.
    pub(crate) fn prepare(
        name: &str,
        account: Option<Account>,
        stop_signal: &'static str,
    ) -> Result<Self, Error> {
        let folder = std::env::temp_dir().join(format!(
            "wharfinger-{name}-{}-{:08x}",
            std::process::id(),
            random() >> 32
        ));
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(Error::while_doing(format!("creating {}", folder.display())))?;
        let watchdog = Watchdog::start(&folder, stop_signal)?;
        if let Some(account) = account {
            account.give_folder(&folder)?;
        }
        Ok(Self { folder, account, stop_signal, process: None, watchdog })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Runs a step before the start, such as initdb, under the server's account and with the watchdog.
    pub(crate) fn run(&mut self, mut command: Command) -> Result<(), Error> {
        self.configure(&mut command);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(Error::while_doing(format!("starting {command:?}")))?;
        self.watchdog.watch(Some(child.id()))?;
        let output =
            child.wait_with_output().map_err(Error::while_doing(format!("waiting for {command:?}")))?;
        self.watchdog.watch(None)?;
        command::successful(&command, output).map(drop)
    }

    /// Starts the server. Its standard output and standard error go to the log in the folder.
    pub(crate) fn spawn(&mut self, mut command: Command) -> Result<(), Error> {
        if let Some(pid) = self.pid() {
            return Err(Error::new(format!("the server is already running as pid {pid}")));
        }
        self.configure(&mut command);
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())
            .map_err(Error::while_doing("opening the server's log"))?;
        let log_copy = log.try_clone().map_err(Error::while_doing("opening the server's log"))?;
        let child = command
            .stdout(log)
            .stderr(log_copy)
            .spawn()
            .map_err(Error::while_doing(format!("starting {command:?}")))?;
        let pid = child.id();
        self.process = Some(child);
        self.watchdog.watch(Some(pid))
    }

    /// A separate process group, so that Ctrl-C in the terminal does not stop the server before the tests end. The
    /// account can always enter the working folder.
    fn configure(&self, command: &mut Command) {
        if let Some(account) = self.account {
            account.apply_to(command);
        }
        command.current_dir(&self.folder).stdin(Stdio::null()).process_group(0);
    }

    /// The exit status if the server has exited.
    pub(crate) fn exit_status(&mut self) -> Result<Option<ExitStatus>, Error> {
        let Some(process) = &mut self.process else {
            return Ok(None);
        };
        let status = process.try_wait().map_err(Error::while_doing("reading the state of the server"))?;
        if status.is_some() {
            self.process = None;
            self.watchdog.watch(None)?;
        }
        Ok(status)
    }

    /// Waits until `is_ready` returns true for the server's pid. Kills the server after the timeout, because it would
    /// block the next attempt.
    pub(crate) fn wait_until(
        &mut self,
        name: &str,
        timeout: Duration,
        is_ready: impl Fn(u32) -> bool,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.exit_status()? {
                return Err(Error::new(format!(
                    "{name} ended while starting ({status}). The end of its log:\n{}",
                    self.log_tail()
                )));
            }
            if is_ready(self.running_pid()?) {
                return Ok(());
            }
            if Instant::now() > deadline {
                self.kill()?;
                return Err(Error::new(format!(
                    "{name} was not ready within {timeout:?}. The end of its log:\n{}",
                    self.log_tail()
                )));
            }
            thread::sleep(POLL * 2);
        }
    }

    /// Sends the signal and waits until the server has exited.
    pub(crate) fn stop(&mut self, signal: &str, timeout: Duration) -> Result<(), Error> {
        let pid = self.running_pid()?;
        // A paused server does not handle other signals.
        self.resume()?;
        process_tree::signal(signal, &[pid])?;
        let deadline = Instant::now() + timeout;
        while self.exit_status()?.is_none() {
            if Instant::now() > deadline {
                return Err(Error::new(format!(
                    "pid {pid} did not exit within {timeout:?} of SIG{signal}. The end of its log:\n{}",
                    self.log_tail()
                )));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Kills the server and all its child processes.
    pub(crate) fn kill(&mut self) -> Result<(), Error> {
        let pid = self.running_pid()?;
        // Pauses it first, because a server that sees its child processes die may start new ones. If it cannot be
        // paused, it is killed anyway.
        let _ = self.pause();
        let descendants = process_tree::descendants(pid)?;
        process_tree::signal("KILL", &[pid])?;
        process_tree::signal_remaining("KILL", &descendants)?;
        if let Some(mut process) = self.process.take() {
            process.wait().map_err(Error::while_doing("waiting for the end of the killed server"))?;
        }
        self.watchdog.watch(None)?;
        let deadline = Instant::now() + SIGNAL_TIMEOUT;
        while descendants.iter().any(|pid| process_tree::alive(*pid)) {
            if Instant::now() > deadline {
                return Err(Error::new(format!("child processes of pid {pid} still run after SIGKILL")));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Pauses the server and its child processes. Connections stay open, and no answer comes.
    pub(crate) fn pause(&mut self) -> Result<(), Error> {
        let pid = self.running_pid()?;
        let deadline = Instant::now() + SIGNAL_TIMEOUT;
        let mut pids = vec![pid];
        loop {
            process_tree::signal_remaining("STOP", &pids)?;
            // A thread stops when it runs next, and may still do something before that.
            while pids.iter().any(|pid| process_tree::runs(*pid)) {
                if Instant::now() > deadline {
                    return Err(Error::new(format!("pid {pid} or one of its child processes does not stop")));
                }
                thread::sleep(POLL);
            }
            // Stopped processes start no more child processes.
            let mut found = process_tree::descendants(pid)?;
            found.push(pid);
            if found.iter().all(|found_pid| pids.contains(found_pid)) {
                return Ok(());
            }
            pids = found;
        }
    }

    pub(crate) fn resume(&mut self) -> Result<(), Error> {
        let pid = self.running_pid()?;
        process_tree::signal_remaining("CONT", &process_tree::descendants(pid)?)?;
        process_tree::signal("CONT", &[pid])
    }

    fn running_pid(&self) -> Result<u32, Error> {
        self.pid().ok_or_else(|| Error::new("the server is not running"))
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    pub(crate) fn log_tail(&self) -> String {
        match fs::read(self.log()) {
            Ok(log) => command::last_lines(&String::from_utf8_lossy(&log), 30),
            Err(error) => format!("(no log: {error})"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.process.is_some() && self.stop(self.stop_signal, DROP_TIMEOUT).is_err() {
            // If this fails too, the watchdog stops the server.
            let _ = self.kill();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub(crate) fn accepts_connections(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

/// From the random keys of std's hash maps, because that needs no dependency.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
