//! A real PostgreSQL server for tests: fresh databases on it, and the faults it can be made to
//! suffer. A test that breaks its server starts one of its own; the others share one.

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

/// Names a running server, as a URL, that [`shared`] attaches to rather than starting one.
pub const ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_POSTGRES";

/// The same for [`shared_with_pgvector`].
pub const PGVECTOR_ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_PGVECTOR";

/// Recovery after a kill is part of starting, on machines with slow disks too.
const PATIENCE_WITH_START: Duration = Duration::from_secs(60);
const PATIENCE_WITH_STOP: Duration = Duration::from_secs(30);

/// In which a postmaster tells what it is about, within the server's folder.
const STATUS_FILE: &str = "data/postmaster.pid";

/// What a test may want otherwise than usual.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether commits reach the disk before they are acknowledged.
    pub fsync: bool,
    /// Whether the server has pgvector to offer: `CREATE EXTENSION vector` is up to the test.
    pub pgvector: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { fsync: true, pgvector: false }
    }
}

/// A PostgreSQL server: one that we started and end on drop, or one that runs already.
pub struct Postgres {
    binaries: Binaries,
    address: Address,
    ours: Option<Ours>,
}

/// What only the process that started a server has: the means to break and to end it.
struct Ours {
    server: Server,
    options: Options,
}

/// The server that all tests of this process share: the one [`ADDRESS_VARIABLE`] names, or else
/// one started now that ends with the process.
///
/// # Panics
///
/// Panics where there is none to be had: tests without their server must fail, not pass unrun.
pub fn shared() -> &'static Postgres {
    static SHARED: OnceLock<Result<Postgres, Error>> = OnceLock::new();
    sharing::once("PostgreSQL", &SHARED, Postgres::from_environment)
}

/// The same of a server with pgvector, which the system's own may not have. Its databases begin without the extension.
///
/// # Panics
///
/// Panics where there is none to be had.
pub fn shared_with_pgvector() -> &'static Postgres {
    static SHARED: OnceLock<Result<Postgres, Error>> = OnceLock::new();
    let options = Options { pgvector: true, ..Options::default() };
    sharing::once("PostgreSQL with pgvector", &SHARED, || {
        Postgres::named_by_or_started(PGVECTOR_ADDRESS_VARIABLE, options)
    })
}

