//! A real Redis server for tests, alone or as a cluster of one, and the faults it can be made to
//! suffer. A test that breaks its server starts one of its own; the others share one.

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

/// Names a running server, as a URL, that [`shared`] attaches to rather than starting one.
pub const ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_REDIS";

/// More than there are tests that share a server.
const DATABASES: u64 = 4_096;

const PATIENCE_WITH_START: Duration = Duration::from_secs(60);
const PATIENCE_WITH_STOP: Duration = Duration::from_secs(30);

/// What a test may want otherwise than usual.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub persistence: Persistence,
    /// Whether the server is a cluster of one node that holds all slots.
    pub cluster: bool,
    /// What clients have to show; [`Redis::url`] carries it.
    pub password: Option<&'static str>,
}

/// What comes back when a server starts again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing.
    None,
    /// What there was at the last [`Redis::snapshot`]. No other is ever taken, not even by
    /// [`Redis::stop`].
    #[default]
    Snapshots,
    /// Everything that was acknowledged.
    AppendOnly,
}

/// A Redis server: one that we started and end on drop, or one that runs already.
pub struct Redis {
    binaries: Binaries,
    address: Address,
    ours: Option<Ours>,
}

/// What only the process that started a server has: the means to break and to end it.
struct Ours {
    server: Server,
    options: Options,
    /// On which the nodes of a cluster talk to each other.
    bus_port: u16,
}

/// The server that all tests of this process share: the one [`ADDRESS_VARIABLE`] names, or else
/// one started now that ends with the process. There is one database for all, so each test names
/// its keys as no other does.
///
/// # Panics
///
/// Panics where there is none to be had: tests without their server must fail, not pass unrun.
pub fn shared() -> &'static Redis {
    static SHARED: OnceLock<Result<Redis, Error>> = OnceLock::new();
    sharing::once("Redis", &SHARED, Redis::from_environment)
}

impl Redis {
    /// Starts a server of the caller's own, on a free port, with its data in a temporary folder.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(Options::default())
    }

    pub fn start_with(options: Options) -> Result<Self, Error> {
        on_free_ports(&["Address already in use"], || {
            let mut redis = Self::prepare(options)?;
            redis.launch().map(|()| redis)
        })
    }

    /// All but the start: a folder and an address.
    fn prepare(options: Options) -> Result<Self, Error> {
        let binaries = Binaries::find_or_unpack()?;
        // SIGKILL: it has neither children nor shared memory to clear away.
        let server = Server::prepare("redis", None, "KILL")?;
        let address = Address::local(free_port()?, options.password);
        let ours = Ours { server, options, bus_port: free_port()? };
        Ok(Self { binaries, address, ours: Some(ours) })
    }

    /// The running server that [`ADDRESS_VARIABLE`] names, or a new one where it is not set.
    pub fn from_environment() -> Result<Self, Error> {
        let Some(address) = sharing::named_by(ADDRESS_VARIABLE, Address::parse)? else {
            return Self::start();
        };
        let redis = Self { binaries: Binaries::find_or_unpack()?, address, ours: None };
        redis
            .cli(&["PING"])
            .map_err(Error::while_doing(format!("reaching the server that {ADDRESS_VARIABLE} names")))?;
        Ok(redis)
    }

    /// Where a client finds the server, as `redis://127.0.0.1:port/0`; also the value of
    /// [`ADDRESS_VARIABLE`] with which other processes share it.
    pub fn url(&self) -> String {
        self.address.url()
    }

    /// The URL of one of its many databases, for a test that shares the server and counts on being alone in there.
    pub fn own_database(&self) -> String {
        let url = self.address.url();
        let server = url.strip_suffix("/0").unwrap_or(&url);
        // One after the other, so that no two tests of a process meet; where it begins is random,
        // for processes share a server too.
        static NEXT: OnceLock<AtomicU64> = OnceLock::new();
        let next = NEXT.get_or_init(|| AtomicU64::new(random() >> 1)).fetch_add(1, Ordering::Relaxed);
        format!("{server}/{}", next % DATABASES)
    }

    pub fn port(&self) -> u16 {
        self.address.port
    }

    /// The process, where it is ours and running.
    pub fn pid(&self) -> Option<u32> {
        self.ours.as_ref().and_then(|ours| ours.server.pid())
    }

    /// The folder with data and log, where the server is ours.
    pub fn folder(&self) -> Option<PathBuf> {
        Some(self.ours.as_ref()?.server.folder().to_owned())
    }

    /// `redis-cli` or `redis-benchmark`, told of this server and its password.
    pub fn command(&self, program: &str) -> Command {
        command_to(&self.binaries, &self.address, program)
    }

    /// Has `redis-cli` send one command, and returns the reply as it is, without quotes or types.
    /// An error for a reply is an error.
    pub fn cli(&self, words: &[&str]) -> Result<String, Error> {
        ask(&self.binaries, &self.address, words)
    }

    /// Writes everything to the disk, from where [`Self::start_again`] brings it back after a
    /// kill: as it was now, whatever has been written since.
    pub fn snapshot(&self) -> Result<(), Error> {
        let ours = self.ours.as_ref().ok_or_else(Error::not_ours)?;
        if ours.options.persistence != Persistence::Snapshots {
            return Err(Error::new("this server would not look at a snapshot when it starts again"));
        }
        self.cli(&["SAVE"]).map(drop)
    }

    /// Kills the server at once.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.ours()?.server.kill()
    }

    /// Ends the server in order.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.ours()?.server.end("TERM", PATIENCE_WITH_STOP)
    }

    /// Starts the killed or stopped server again, on the same port, with what its persistence
    /// has kept.
    pub fn start_again(&mut self) -> Result<(), Error> {
        self.launch()
    }

    /// Loses everything: kills the server if it runs, deletes its data and starts it again, empty.
    pub fn wipe(&mut self) -> Result<(), Error> {
        let server = &mut self.ours()?.server;
        if server.pid().is_some() {
            server.kill()?;
        }
        let data = data_of(server);
        fs::remove_dir_all(&data).map_err(at("deleting", &data))?;
        self.launch()
    }

    /// Stops the server where it stands: connections stay open, answers stay out.
    pub fn pause(&mut self) -> Result<(), Error> {
        self.ours()?.server.pause()
    }

    pub fn resume(&mut self) -> Result<(), Error> {
        self.ours()?.server.resume()
    }

    fn ours(&mut self) -> Result<&mut Ours, Error> {
        self.ours.as_mut().ok_or_else(Error::not_ours)
    }

    fn launch(&mut self) -> Result<(), Error> {
        let Self { binaries, address, ours } = self;
        let ours = ours.as_mut().ok_or_else(Error::not_ours)?;
        let data = data_of(&ours.server);
        match fs::create_dir(&data) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(at("creating", &data)(error));
            }
            _ => {}
        }
        ours.server.spawn(ours.command(binaries, address.port, &data))?;
        let port = address.port;
        ours.server.wait_until("Redis", PATIENCE_WITH_START, |pid| {
            listens(pid, port) && ask(binaries, address, &["PING"]).is_ok_and(|reply| reply == "PONG")
        })?;
        if ours.options.cluster {
            ours.join_cluster(binaries, address)?;
        }
        Ok(())
    }
}

