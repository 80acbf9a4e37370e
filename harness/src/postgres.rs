//! A real PostgreSQL server for tests, with empty databases and methods that make it fail. A test that makes its server
//! fail starts a separate one. The others share one.

mod address;
mod binaries;
mod standby;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use self::address::Address;
use self::binaries::Binaries;
use crate::account::Account;
use crate::server::{Server, accepts_connections, free_port, on_free_ports, random};
use crate::{Error, command, sharing};

/// The variable with the URL of a running server. [`shared`] uses that server instead of starting one.
pub const ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_POSTGRES";

/// The same for [`shared_with_pgvector`].
pub const PGVECTOR_ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_PGVECTOR";

/// A start after a kill includes recovery, also on slow disks.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// The file, relative to the server's folder, in which the postmaster writes its pid and state.
const STATUS_FILE: &str = "data/postmaster.pid";

/// Options of one server.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether commits reach the disk before they are acknowledged.
    pub fsync: bool,
    /// Whether pgvector is installed. A test still has to run `CREATE EXTENSION vector`.
    pub pgvector: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { fsync: true, pgvector: false }
    }
}

/// A PostgreSQL server that this process started and stops on drop, or one that was already running.
pub struct Postgres {
    binaries: Binaries,
    address: Address,
    started: Option<Started>,
}

/// The process of a server that was started here. Only this can be stopped, killed or paused.
struct Started {
    server: Server,
    options: Options,
}

/// The server that all tests of this process share: the one that [`ADDRESS_VARIABLE`] names, or one that is started now
/// and ends with the process.
///
/// # Panics
///
/// Panics if there is no server. A test without its server must fail.
pub fn shared() -> &'static Postgres {
    static SHARED: OnceLock<Result<Postgres, Error>> = OnceLock::new();
    sharing::once("PostgreSQL", &SHARED, Postgres::from_environment)
}

/// Like [`shared`], for a server with pgvector. New databases do not have the extension.
///
/// # Panics
///
/// Panics if there is no server.
pub fn shared_with_pgvector() -> &'static Postgres {
    static SHARED: OnceLock<Result<Postgres, Error>> = OnceLock::new();
    let options = Options { pgvector: true, ..Options::default() };
    sharing::once("PostgreSQL with pgvector", &SHARED, || {
        Postgres::from_variable(PGVECTOR_ADDRESS_VARIABLE, options)
    })
}