impl Postgres {
    /// Starts a server of the caller's own, on a free port, with its data in a temporary folder.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(Options::default())
    }

    pub fn start_with(options: Options) -> Result<Self, Error> {
        let mut postgres = Self::prepare(options)?;
        postgres.create_cluster()?;
        postgres.launch_on_some_port()?;
        Ok(postgres)
    }

    /// A server with a folder, but without data, and without a port until it is launched.
    fn prepare(options: Options) -> Result<Self, Error> {
        let binaries = Binaries::of(options)?;
        let account = Account::instead_of_root("postgres")?;
        // SIGQUIT: at once and without a last checkpoint, but leaving no shared memory behind.
        let server = Server::prepare("postgres", account, "QUIT")?;
        Ok(Self { binaries, address: Address::local(0), ours: Some(Ours { server, options }) })
    }

    /// Of a start only this is done over where the port was taken: the data take seconds to make.
    fn launch_on_some_port(&mut self) -> Result<(), Error> {
        on_free_ports(&["Address already in use"], || {
            self.address = Address::local(free_port()?);
            self.launch()
        })
    }

    /// The running server that [`ADDRESS_VARIABLE`] names, or a new one where it is not set.
    pub fn from_environment() -> Result<Self, Error> {
        Self::named_by_or_started(ADDRESS_VARIABLE, Options::default())
    }

    fn named_by_or_started(variable: &str, options: Options) -> Result<Self, Error> {
        let Some(address) = sharing::named_by(variable, Address::parse)? else {
            return Self::start_with(options);
        };
        let postgres = Self { binaries: Binaries::of(options)?, address, ours: None };
        postgres
            .version()
            .map_err(Error::while_doing(format!("reaching the server that {variable} names")))?;
        Ok(postgres)
    }

    /// Where a client finds the database of this name.
    pub fn url(&self, database: &str) -> String {
        self.address.url(database)
    }

    /// The superuser's own database, for whatever concerns the whole server.
    pub fn admin_url(&self) -> String {
        self.url("postgres")
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The postmaster, where it is ours and running.
    pub fn pid(&self) -> Option<u32> {
        self.ours.as_ref().and_then(|ours| ours.server.pid())
    }

    /// The folder with data, socket and log, where the server is ours.
    pub fn folder(&self) -> Option<PathBuf> {
        Some(self.ours.as_ref()?.server.folder().to_owned())
    }

    /// The version the server itself reports, such as `15.18`.
    pub fn version(&self) -> Result<String, Error> {
        let version = self.psql(&self.admin_url(), "SHOW server_version")?;
        // Distributions add their package's version in brackets.
        Ok(version.split(' ').next().unwrap_or_default().to_owned())
    }

    /// Runs the statements with psql and returns the rows, unaligned, one to a line.
    pub fn psql(&self, url: &str, statements: &str) -> Result<String, Error> {
        command::run(
            self.binaries
                .command("psql")
                .env("PGCONNECT_TIMEOUT", "60")
                .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"])
                .args(["-d", url, "-c", statements]),
        )
    }

    /// A program of the server's own packages, such as `pgbench`.
    pub fn command(&self, program: &str) -> std::process::Command {
        self.binaries.command(program)
    }

    /// Makes an empty database under a name nobody else uses, and returns its URL.
    ///
    /// # Panics
    ///
    /// Panics where the server refuses.
    pub fn create_database(&self) -> String {
        self.create_database_from("template1")
    }

    /// Makes a copy of the template, given by name or URL, to which nobody may be connected.
    ///
    /// # Panics
    ///
    /// Panics where the server refuses.
    pub fn create_database_from(&self, template: &str) -> String {
        let template = address::database_of(template);
        let name = format!("test_{}_{:016x}", std::process::id(), random());
        let create = format!(r#"CREATE DATABASE "{name}" TEMPLATE "{template}""#);
        // For the statements of tests: the program itself looks nowhere but into its own schema.
        let path = format!(r#"ALTER DATABASE "{name}" SET search_path = public, wharfinger"#);
        let made = self.psql(&self.admin_url(), &create).and_then(|_| self.psql(&self.admin_url(), &path));
        match made {
            Ok(_) => self.url(&name),
            Err(error) => panic!("no database could be made from {template}: {error}"),
        }
    }

    /// Kills the server and all its children at once, as a power cut would.
    pub fn kill(&mut self) -> Result<(), Error> {
        let segment = self.folder().and_then(|folder| line_of(&folder.join(STATUS_FILE), 7));
        self.ours()?.server.kill()?;
        // The kernel keeps the segment of a killed server for ever, and has room for a few
        // thousand. `ipcrm` failing or not being there costs one of those, not the test.
        if let Some(id) = segment.as_deref().and_then(|s| s.split(' ').next_back()) {
            let _ = command::run(Command::new("ipcrm").args(["-m", id]));
        }
        Ok(())
    }

    /// Ends the server in order, breaking off the connections ("fast shutdown").
    pub fn stop(&mut self) -> Result<(), Error> {
        self.ours()?.server.end("INT", PATIENCE_WITH_STOP)
    }

    /// Starts the killed or stopped server again, on the same data and port.
    pub fn start_again(&mut self) -> Result<(), Error> {
        self.launch()
    }

    /// Stops every process of the server where it stands: connections stay open, answers stay out.
    pub fn pause(&mut self) -> Result<(), Error> {
        self.ours()?.server.pause()
    }

    pub fn resume(&mut self) -> Result<(), Error> {
        self.ours()?.server.resume()
    }

    fn ours(&mut self) -> Result<&mut Ours, Error> {
        self.ours.as_mut().ok_or_else(Error::not_ours)
    }

    fn create_cluster(&mut self) -> Result<(), Error> {
        let mut initdb = self.binaries.command("initdb");
        let ours = self.ours()?;
        initdb
            .args(["--username=postgres", "--auth=trust", "--no-sync"])
            .args(["--encoding=UTF8", "--locale=C.UTF-8", "--pgdata"])
            .arg(ours.server.folder().join("data"));
        ours.server.run(initdb)
    }

    fn launch(&mut self) -> Result<(), Error> {
        let mut postgres = self.binaries.command("postgres");
        let port = self.port();
        let ours = self.ours()?;
        let folder = ours.server.folder().to_owned();
        let mut set = |name: &str, value: &str| {
            postgres.arg("-c").arg(format!("{name}={value}"));
        };
        set("listen_addresses", "127.0.0.1");
        set("port", &port.to_string());
        set("unix_socket_directories", &folder.to_string_lossy());
        set("max_connections", "300");
        set("max_prepared_transactions", "0");
        set("fsync", if ours.options.fsync { "on" } else { "off" });
        if !ours.options.fsync {
            // Hundreds of databases live here for minutes: looking after each costs more than it helps.
            set("autovacuum", "off");
            set("full_page_writes", "off");
        }
        // In files of the data folder, which go with it; a killed server leaves /dev/shm littered.
        set("dynamic_shared_memory_type", "mmap");
        postgres.arg("-D").arg(folder.join("data"));
        ours.server.spawn(postgres)?;
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<(), Error> {
        let Self { binaries, address, ours } = self;
        let server = &mut ours.as_mut().ok_or_else(Error::not_ours)?.server;
        let status_file = server.folder().join(STATUS_FILE);
        server.wait_until("PostgreSQL", PATIENCE_WITH_START, |pid| {
            is_ready(pid, &status_file, binaries, address)
        })
    }
}

/// The status file first: it tells our server from another that took the port before us.
fn is_ready(pid: u32, status_file: &Path, binaries: &Binaries, address: &Address) -> bool {
    line_of(status_file, 1).and_then(|line| line.parse().ok()) == Some(pid)
        && line_of(status_file, 8).as_deref() == Some("ready")
        && accepts_connections(address.port())
        && command::run(binaries.command("pg_isready").args(["-q", "-d", &address.url("postgres")])).is_ok()
}

/// A line of the file, counted from one.
fn line_of(status_file: &Path, number: usize) -> Option<String> {
    let text = std::fs::read_to_string(status_file).ok()?;
    Some(text.lines().nth(number - 1)?.trim().to_owned())
}
