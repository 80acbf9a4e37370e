//! A real RabbitMQ node for tests: fresh virtual hosts on it, and the faults it can be made to
//! suffer. A test that breaks its server starts one of its own; the others share one.

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

/// Names a running server, by its [`RabbitMq::sharing_url`], that [`shared`] attaches to rather
/// than starting one.
pub const ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_RABBITMQ";

/// Some seconds of computing, of which a busy machine makes many.
const PATIENCE_WITH_START: Duration = Duration::from_secs(90);
const PATIENCE_WITH_STOP: Duration = Duration::from_secs(60);

/// By which one tells that a port was taken. epmd ends without a word, and successfully, where its
/// own is: by another epmd, it thinks.
const PORT_WAS_TAKEN: [&str; 3] = ["eaddrinuse", "dist_port_already_used", "epmd ended"];

/// What a client opens a connection with, and the kind of frame that the server's answer is.
const GREETING: &[u8] = b"AMQP\0\0\x09\x01";
const METHOD_FRAME: u8 = 1;

/// A RabbitMQ server: one that we started and end on drop, or one that runs already. Quorum queues
/// work on its single node, and it runs without plugins.
pub struct RabbitMq {
    binaries: Binaries,
    node: Node,
    ours: Option<Ours>,
}

/// What only the process that started a server has: the means to break and to end it. The server
/// goes before the registry that its tools find it in.
struct Ours {
    server: Server,
    _epmd: Server,
}

/// The server that all tests of this process share: the one [`ADDRESS_VARIABLE`] names, or else
/// one started now that ends with the process. Tests stay apart in virtual hosts of their own.
///
/// # Panics
///
/// Panics where there is none to be had: tests without their server must fail, not pass unrun.
pub fn shared() -> &'static RabbitMq {
    static SHARED: OnceLock<Result<RabbitMq, Error>> = OnceLock::new();
    sharing::once("RabbitMQ", &SHARED, RabbitMq::from_environment)
}

impl RabbitMq {
    /// Starts a server of the caller's own, on free ports, with its data in a temporary folder.
    pub fn start() -> Result<Self, Error> {
        on_free_ports(&PORT_WAS_TAKEN, || {
            let mut rabbitmq = Self::prepare()?;
            rabbitmq.start_again().map(|()| rabbitmq)
        })
    }

    /// All but the start of the server itself.
    fn prepare() -> Result<Self, Error> {
        let binaries = Binaries::find_or_unpack()?;
        // SIGKILL for both: neither leaves anything but files, and the children end by themselves.
        let server = Server::prepare("rabbitmq", None, "KILL")?;
        let node = Node::prepare(server.folder())?;
        let mut epmd = Server::prepare("epmd", None, "KILL")?;
        epmd.spawn(node.epmd(&binaries))?;
        epmd.wait_until("epmd", PATIENCE_WITH_START, |pid| listens(pid, node.epmd_port))?;
        Ok(Self { binaries, node, ours: Some(Ours { server, _epmd: epmd }) })
    }

    /// The running server that [`ADDRESS_VARIABLE`] names, or a new one where it is not set.
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
        Ok(Self { binaries: Binaries::find_or_unpack()?, node, ours: None })
    }

    /// Where clients find the virtual host that is there from the beginning, `/`.
    pub fn url(&self) -> String {
        self.node.url("%2f")
    }

    /// Where clients find the virtual host of this name.
    pub fn url_of(&self, vhost: &str) -> String {
        self.node.url(&encoded(vhost))
    }

    /// The value of [`ADDRESS_VARIABLE`] with which other processes of this machine and user share
    /// the server: the URL, and what else its tools need.
    pub fn sharing_url(&self) -> String {
        self.node.sharing_url()
    }

    pub fn port(&self) -> u16 {
        self.node.port
    }

    /// The process, where it is ours and running.
    pub fn pid(&self) -> Option<u32> {
        self.ours.as_ref().and_then(|ours| ours.server.pid())
    }

    /// The folder with data and log, where the server is ours.
    pub fn folder(&self) -> Option<PathBuf> {
        Some(self.ours.as_ref()?.server.folder().to_owned())
    }

    /// Runs rabbitmqctl, and returns its results without titles and headings.
    pub fn ctl(&self, words: &[&str]) -> Result<String, Error> {
        command::run(self.node.script(&self.binaries, "rabbitmqctl").arg("--silent").args(words))
    }

    /// Makes an empty virtual host under a name nobody else uses, and returns its URL.
    ///
    /// # Panics
    ///
    /// Panics where the server refuses.
    pub fn create_vhost(&self) -> String {
        let name = format!("test-{}-{:016x}", std::process::id(), random());
        let made = self
            .ctl(&["add_vhost", &name])
            .and_then(|_| self.ctl(&["set_permissions", "-p", &name, "guest", ".*", ".*", ".*"]));
        match made {
            Ok(_) => self.url_of(&name),
            Err(error) => panic!("no virtual host could be made: {error}"),
        }
    }

    /// Has the server write down which queues there are, as it would by itself within seconds. Before
    /// that, a kill may cost a new quorum queue its messages, confirmed or not, and its leader for good.
    pub fn flush_queue_metadata(&self) -> Result<(), Error> {
        self.ctl(&["eval", "ok = mnesia:sync_log(), [ok = dets:sync(Table) || Table <- dets:all()]."])
            .map(drop)
    }

    /// Kills the server and all its children at once, as a power cut would. What was confirmed comes
    /// back, if its queue was [flushed](Self::flush_queue_metadata).
    pub fn kill(&mut self) -> Result<(), Error> {
        self.ours()?.server.kill()
    }

    /// Ends the server in order.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.ours()?.server.end("TERM", PATIENCE_WITH_STOP)
    }

    /// Starts the killed or stopped server again, on the same data and port.
    pub fn start_again(&mut self) -> Result<(), Error> {
        let Self { binaries, node, ours } = self;
        let server = &mut ours.as_mut().ok_or_else(Error::not_ours)?.server;
        server.spawn(node.server(binaries)?)?;
        let port = node.port;
        server.wait_until("RabbitMQ", PATIENCE_WITH_START, |pid| listens(pid, port) && speaks_amqp(port))
    }

    /// Loses everything: kills the server if it runs, deletes its data and starts it again, empty.
    /// Virtual hosts are gone with their queues.
    pub fn wipe(&mut self) -> Result<(), Error> {
        let server = &mut self.ours()?.server;
        if server.pid().is_some() {
            server.kill()?;
        }
        let data = self.node.data();
        match fs::remove_dir_all(&data) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(at("deleting", &data)(error)),
            _ => self.start_again(),
        }
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
}

/// Whether the server answers a client's greeting with the first words of the protocol.
fn speaks_amqp(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let patience = Duration::from_secs(20);
    let answer = TcpStream::connect_timeout(&address, patience).and_then(|mut stream| {
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(GREETING)?;
        let mut answer = [0];
        stream.read_exact(&mut answer).map(|()| answer[0])
    });
    answer.is_ok_and(|kind| kind == METHOD_FRAME)
}
