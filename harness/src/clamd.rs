//! A real clamd for tests, with a handful of signatures of our own, and the faults it can be made to suffer. A
//! test that breaks its scanner starts one of its own; the others share one.

mod binaries;
mod signatures;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use self::binaries::Binaries;
pub use self::signatures::{
    EICAR_SIGNATURE, KNOWN_FILE, KNOWN_FILE_SHA256, KNOWN_FILE_SIGNATURE, PATTERN, PATTERN_SIGNATURE, eicar,
};
use crate::packages::at;
use crate::server::{Server, free_port, listens, on_free_ports};
use crate::{Error, sharing};

/// Names a running clamd that [`shared`] attaches to rather than starting one, as [`Clamd::sharing_url`] does.
pub const ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_CLAMD";

/// What a shared clamd takes of one file at most, and every other unless it is told otherwise.
pub const STREAM_BYTES_MAX: u64 = 1024 * 1024;

const PATIENCE_WITH_START: Duration = Duration::from_secs(60);
const PATIENCE_WITH_STOP: Duration = Duration::from_secs(30);
const PATIENCE_WITH_ANSWER: Duration = Duration::from_secs(20);

/// What a test may want otherwise than usual.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// clamd's `StreamMaxLength`.
    pub stream_bytes_max: u64,
    /// Lines for its settings, such as `MaxFileSize 100K`.
    pub settings: &'static [&'static str],
}

impl Default for Options {
    fn default() -> Self {
        Self { stream_bytes_max: STREAM_BYTES_MAX, settings: &[] }
    }
}

/// A clamd: one that we started and end on drop, or one that runs already.
pub struct Clamd {
    port: u16,
    socket: PathBuf,
    ours: Option<Ours>,
}

/// What only the process that started a clamd has: the means to break and to end it.
struct Ours {
    binaries: Binaries,
    server: Server,
}

/// The clamd that all tests of this process share: the one [`ADDRESS_VARIABLE`] names, or else one started now that
/// ends with the process.
///
/// # Panics
///
/// Panics where there is none to be had: tests without their server must fail, not pass unrun.
pub fn shared() -> &'static Clamd {
    static SHARED: OnceLock<Result<Clamd, Error>> = OnceLock::new();
    sharing::once("clamd", &SHARED, Clamd::from_environment)
}

impl Clamd {
    /// Starts a clamd of the caller's own, on a free port and a socket in its temporary folder.
    pub fn start(options: Options) -> Result<Self, Error> {
        on_free_ports(&["Address already in use"], || {
            let mut clamd = Self::prepare(options)?;
            clamd.launch().map(|()| clamd)
        })
    }

    /// All but the start: a folder with settings and signatures, and an address.
    fn prepare(options: Options) -> Result<Self, Error> {
        let binaries = Binaries::find_or_unpack()?;
        // SIGKILL: what it leaves is all in the folder.
        let server = Server::prepare("clamd", None, "KILL")?;
        let folder = server.folder();
        for name in ["signatures", "temporary"] {
            let path = folder.join(name);
            fs::create_dir(&path).map_err(at("creating", &path))?;
        }
        signatures::write(&folder.join("signatures"))?;
        let (port, socket) = (free_port()?, folder.join("socket"));
        let settings = settings_of(folder);
        fs::write(&settings, options.text(folder, port, &socket)).map_err(at("writing", &settings))?;
        Ok(Self { port, socket, ours: Some(Ours { binaries, server }) })
    }

    /// The running clamd that [`ADDRESS_VARIABLE`] names, or a new one where it is not set.
    pub fn from_environment() -> Result<Self, Error> {
        let Some((port, socket)) = sharing::named_by(ADDRESS_VARIABLE, parse)? else {
            return Self::start(Options::default());
        };
        if !answers(port) {
            return Err(Error::new(format!("the clamd that {ADDRESS_VARIABLE} names does not answer")));
        }
        Ok(Self { port, socket, ours: None })
    }

    pub fn tcp_url(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    pub fn unix_url(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    /// The value of [`ADDRESS_VARIABLE`] with which other processes share it: both its addresses.
    pub fn sharing_url(&self) -> String {
        format!("{},{}", self.tcp_url(), self.unix_url())
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process, where it is ours and running.
    pub fn pid(&self) -> Option<u32> {
        self.ours.as_ref().and_then(|ours| ours.server.pid())
    }

    /// The folder with settings, signatures and log, where the clamd is ours.
    pub fn folder(&self) -> Option<PathBuf> {
        Some(self.ours.as_ref()?.server.folder().to_owned())
    }

    /// Kills it at once. Its socket stays, and nobody listens there.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.ours()?.server.kill()
    }

    /// Ends it in order.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.ours()?.server.end("TERM", PATIENCE_WITH_STOP)
    }

    /// Starts the killed or stopped clamd again, at the same addresses.
    pub fn start_again(&mut self) -> Result<(), Error> {
        self.launch()
    }

    /// Stops it where it stands: connections stay open, answers stay out.
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
        let port = self.port;
        let Ours { binaries, server } = self.ours()?;
        let command = binaries.clamd(&settings_of(server.folder()));
        server.spawn(command)?;
        // It opens both its addresses before it answers at either.
        server.wait_until("clamd", PATIENCE_WITH_START, |pid| listens(pid, port) && answers(port))
    }
}

impl Options {
    fn text(&self, folder: &Path, port: u16, socket: &Path) -> String {
        let mut lines = vec![
            format!("DatabaseDirectory {}", folder.join("signatures").display()),
            format!("TemporaryDirectory {}", folder.join("temporary").display()),
            format!("LocalSocket {}", socket.display()),
            "TCPAddr 127.0.0.1".to_owned(),
            format!("TCPSocket {port}"),
            format!("StreamMaxLength {}", self.stream_bytes_max),
            // Nobody changes the signatures while it runs.
            "SelfCheck 0".to_owned(),
        ];
        lines.extend(self.settings.iter().map(|line| (*line).to_owned()));
        lines.join("\n") + "\n"
    }
}

fn settings_of(folder: &Path) -> PathBuf {
    folder.join("clamd.conf")
}

fn answers(port: u16) -> bool {
    let ask = || {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE_WITH_ANSWER)?;
        stream.set_read_timeout(Some(PATIENCE_WITH_ANSWER))?;
        stream.write_all(b"zPING\0")?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    ask().is_ok_and(|answer| &answer == b"PONG\0")
}

fn parse(urls: &str) -> Result<(u16, PathBuf), Error> {
    let both = || {
        let (tcp, unix) = urls.split_once(',')?;
        let port = tcp.strip_prefix("tcp://127.0.0.1:")?.parse().ok()?;
        Some((port, PathBuf::from(unix.strip_prefix("unix:")?)))
    };
    both().ok_or_else(|| Error::new("not of the form tcp://127.0.0.1:port,unix:/path"))
}
