//! A server process in a temporary folder of its own: started, signalled with all its children,
//! and ended on drop. Knows nothing about any particular server.

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

/// How long a server may take over its own ending before it is killed.
const PATIENCE_ON_DROP: Duration = Duration::from_secs(5);
/// How long the kernel may take to do what a signal asks of it.
const PATIENCE_WITH_SIGNALS: Duration = Duration::from_secs(60);

/// A server's folder, its process while there is one, and the watchdog that outlives us.
pub(crate) struct Server {
    folder: PathBuf,
    account: Option<Account>,
    quick_end: &'static str,
    process: Option<Child>,
    watchdog: Watchdog,
}

impl Server {
    /// Makes the folder. `quick_end` is the signal at which this kind of server ends at once but
    /// still clears away its shared memory and children.
    pub(crate) fn prepare(
        name: &str,
        account: Option<Account>,
        quick_end: &'static str,
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
        let watchdog = Watchdog::over(&folder, quick_end)?;
        if let Some(account) = account {
            account.own(&folder)?;
        }
        Ok(Self { folder, account, quick_end, process: None, watchdog })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Runs a preparing step such as initdb under the server's account, watched like the server.
    pub(crate) fn run(&mut self, mut command: Command) -> Result<(), Error> {
        self.make_ready(&mut command);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(Error::while_doing(format!("starting {command:?}")))?;
        self.watchdog.watch(Some(child.id()))?;
        let output =
            child.wait_with_output().map_err(Error::while_doing(format!("waiting for {command:?}")))?;
        self.watchdog.watch(None)?;
        command::successful(&command, output).map(drop)
    }

    /// Starts the server itself. Both its outputs go to the log in the folder.
    pub(crate) fn spawn(&mut self, mut command: Command) -> Result<(), Error> {
        if let Some(pid) = self.pid() {
            return Err(Error::new(format!("the server is running, as pid {pid}")));
        }
        self.make_ready(&mut command);
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())
            .map_err(Error::while_doing("opening the server's log"))?;
        let log_too = log.try_clone().map_err(Error::while_doing("opening the server's log"))?;
        let child = command
            .stdout(log)
            .stderr(log_too)
            .spawn()
            .map_err(Error::while_doing(format!("starting {command:?}")))?;
        let pid = child.id();
        self.process = Some(child);
        self.watchdog.watch(Some(pid))
    }

    /// A process group of its own keeps a Ctrl-C in the terminal from reaching the server before
    /// the tests have ended; the folder is one that the account can certainly enter.
    fn make_ready(&self, command: &mut Command) {
        if let Some(account) = self.account {
            account.take_on(command);
        }
        command.current_dir(&self.folder).stdin(Stdio::null()).process_group(0);
    }

    /// How the server ended, if it did so without being asked.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        let Some(process) = &mut self.process else {
            return Ok(None);
        };
        let status = process.try_wait().map_err(Error::while_doing("asking after the server"))?;
        if status.is_some() {
            self.process = None;
            self.watchdog.watch(None)?;
        }
        Ok(status)
    }

    /// Waits until the server, asked by its pid, is ready. One that is not in time is killed, for it
    /// would be in the way of another try.
    pub(crate) fn wait_until(
        &mut self,
        name: &str,
        patience: Duration,
        is_ready: impl Fn(u32) -> bool,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.ended()? {
                return Err(Error::new(format!(
                    "{name} ended while starting ({status}); its log ends:\n{}",
                    self.log_tail()
                )));
            }
            if is_ready(self.running_pid()?) {
                return Ok(());
            }
            if Instant::now() > deadline {
                self.kill()?;
                return Err(Error::new(format!(
                    "{name} was not ready within {patience:?}; its log ends:\n{}",
                    self.log_tail()
                )));
            }
            thread::sleep(POLL * 2);
        }
    }

    /// Asks the server to end with the signal given and waits until it has.
    pub(crate) fn end(&mut self, signal: &str, patience: Duration) -> Result<(), Error> {
        let pid = self.running_pid()?;
        // A paused server would sleep through any other signal.
        self.resume()?;
        process_tree::signal(signal, &[pid])?;
        let deadline = Instant::now() + patience;
        while self.ended()?.is_none() {
            if Instant::now() > deadline {
                return Err(Error::new(format!(
                    "pid {pid} did not end within {patience:?} of SIG{signal}; its log ends:\n{}",
                    self.log_tail()
                )));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Kills the server and all its children, as a power cut would.
    pub(crate) fn kill(&mut self) -> Result<(), Error> {
        let pid = self.running_pid()?;
        // Stopped first: a server sees its children die and would start others meanwhile. One that cannot be stopped
        // is killed all the same.
        let _ = self.pause();
        let descendants = process_tree::descendants(pid)?;
        process_tree::signal("KILL", &[pid])?;
        process_tree::signal_whoever_is_left("KILL", &descendants)?;
        if let Some(mut process) = self.process.take() {
            process.wait().map_err(Error::while_doing("waiting for the killed server"))?;
        }
        self.watchdog.watch(None)?;
        let deadline = Instant::now() + PATIENCE_WITH_SIGNALS;
        while descendants.iter().any(|pid| process_tree::alive(*pid)) {
            if Instant::now() > deadline {
                return Err(Error::new(format!("children of pid {pid} outlive SIGKILL")));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Stops the server and its children where they stand; connections stay open but silent.
    pub(crate) fn pause(&mut self) -> Result<(), Error> {
        let pid = self.running_pid()?;
        let deadline = Instant::now() + PATIENCE_WITH_SIGNALS;
        let mut family = vec![pid];
        loop {
            process_tree::signal_whoever_is_left("STOP", &family)?;
            // Each thread stops when it next runs, and may do something before.
            while family.iter().any(|pid| process_tree::runs(*pid)) {
                if Instant::now() > deadline {
                    return Err(Error::new(format!("pid {pid} or a child of it does not stop")));
                }
                thread::sleep(POLL);
            }
            // Those who have stopped make no more children.
            let mut found = process_tree::descendants(pid)?;
            found.push(pid);
            if found.iter().all(|pid| family.contains(pid)) {
                return Ok(());
            }
            family = found;
        }
    }

    pub(crate) fn resume(&mut self) -> Result<(), Error> {
        let pid = self.running_pid()?;
        process_tree::signal_whoever_is_left("CONT", &process_tree::descendants(pid)?)?;
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
        if self.process.is_some() && self.end(self.quick_end, PATIENCE_ON_DROP).is_err() {
            // Nothing better can be done about a failure here than what the watchdog does next.
            let _ = self.kill();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub(crate) fn accepts_connections(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

/// The keys of std's hash maps are the randomness one gets without a dependency.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
