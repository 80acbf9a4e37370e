//! A real Redis server for tests, alone or as a cluster of one node, with methods that make it fail. A test that makes
//! its server fail starts a separate one. The others share one.

mod address;
mod binaries;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use self::address::Address;
use self::binaries::Binaries;
use crate::packages::at;
use crate::server::{Server, free_port, listens, on_free_ports, random};
use crate::{Error, command, sharing};

/// The variable with the URL of a running server. [`shared`] uses that server instead of starting one.
pub const ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_REDIS";

/// More than the number of tests that share a server.
const DATABASES: u64 = 4_096;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Options of one server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub persistence: Persistence,
    /// Whether the server is a cluster of one node that holds all slots.
    pub cluster: bool,
    /// The password for clients. [`Redis::url`] contains it.
    pub password: Option<&'static str>,
}

/// Which data a server has after a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// No data.
    None,
    /// The data of the last [`Redis::snapshot`]. The server never takes a snapshot itself, also not at [`Redis::stop`].
    #[default]
    Snapshots,
    /// All acknowledged writes.
    AppendOnly,
}

/// A Redis server that this process started and stops on drop, or one that was already running.
pub struct Redis {
    binaries: Binaries,
    address: Address,
    started: Option<Started>,
}

/// The process of a server that was started here. Only this can be stopped, killed or paused.
struct Started {
    server: Server,
    options: Options,
    /// The port for messages between cluster nodes.
    bus_port: u16,
}

/// The server that all tests of this process share: the one that [`ADDRESS_VARIABLE`] names, or one that is started now
/// and ends with the process. Tests that use the same database must use different keys.
///
/// # Panics
///
/// Panics if there is no server. A test without its server must fail.
pub fn shared() -> &'static Redis {
    static SHARED: OnceLock<Result<Redis, Error>> = OnceLock::new();
    sharing::once("Redis", &SHARED, Redis::from_environment)
}

impl Redis {
    /// Starts a separate server on a free port, with its data in a temporary folder.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(Options::default())
    }

    pub fn start_with(options: Options) -> Result<Self, Error> {
        on_free_ports(&["Address already in use"], || {
            let mut redis = Self::prepare(options)?;
            redis.launch().map(|()| redis)
        })
    }

    /// Everything except the start: a folder and an address.
    fn prepare(options: Options) -> Result<Self, Error> {
        let binaries = Binaries::find_or_unpack()?;
        // SIGKILL: it has no child processes and no shared memory.
        let server = Server::prepare("redis", None, "KILL")?;
        let address = Address::local(free_port()?, options.password);
        let started = Started { server, options, bus_port: free_port()? };
        Ok(Self { binaries, address, started: Some(started) })
    }

    /// The running server that [`ADDRESS_VARIABLE`] names, or a new one if the variable is not set.
    pub fn from_environment() -> Result<Self, Error> {
        let Some(address) = sharing::named_by(ADDRESS_VARIABLE, Address::parse)? else {
            return Self::start();
        };
        let redis = Self { binaries: Binaries::find_or_unpack()?, address, started: None };
        redis
            .cli(&["PING"])
            .map_err(Error::while_doing(format!("reaching the server that {ADDRESS_VARIABLE} names")))?;
        Ok(redis)
    }

    /// The URL of the server: `redis://127.0.0.1:port/0`. Also the value of [`ADDRESS_VARIABLE`] for other processes.
    pub fn url(&self) -> String {
        self.address.url()
    }

    /// The URL of a separate database, for a test that shares the server and must be alone in its database.
    pub fn own_database(&self) -> String {
        let url = self.address.url();
        let server = url.strip_suffix("/0").unwrap_or(&url);
        // Consecutive numbers, so that no two tests of a process get the same database. The first number is random,
        // because several processes share a server.
        static NEXT: OnceLock<AtomicU64> = OnceLock::new();
        let next = NEXT.get_or_init(|| AtomicU64::new(random() >> 1)).fetch_add(1, Ordering::Relaxed);
        format!("{server}/{}", next % DATABASES)
    }

    pub fn port(&self) -> u16 {
        self.address.port
    }

    /// None: it was not started here, or it does not run.
    pub fn pid(&self) -> Option<u32> {
        self.started.as_ref().and_then(|started| started.server.pid())
    }

    /// The folder with data and log. None: it was not started here.
    pub fn folder(&self) -> Option<PathBuf> {
        Some(self.started.as_ref()?.server.folder().to_owned())
    }

    /// `redis-cli` or `redis-benchmark`, with the address and password of this server.
    pub fn command(&self, program: &str) -> Command {
        client_command(&self.binaries, &self.address, program)
    }

    /// Sends one command with `redis-cli` and returns the raw reply, without quotes and types. An error reply is an
    /// `Err`.
    pub fn cli(&self, words: &[&str]) -> Result<String, Error> {
        send_command(&self.binaries, &self.address, words)
    }

    /// Writes all data to the disk. [`Self::start_again`] loads this data after a kill, without later writes.
    pub fn snapshot(&self) -> Result<(), Error> {
        let started = self.started.as_ref().ok_or_else(Error::not_started_here)?;
        if started.options.persistence != Persistence::Snapshots {
            return Err(Error::new("this server does not load a snapshot when it starts"));
        }
        self.cli(&["SAVE"]).map(drop)
    }

    /// Kills the server at once.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.started()?.server.kill()
    }

    /// Stops the server normally.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.started()?.server.stop("TERM", STOP_TIMEOUT)
    }

    /// Starts the stopped server on the same port, with the data that its persistence has kept.
    pub fn start_again(&mut self) -> Result<(), Error> {
        self.launch()
    }

    /// Kills the server if it runs, deletes its data, and starts it empty.
    pub fn wipe(&mut self) -> Result<(), Error> {
        let server = &mut self.started()?.server;
        if server.pid().is_some() {
            server.kill()?;
        }
        let data = data_folder(server);
        fs::remove_dir_all(&data).map_err(at("deleting", &data))?;
        self.launch()
    }

    /// Pauses the server: connections stay open, and no answer comes.
    pub fn pause(&mut self) -> Result<(), Error> {
        self.started()?.server.pause()
    }

    pub fn resume(&mut self) -> Result<(), Error> {
        self.started()?.server.resume()
    }

    fn started(&mut self) -> Result<&mut Started, Error> {
        self.started.as_mut().ok_or_else(Error::not_started_here)
    }

    fn launch(&mut self) -> Result<(), Error> {
        let Self { binaries, address, started } = self;
        let started = started.as_mut().ok_or_else(Error::not_started_here)?;
        let data = data_folder(&started.server);
        match fs::create_dir(&data) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(at("creating", &data)(error));
            }
            _ => {}
        }
        started.server.spawn(started.command(binaries, address.port, &data))?;
        let port = address.port;
        started.server.wait_until("Redis", START_TIMEOUT, |pid| {
            listens(pid, port)
                && send_command(binaries, address, &["PING"]).is_ok_and(|reply| reply == "PONG")
        })?;
        if started.options.cluster {
            started.join_cluster(binaries, address)?;
        }
        Ok(())
    }
}

