//! The common part of the object store servers: started here or already running, found by a variable, shared in a
//! process, stopped and started.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::server::{Server, listens, on_free_ports, random};
use crate::store_address::StoreAddress;
use crate::{Error, http, sharing};

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A kind of server, with everything that is needed to start it again.
pub trait Kind: Sized {
    /// Its name in errors.
    const NAME: &'static str;
    /// The variable with the URL of a running server: `http://name:secret@host:port`, percent-encoded.
    const ADDRESS_VARIABLE: &'static str;
    /// Texts in its error or log if another program took the port before the start.
    const PORT_WAS_TAKEN: &'static [&'static str];
    /// Options of one server.
    type Options: Copy + Default;

    /// Everything except the start: a folder, an address on a free port, and other servers that it needs.
    fn prepare(options: Self::Options) -> Result<Prepared<Self>, Error>;

    /// The command that runs the server in the foreground.
    fn command(&self, folder: &Path, address: &StoreAddress) -> Command;
}

/// A server before its start.
pub struct Prepared<K> {
    pub(crate) address: StoreAddress,
    pub(crate) started: Started<K>,
}

/// The process of a server that was started here. Only this can be stopped, killed or paused. The server is dropped
/// before the other servers that it needs.
pub(crate) struct Started<K> {
    pub(crate) server: Server,
    pub(crate) kind: K,
}

/// A store that this process started and stops on drop, or one that was already running.
pub struct StoreServer<K> {
    pub(crate) address: StoreAddress,
    pub(crate) started: Option<Started<K>>,
}

impl<K: Kind> StoreServer<K> {
    /// Starts a separate server on free ports.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(K::Options::default())
    }

    pub fn start_with(options: K::Options) -> Result<Self, Error> {
        on_free_ports(K::PORT_WAS_TAKEN, || {
            let prepared = K::prepare(options)?;
            let mut store = Self { address: prepared.address, started: Some(prepared.started) };
            store.start_again().map(|()| store)
        })
    }

    /// The running server that [`Kind::ADDRESS_VARIABLE`] names, or a new one if the variable is not set.
    pub fn from_environment() -> Result<Self, Error> {
        let Some(address) = sharing::named_by(K::ADDRESS_VARIABLE, StoreAddress::parse)? else {
            return Self::start();
        };
        match http::status(&address.host_and_port) {
            Some(_) => Ok(Self { address, started: None }),
            None => Err(Error::new(format!(
                "the server that {} names, {}, does not answer",
                K::ADDRESS_VARIABLE,
                address.host_and_port
            ))),
        }
    }

    /// The result of [`Self::from_environment`], once in each process.
    pub(crate) fn once(shared: &'static OnceLock<Result<Self, Error>>) -> &'static Self {
        sharing::once(K::NAME, shared, Self::from_environment)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The value of [`Kind::ADDRESS_VARIABLE`] for other processes.
    pub fn url(&self) -> String {
        self.address.to_string()
    }

    /// None: it was not started here, or it does not run.
    pub fn pid(&self) -> Option<u32> {
        self.started.as_ref().and_then(|started| started.server.pid())
    }

    /// The folder with the log and other files of the server. None: it was not started here.
    pub fn folder(&self) -> Option<PathBuf> {
        Some(self.started.as_ref()?.server.folder().to_owned())
    }

    /// Kills the server at once.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.started()?.server.kill()
    }

    /// Stops the server normally, with all data saved.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.started()?.server.stop("TERM", STOP_TIMEOUT)
    }

    /// Starts the stopped server with the same data and port.
    pub fn start_again(&mut self) -> Result<(), Error> {
        let Self { address, started } = self;
        let Started { server, kind } = started.as_mut().ok_or_else(Error::not_started_here)?;
        server.spawn(kind.command(server.folder(), address))?;
        let port = address.port();
        server.wait_until(K::NAME, START_TIMEOUT, |pid| {
            listens(pid, port) && http::status(&address.host_and_port).is_some_and(|status| status < 500)
        })
    }

    /// Pauses the server: connections stay open, and no answer comes.
    pub fn pause(&mut self) -> Result<(), Error> {
        self.started()?.server.pause()
    }

    pub fn resume(&mut self) -> Result<(), Error> {
        self.started()?.server.resume()
    }

    fn started(&mut self) -> Result<&mut Started<K>, Error> {
        self.started.as_mut().ok_or_else(Error::not_started_here)
    }
}

/// Creates a bucket or a container with a unique name.
///
/// # Panics
///
/// Panics if the server refuses.
pub(crate) fn create_unique(kind: &str, create: impl FnOnce(&str) -> Result<http::Answer, Error>) -> String {
    let name = format!("test-{}-{:016x}", std::process::id(), random());
    match create(&name).and_then(|answer| answer.successful(&format!("creating {kind} {name}"))) {
        Ok(_) => name,
        Err(error) => panic!("cannot create a {kind}: {error}"),
    }
}