impl Ours {
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
        // Every second would do for a kill, but for the moments in which a slow disk holds it up.
        set("appendfsync", "always");
        // Otherwise its arguments are replaced, by which one tells whose server it is.
        set("set-proc-title", "no");
        if !self.options.cluster {
            set("databases", &DATABASES.to_string());
        }
        if let Some(password) = self.options.password {
            set("requirepass", password);
        }
        if self.options.cluster {
            set("cluster-enabled", "yes");
            // The usual one is 10000 above the other, among those of outgoing connections.
            set("cluster-port", &self.bus_port.to_string());
            // A node that has met no other does not know its own, and clients are told none.
            set("cluster-announce-ip", "127.0.0.1");
        }
        redis.arg("--dir").arg(data);
        redis
    }

    /// Takes all slots, unless the node has them from before, and waits until it serves them:
    /// two seconds, which Redis grants the rest of the cluster to make itself heard.
    fn join_cluster(&mut self, binaries: &Binaries, address: &Address) -> Result<(), Error> {
        let info = || ask(binaries, address, &["CLUSTER", "INFO"]);
        if info()?.contains("cluster_slots_assigned:0") {
            ask(binaries, address, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])?;
        }
        self.server.wait_until("the Redis cluster", PATIENCE_WITH_START, |_| {
            info().is_ok_and(|info| info.contains("cluster_state:ok"))
        })
    }
}

fn data_of(server: &Server) -> PathBuf {
    server.folder().join("data")
}

fn ask(binaries: &Binaries, address: &Address, words: &[&str]) -> Result<String, Error> {
    command::run(command_to(binaries, address, "redis-cli").args(["-e", "--raw"]).args(words))
}

fn command_to(binaries: &Binaries, address: &Address, program: &str) -> Command {
    let mut command = binaries.command(program);
    command.args(["-h", &address.host, "-p", &address.port.to_string()]);
    if let Some(password) = &address.password {
        // Of the two only redis-cli reads the variable, and it warns of passwords in arguments.
        if program == "redis-cli" {
            command.env("REDISCLI_AUTH", password);
        } else {
            command.args(["-a", password]);
        }
    }
    command
}