impl Started {
    fn command(&self, binaries: &Binaries, port: u16, data: &Path) -> Command {
        let mut redis = binaries.command("redis-server");
        let mut set = |name: &str, value: &str| {
            redis.arg(format!("--{name}")).arg(value);
        };
        set("bind", "127.0.0.1");
        set("port", &port.to_string());
        set("daemonize", "no");
        set("save", "");
        let is_append_only = self.options.persistence == Persistence::AppendOnly;
        set("appendonly", if is_append_only { "yes" } else { "no" });
        // `everysec` would survive a kill too, except when a slow disk delays the write.
        set("appendfsync", "always");
        // Otherwise Redis replaces its arguments, and the tests recognise a server by them.
        set("set-proc-title", "no");
        if !self.options.cluster {
            set("databases", &DATABASES.to_string());
        }
        if let Some(password) = self.options.password {
            set("requirepass", password);
        }
        if self.options.cluster {
            set("cluster-enabled", "yes");
            // The default is the port + 10000, which is an ephemeral port of the kernel.
            set("cluster-port", &self.bus_port.to_string());
            // A single node does not know its own address, and clients would get none.
            set("cluster-announce-ip", "127.0.0.1");
        }
        redis.arg("--dir").arg(data);
        redis
    }

    /// Assigns all slots to the node, unless it already has them, and waits until it serves them. That takes two
    /// seconds, in which Redis waits for other nodes.
    fn join_cluster(&mut self, binaries: &Binaries, address: &Address) -> Result<(), Error> {
        let info = || send_command(binaries, address, &["CLUSTER", "INFO"]);
        if info()?.contains("cluster_slots_assigned:0") {
            send_command(binaries, address, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])?;
        }
        self.server.wait_until("the Redis cluster", START_TIMEOUT, |_| {
            info().is_ok_and(|info| info.contains("cluster_state:ok"))
        })
    }
}

fn data_folder(server: &Server) -> PathBuf {
    server.folder().join("data")
}

fn send_command(binaries: &Binaries, address: &Address, words: &[&str]) -> Result<String, Error> {
    command::run(client_command(binaries, address, "redis-cli").args(["-e", "--raw"]).args(words))
}

fn client_command(binaries: &Binaries, address: &Address, program: &str) -> Command {
    let mut command = binaries.command(program);
    command.args(["-h", &address.host, "-p", &address.port.to_string()]);
    if let Some(password) = &address.password {
        // redis-cli warns about passwords in arguments. redis-benchmark does not read the variable.
        if program == "redis-cli" {
            command.env("REDISCLI_AUTH", password);
        } else {
            command.args(["-a", password]);
        }
    }
    command
}