impl Postgres {
    /// Starts a separate server on a free port, with its data in a temporary folder.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(Options::default())
    }

    pub fn start_with(options: Options) -> Result<Self, Error> {
        let mut postgres = Self::prepare(options)?;
        postgres.create_cluster()?;
        postgres.launch_on_free_port()?;
        Ok(postgres)
    }

    /// A server with a folder, but still without data and port.
    fn prepare(options: Options) -> Result<Self, Error> {
        let binaries = Binaries::of(options)?;
        let account = Account::instead_of_root("postgres")?;
        // SIGQUIT stops it at once, without a checkpoint, and removes its shared memory.
        let server = Server::prepare("postgres", account, "QUIT")?;
        Ok(Self { binaries, address: Address::local(0), started: Some(Started { server, options }) })
    }

    /// Repeats only this part of a start if the port was taken, because creating the data takes seconds.
    fn launch_on_free_port(&mut self) -> Result<(), Error> {
        on_free_ports(&["Address already in use"], || {
            self.address = Address::local(free_port()?);
            self.launch()
        })
    }

    /// The running server that [`ADDRESS_VARIABLE`] names, or a new one if the variable is not set.
    pub fn from_environment() -> Result<Self, Error> {
        Self::from_variable(ADDRESS_VARIABLE, Options::default())
    }

    fn from_variable(variable: &str, options: Options) -> Result<Self, Error> {
        let Some(address) = sharing::named_by(variable, Address::parse)? else {
            return Self::start_with(options);
        };
        let postgres = Self { binaries: Binaries::of(options)?, address, started: None };
        postgres
            .version()
            .map_err(Error::while_doing(format!("reaching the server that {variable} names")))?;
        Ok(postgres)
    }

    /// The URL of the database with this name.
    pub fn url(&self, database: &str) -> String {
        self.address.url(database)
    }

    /// The URL of the database `postgres`, for statements about the whole server.
    pub fn admin_url(&self) -> String {
        self.url("postgres")
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The pid of the postmaster. None: it was not started here, or it does not run.
    pub fn pid(&self) -> Option<u32> {
        self.started.as_ref().and_then(|started| started.server.pid())
    }

    /// The folder with data, socket and log. None: it was not started here.
    pub fn folder(&self) -> Option<PathBuf> {
        Some(self.started.as_ref()?.server.folder().to_owned())
    }

    /// The version that the server reports, such as `15.18`.
    pub fn version(&self) -> Result<String, Error> {
        let version = self.psql(&self.admin_url(), "SHOW server_version")?;
        // Distributions add their package's version in brackets.
        Ok(version.split(' ').next().unwrap_or_default().to_owned())
    }

    /// Runs the statements with psql and returns the rows, unaligned, one on each line.
    pub fn psql(&self, url: &str, statements: &str) -> Result<String, Error> {
        command::run(
            self.binaries
                .command("psql")
                .env("PGCONNECT_TIMEOUT", "60")
                .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"])
                .args(["-d", url, "-c", statements]),
        )
    }

    /// A program from the server's packages, such as `pgbench`.
    pub fn command(&self, program: &str) -> std::process::Command {
        self.binaries.command(program)
    }

    /// Creates an empty database with a unique name, and returns its URL.
    ///
    /// # Panics
    ///
    /// Panics if the server refuses.
    pub fn create_database(&self) -> String {
        self.create_database_from("template1")
    }

    /// Creates a copy of the template, given by name or URL. There must be no connection to the template.
    ///
    /// # Panics
    ///
    /// Panics if the server refuses.
    pub fn create_database_from(&self, template: &str) -> String {
        let template = address::database_of(template);
        let name = format!("test_{}_{:016x}", std::process::id(), random());
        let create = format!(r#"CREATE DATABASE "{name}" TEMPLATE "{template}""#);
        // Only for the statements of tests. The program sets its own search path.
        let path = format!(r#"ALTER DATABASE "{name}" SET search_path = public, wharfinger"#);
        let created = self.psql(&self.admin_url(), &create).and_then(|_| self.psql(&self.admin_url(), &path));
        match created {
            Ok(_) => self.url(&name),
            Err(error) => panic!("cannot create a database from {template}: {error}"),
        }
    }

    /// Kills the server and all its child processes at once.
    pub fn kill(&mut self) -> Result<(), Error> {
        let segment = self.folder().and_then(|folder| line_of(&folder.join(STATUS_FILE), 7));
        self.started()?.server.kill()?;
        // The kernel keeps the shared memory of a killed server until it is removed, and allows only a few thousand
        // segments. If `ipcrm` fails or is missing, the test still works.
        if let Some(id) = segment.as_deref().and_then(|s| s.split(' ').next_back()) {
            let _ = command::run(Command::new("ipcrm").args(["-m", id]));
        }
        Ok(())
    }

    /// Stops the server normally and closes its connections ("fast shutdown").
    pub fn stop(&mut self) -> Result<(), Error> {
        self.started()?.server.stop("INT", STOP_TIMEOUT)
    }

    /// Starts the stopped server with the same data and port.
    pub fn start_again(&mut self) -> Result<(), Error> {
        self.launch()
    }

    /// Pauses every process of the server: connections stay open, and no answer comes.
    pub fn pause(&mut self) -> Result<(), Error> {
        self.started()?.server.pause()
    }

    pub fn resume(&mut self) -> Result<(), Error> {
        self.started()?.server.resume()
    }

    fn started(&mut self) -> Result<&mut Started, Error> {
        self.started.as_mut().ok_or_else(Error::not_started_here)
    }

    fn create_cluster(&mut self) -> Result<(), Error> {
        let mut initdb = self.binaries.command("initdb");
        let started = self.started()?;
        initdb
            .args(["--username=postgres", "--auth=trust", "--no-sync"])
            .args(["--encoding=UTF8", "--locale=C.UTF-8", "--pgdata"])
            .arg(started.server.folder().join("data"));
        started.server.run(initdb)
    }

    fn launch(&mut self) -> Result<(), Error> {
        let mut postgres = self.binaries.command("postgres");
        let port = self.port();
        let started = self.started()?;
        let folder = started.server.folder().to_owned();
        let mut set = |name: &str, value: &str| {
            postgres.arg("-c").arg(format!("{name}={value}"));
        };
        set("listen_addresses", "127.0.0.1");
        set("port", &port.to_string());
        set("unix_socket_directories", &folder.to_string_lossy());
        set("max_connections", "300");
        set("max_prepared_transactions", "0");
        set("fsync", if started.options.fsync { "on" } else { "off" });
        if !started.options.fsync {
            // There are hundreds of short-lived databases. Vacuuming each costs more than it helps.
            set("autovacuum", "off");
            set("full_page_writes", "off");
        }
        // In files of the data folder, which is removed. Otherwise a killed server leaves files in /dev/shm.
        set("dynamic_shared_memory_type", "mmap");
        postgres.arg("-D").arg(folder.join("data"));
        started.server.spawn(postgres)?;
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<(), Error> {
        let Self { binaries, address, started } = self;
        let server = &mut started.as_mut().ok_or_else(Error::not_started_here)?.server;
        let status_file = server.folder().join(STATUS_FILE);
        server.wait_until("PostgreSQL", START_TIMEOUT, |pid| is_ready(pid, &status_file, binaries, address))
    }
}

/// Checks the status file first, because another server may have taken the port.
fn is_ready(pid: u32, status_file: &Path, binaries: &Binaries, address: &Address) -> bool {
    line_of(status_file, 1).and_then(|line| line.parse().ok()) == Some(pid)
        && line_of(status_file, 8).as_deref() == Some("ready")
        && accepts_connections(address.port())
        && command::run(binaries.command("pg_isready").args(["-q", "-d", &address.url("postgres")])).is_ok()
}

/// A line of the file. The first line has number 1.
fn line_of(status_file: &Path, number: usize) -> Option<String> {
    let text = std::fs::read_to_string(status_file).ok()?;
    Some(text.lines().nth(number - 1)?.trim().to_owned())
}
