//! A real RabbitMQ node for tests, with empty virtual hosts and methods that make it fail. A test that makes its server
//! fail starts a separate one. The others share one.

mod binaries;
mod node;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use self::binaries::Binaries;
use self::node::Node;
use crate::packages::at;
use crate::percent::encoded;
use crate::server::{Server, listens, on_free_ports, random};
use crate::{Error, command, sharing};

/// The variable with the [`RabbitMq::sharing_url`] of a running server. [`shared`] uses that server instead of starting
/// one.
pub const ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_RABBITMQ";

/// A start needs some seconds of processor time, and longer on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(90);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Texts that show that a port was taken. If epmd's own port is taken, epmd exits with success and prints nothing.
const PORT_WAS_TAKEN: [&str; 3] = ["eaddrinuse", "dist_port_already_used", "epmd ended"];

/// The first bytes that a client sends, and the frame type of the server's answer.
const PROTOCOL_HEADER: &[u8] = b"AMQP\0\0\x09\x01";
const METHOD_FRAME: u8 = 1;

/// A RabbitMQ server that this process started and stops on drop, or one that was already running. It is a single node
/// without plugins. Quorum queues work on it.
pub struct RabbitMq {
    binaries: Binaries,
    node: Node,
    started: Option<Started>,
}

/// The processes of a server that was started here. Only this can be stopped, killed or paused. The server is dropped
/// before epmd, because its tools need epmd to find it.
struct Started {
    server: Server,
    _epmd: Server,
}

/// The server that all tests of this process share: the one that [`ADDRESS_VARIABLE`] names, or one that is started now
/// and ends with the process. Each test uses a separate virtual host.
///
/// # Panics
///
/// Panics if there is no server. A test without its server must fail.
pub fn shared() -> &'static RabbitMq {
    static SHARED: OnceLock<Result<RabbitMq, Error>> = OnceLock::new();
    sharing::once("RabbitMQ", &SHARED, RabbitMq::from_environment)
}

impl RabbitMq {
    /// Starts a separate server on free ports, with its data in a temporary folder.
    pub fn start() -> Result<Self, Error> {
        on_free_ports(&PORT_WAS_TAKEN, || {
            let mut rabbitmq = Self::prepare()?;
            rabbitmq.start_again().map(|()| rabbitmq)
        })
    }

    /// Everything except the start of the server itself.
    fn prepare() -> Result<Self, Error> {
        let binaries = Binaries::find_or_unpack()?;
        // SIGKILL for both: they leave only files, and their child processes exit by themselves.
        let server = Server::prepare("rabbitmq", None, "KILL")?;
        let node = Node::prepare(server.folder())?;
        let mut epmd = Server::prepare("epmd", None, "KILL")?;
        epmd.spawn(node.epmd(&binaries))?;
        epmd.wait_until("epmd", START_TIMEOUT, |pid| listens(pid, node.epmd_port))?;
        Ok(Self { binaries, node, started: Some(Started { server, _epmd: epmd }) })
    }

    /// The running server that [`ADDRESS_VARIABLE`] names, or a new one if the variable is not set.
    pub fn from_environment() -> Result<Self, Error> {
        let Some(node) = sharing::named_by(ADDRESS_VARIABLE, Node::parse)? else {
            return Self::start();
        };
        if !speaks_amqp(node.port) {
            let port = node.port;
            return Err(Error::new(format!(
                "the server that {ADDRESS_VARIABLE} names, on port {port}, does not answer"
            )));
        }
        Ok(Self { binaries: Binaries::find_or_unpack()?, node, started: None })
    }

    /// The URL of the default virtual host, `/`.
    pub fn url(&self) -> String {
        self.node.url("%2f")
    }

    /// The URL of the virtual host with this name.
    pub fn url_of(&self, vhost: &str) -> String {
        self.node.url(&encoded(vhost))
    }

    /// The value of [`ADDRESS_VARIABLE`] for other processes of the same user on this machine: the URL, with parameters
    /// that the server's tools need.
    pub fn sharing_url(&self) -> String {
        self.node.sharing_url()
    }

    pub fn port(&self) -> u16 {
        self.node.port
    }

    /// None: it was not started here, or it does not run.
    pub fn pid(&self) -> Option<u32> {
        self.started.as_ref().and_then(|started| started.server.pid())
    }

    /// The folder with data and log. None: it was not started here.
    pub fn folder(&self) -> Option<PathBuf> {
        Some(self.started.as_ref()?.server.folder().to_owned())
    }

    /// Runs rabbitmqctl and returns its output without headings.
    pub fn ctl(&self, words: &[&str]) -> Result<String, Error> {
        command::run(self.node.script(&self.binaries, "rabbitmqctl").arg("--silent").args(words))
    }

    /// Creates an empty virtual host with a unique name, and returns its URL.
    ///
    /// # Panics
    ///
    /// Panics if the server refuses.
    pub fn create_vhost(&self) -> String {
        let name = format!("test-{}-{:016x}", std::process::id(), random());
        let created = self
            .ctl(&["add_vhost", &name])
            .and_then(|_| self.ctl(&["set_permissions", "-p", &name, "guest", ".*", ".*", ".*"]));
        match created {
            Ok(_) => self.url_of(&name),
            Err(error) => panic!("cannot create a virtual host: {error}"),
        }
    }

    /// Makes the server write its list of queues to disk, which it otherwise does within seconds. After an earlier
    /// kill, a new quorum queue may lose its messages, also confirmed ones, and never have a leader again.
    pub fn flush_queue_metadata(&self) -> Result<(), Error> {
        self.ctl(&["eval", "ok = mnesia:sync_log(), [ok = dets:sync(Table) || Table <- dets:all()]."])
            .map(drop)
    }

    /// Kills the server and all its child processes at once. Confirmed messages survive if their queue was
    /// [flushed](Self::flush_queue_metadata).
    pub fn kill(&mut self) -> Result<(), Error> {
        self.started()?.server.kill()
    }

    /// Stops the server normally.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.started()?.server.stop("TERM", STOP_TIMEOUT)
    }

    /// Starts the stopped server with the same data and port.
    pub fn start_again(&mut self) -> Result<(), Error> {
        let Self { binaries, node, started } = self;
        let server = &mut started.as_mut().ok_or_else(Error::not_started_here)?.server;
        server.spawn(node.server(binaries)?)?;
        let port = node.port;
        server.wait_until("RabbitMQ", START_TIMEOUT, |pid| listens(pid, port) && speaks_amqp(port))
    }

    /// Kills the server if it runs, deletes its data, and starts it empty, without virtual hosts and queues.
    pub fn wipe(&mut self) -> Result<(), Error> {
        let server = &mut self.started()?.server;
        if server.pid().is_some() {
            server.kill()?;
        }
        let data = self.node.data();
        match fs::remove_dir_all(&data) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(at("deleting", &data)(error)),
            _ => self.start_again(),
        }
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
}

/// Whether the server answers the protocol header with a method frame.
fn speaks_amqp(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let timeout = Duration::from_secs(20);
    let answer = TcpStream::connect_timeout(&address, timeout).and_then(|mut stream| {
        stream.set_read_timeout(Some(timeout))?;
        stream.write_all(PROTOCOL_HEADER)?;
        let mut answer = [0];
        stream.read_exact(&mut answer).map(|()| answer[0])
    });
    answer.is_ok_and(|kind| kind == METHOD_FRAME)
}
