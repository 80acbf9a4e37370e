//! What the servers of object stores have in common: one of ours or one that runs already, found by
//! a variable, shared by a process, broken on purpose and started again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::server::{Server, listens, on_free_ports, random};
use crate::store_address::StoreAddress;
use crate::{Error, http, sharing};

const PATIENCE_WITH_START: Duration = Duration::from_secs(60);
const PATIENCE_WITH_STOP: Duration = Duration::from_secs(30);

/// A kind of server, as the one who started it holds it: with all that it takes to start it again.
pub trait Kind: Sized {
    /// As errors call it.
    const NAME: &'static str;
    /// Names a running server as `http://name:secret@host:port`, percent-encoded.
    const ADDRESS_VARIABLE: &'static str;
    /// What its error says where somebody else took the port between its choice and the start.
    const PORT_WAS_TAKEN: &'static [&'static str];
    /// What a test may want otherwise than usual.
    type Options: Copy + Default;

    /// All but the start: a folder, an address on a free port, and what the server needs around it.
    fn prepare(options: Self::Options) -> Result<Prepared<Self>, Error>;

    /// What starts the server, in the foreground.
    fn command(&self, folder: &Path, address: &StoreAddress) -> Command;
}

/// A server that has yet to be started.
pub struct Prepared<K> {
    pub(crate) address: StoreAddress,
    pub(crate) ours: Ours<K>,
}

/// What only the process that started a server has: the means to break and to end it. The server
/// goes before what it stands on.
pub(crate) struct Ours<K> {
    pub(crate) server: Server,
    pub(crate) kind: K,
}

/// A store: one that we started and end on drop, or one that runs already.
pub struct StoreServer<K> {
    pub(crate) address: StoreAddress,
    pub(crate) ours: Option<Ours<K>>,
}

impl<K: Kind> StoreServer<K> {
    /// Starts a server of the caller's own, on free ports.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(K::Options::default())
    }

    pub fn start_with(options: K::Options) -> Result<Self, Error> {
        on_free_ports(K::PORT_WAS_TAKEN, || {
            let prepared = K::prepare(options)?;
            let mut store = Self { address: prepared.address, ours: Some(prepared.ours) };
            store.start_again().map(|()| store)
        })
    }

    /// The running server that [`Kind::ADDRESS_VARIABLE`] names, or a new one where it is not set.
    pub fn from_environment() -> Result<Self, Error> {
        let Some(address) = sharing::named_by(K::ADDRESS_VARIABLE, StoreAddress::parse)? else {
            return Self::start();
        };
        match http::status(&address.host_and_port) {
            Some(_) => Ok(Self { address, ours: None }),
            None => Err(Error::new(format!(
                "the server that {} names, {}, does not answer",
                K::ADDRESS_VARIABLE,
                address.host_and_port
            ))),
        }
    }

    /// What [`Self::from_environment`] gives, once for a process.
    pub(crate) fn once(shared: &'static OnceLock<Result<Self, Error>>) -> &'static Self {
        sharing::once(K::NAME, shared, Self::from_environment)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The value of [`Kind::ADDRESS_VARIABLE`] with which other processes share this server.
    pub fn url(&self) -> String {
        self.address.to_string()
    }

    /// The process, where it is ours and running.
    pub fn pid(&self) -> Option<u32> {
        self.ours.as_ref().and_then(|ours| ours.server.pid())
    }

    /// The folder with the log and what else the server writes, where it is ours.
    pub fn folder(&self) -> Option<PathBuf> {
        Some(self.ours.as_ref()?.server.folder().to_owned())
    }

    /// Kills the server at once.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.ours()?.server.kill()
    }

    /// Ends the server in order, with everything saved.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.ours()?.server.end("TERM", PATIENCE_WITH_STOP)
    }

    /// Starts the killed or stopped server again, on the same data and port.
    pub fn start_again(&mut self) -> Result<(), Error> {
        let Self { address, ours } = self;
        let Ours { server, kind } = ours.as_mut().ok_or_else(Error::not_ours)?;
        server.spawn(kind.command(server.folder(), address))?;
        let port = address.port();
        server.wait_until(K::NAME, PATIENCE_WITH_START, |pid| {
            listens(pid, port) && http::status(&address.host_and_port).is_some_and(|status| status < 500)
        })
    }

    /// Stops the server where it stands: connections stay open, answers stay out.
    pub fn pause(&mut self) -> Result<(), Error> {
        self.ours()?.server.pause()
    }

    pub fn resume(&mut self) -> Result<(), Error> {
        self.ours()?.server.resume()
    }

    fn ours(&mut self) -> Result<&mut Ours<K>, Error> {
        self.ours.as_mut().ok_or_else(Error::not_ours)
    }
}

/// Makes what objects lie in, a bucket or a container, under a name nobody else uses.
///
/// # Panics
///
/// Panics where the server refuses.
pub(crate) fn made(what: &str, make: impl FnOnce(&str) -> Result<http::Answer, Error>) -> String {
    let name = format!("test-{}-{:016x}", std::process::id(), random());
    match make(&name).and_then(|answer| answer.successful(&format!("creating {what} {name}"))) {
        Ok(_) => name,
        Err(error) => panic!("no {what} could be made: {error}"),
    }
}
