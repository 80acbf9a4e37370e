//! A real clamd for tests, with a few signatures of our own, and methods that make it fail. A test that makes its clamd
//! fail starts a separate one. The others share one.

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

/// The variable with the addresses of a running clamd, in the form of [`Clamd::sharing_url`]. [`shared`] uses that
/// clamd instead of starting one.
pub const ADDRESS_VARIABLE: &str = "WHARFINGER_TEST_CLAMD";

/// The largest file that the shared clamd accepts. The default of the others too.
pub const STREAM_BYTES_MAX: u64 = 1024 * 1024;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Options of one clamd.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// clamd's `StreamMaxLength`.
    pub stream_bytes_max: u64,
    /// Further lines of its configuration, such as `MaxFileSize 100K`.
    pub settings: &'static [&'static str],
}

impl Default for Options {
    fn default() -> Self {
        Self { stream_bytes_max: STREAM_BYTES_MAX, settings: &[] }
    }
}

/// A clamd that this process started and stops on drop, or one that was already running.
pub struct Clamd {
    port: u16,
    socket: PathBuf,
    started: Option<Started>,
}

/// The process of a clamd that was started here. Only this can be stopped, killed or paused.
struct Started {
    binaries: Binaries,
    server: Server,
}

/// The clamd that all tests of this process share: the one that [`ADDRESS_VARIABLE`] names, or one that is started now
/// and ends with the process.
///
/// # Panics
///
/// Panics if there is no clamd. A test without its server must fail.
pub fn shared() -> &'static Clamd {
    static SHARED: OnceLock<Result<Clamd, Error>> = OnceLock::new();
    sharing::once("clamd", &SHARED, Clamd::from_environment)
}

impl Clamd {
    /// Starts a separate clamd on a free port, and on a socket in its temporary folder.
    pub fn start(options: Options) -> Result<Self, Error> {
        on_free_ports(&["Address already in use"], || {
            let mut clamd = Self::prepare(options)?;
            clamd.launch().map(|()| clamd)
        })
    }

    /// Everything except the start: a folder with configuration and signatures, and the addresses.
    fn prepare(options: Options) -> Result<Self, Error> {
        let binaries = Binaries::find_or_unpack()?;
        // SIGKILL: everything that clamd leaves is in the folder.
        let server = Server::prepare("clamd", None, "KILL")?;
        let folder = server.folder();
        for name in ["signatures", "temporary"] {
            let path = folder.join(name);
            fs::create_dir(&path).map_err(at("creating", &path))?;
        }
        signatures::write(&folder.join("signatures"))?;
        let (port, socket) = (free_port()?, folder.join("socket"));
        let settings = settings_path(folder);
        fs::write(&settings, options.text(folder, port, &socket)).map_err(at("writing", &settings))?;
        Ok(Self { port, socket, started: Some(Started { binaries, server }) })
    }

    /// The running clamd that [`ADDRESS_VARIABLE`] names, or a new one if the variable is not set.
    pub fn from_environment() -> Result<Self, Error> {
        let Some((port, socket)) = sharing::named_by(ADDRESS_VARIABLE, parse)? else {
            return Self::start(Options::default());
        };
        if !answers(port) {
            return Err(Error::new(format!("the clamd that {ADDRESS_VARIABLE} names does not answer")));
        }
        Ok(Self { port, socket, started: None })
    }

    pub fn tcp_url(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    pub fn unix_url(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    /// The value of [`ADDRESS_VARIABLE`] for other processes: both addresses.
    pub fn sharing_url(&self) -> String {
        format!("{},{}", self.tcp_url(), self.unix_url())
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// None: it was not started here, or it does not run.
    pub fn pid(&self) -> Option<u32> {
        self.started.as_ref().and_then(|started| started.server.pid())
    }

    /// The folder with configuration, signatures and log. None: it was not started here.
    pub fn folder(&self) -> Option<PathBuf> {
        Some(self.started.as_ref()?.server.folder().to_owned())
    }

    /// Kills it at once. The file of its socket stays, and no process listens there.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.started()?.server.kill()
    }

    /// Stops it normally.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.started()?.server.stop("TERM", STOP_TIMEOUT)
    }

    /// Starts the killed or stopped clamd again, at the same addresses.
    pub fn start_again(&mut self) -> Result<(), Error> {
        self.launch()
    }

    /// Pauses it: connections stay open, and no answer comes.
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
        let port = self.port;
        let Started { binaries, server } = self.started()?;
        let command = binaries.clamd(&settings_path(server.folder()));
        server.spawn(command)?;
        // clamd opens both addresses before it answers on one.
        server.wait_until("clamd", START_TIMEOUT, |pid| listens(pid, port) && answers(port))
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
            // The signatures do not change while it runs.
            "SelfCheck 0".to_owned(),
        ];
        lines.extend(self.settings.iter().map(|line| (*line).to_owned()));
        lines.join("\n") + "\n"
    }
}

fn settings_path(folder: &Path) -> PathBuf {
    folder.join("clamd.conf")
}

fn answers(port: u16) -> bool {
    let ask = || {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
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
    both().ok_or_else(|| Error::new("expected tcp://127.0.0.1:port,unix:/path"))
}
