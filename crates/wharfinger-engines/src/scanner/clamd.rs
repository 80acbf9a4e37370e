//! One connection to clamd for one file: the bytes go there in pieces of known length, and one line comes back. It
//! may come before all is sent, so it is listened for all the while.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use bytes::Buf as _;
use futures::StreamExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::answer::{clipped, early_meaning, meaning, misplaced};
use super::{Chunks, ScanError, Verdict, unread};

const PORT: u16 = 3310;
const PIECE_BYTES: usize = 64 * 1024;
const LENGTH_BYTES: usize = 4;
/// No name of a signature comes near it.
const ANSWER_BYTES_MAX: usize = 4_096;

/// How long clamd may take over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Duration,
    /// To take the next piece: connections wait while all its threads are busy with other files.
    pub piece: Duration,
    /// To answer when it has everything. By itself it spends two minutes on a file at most (`MaxScanTime`).
    pub verdict: Duration,
    /// To say what it is, or what it had against a stream that it broke off.
    pub word: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            piece: Duration::from_secs(120),
            verdict: Duration::from_secs(300),
            word: Duration::from_secs(10),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Clamd {
    address: Address,
    timeouts: Timeouts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

type Answers = Box<dyn AsyncRead + Send + Unpin>;
type Questions = Box<dyn AsyncWrite + Send + Unpin>;

/// Why the bytes did not all arrive.
enum Unsent {
    Source(String),
    /// clamd may have said why.
    Line(io::Error),
    Late,
}

impl Clamd {
    pub fn new(url: &str) -> Result<Clamd, String> {
        Ok(Clamd { address: Address::parse(url)?, timeouts: Timeouts::default() })
    }

    pub fn with_timeouts(self, timeouts: Timeouts) -> Clamd {
        Clamd { timeouts, ..self }
    }

    pub(super) async fn scan(&self, bytes: Chunks) -> Result<Verdict, ScanError> {
        let (mut answers, mut questions) = self.connect().await?;
        let mut answer = pin!(read_answer(&mut answers));
        let sent = tokio::select! {
            // In this order: an answer to the end of the stream is not taken for one that came before it.
            biased;
            sent = send(&mut questions, bytes, self.timeouts.piece) => sent,
            early = &mut answer => return early_meaning(&early.map_err(|error| self.unavailable(error))?),
        };
        match sent {
            Ok(()) => {
                let answer = timeout(self.timeouts.verdict, answer).await;
                let answer = answer.map_err(|_| self.unavailable("no verdict in time"))?;
                meaning(&answer.map_err(|error| self.unavailable(error))?)
            }
            Err(Unsent::Source(error)) => Err(unread(error)),
            Err(Unsent::Late) => Err(self.unavailable("it does not take the file in time")),
            Err(Unsent::Line(broken)) => match timeout(self.timeouts.word, answer).await {
                Ok(Ok(answer)) => early_meaning(&answer),
                _ => Err(self.unavailable(broken)),
            },
        }
    }

    pub(super) async fn check(&self) -> Result<String, ScanError> {
        let (mut answers, mut questions) = self.connect().await?;
        let asking = async {
            questions.write_all(b"zVERSION\0").await?;
            read_answer(&mut answers).await
        };
        let answer = timeout(self.timeouts.word, asking).await;
        let version = answer.map_err(|_| self.unavailable("no answer in time"))?;
        let version = version.map_err(|error| self.unavailable(error))?;
        if version.starts_with("ClamAV ") { Ok(version) } else { Err(misplaced(&version)) }
    }

    async fn connect(&self) -> Result<(Answers, Questions), ScanError> {
        let connecting = timeout(self.timeouts.connect, self.address.connect()).await;
        let connected = connecting.map_err(|_| self.unavailable("no connection in time"))?;
        connected.map_err(|error| self.unavailable(error))
    }

    fn unavailable(&self, why: impl fmt::Display) -> ScanError {
        ScanError::Unavailable(format!("clamd at {}: {why}", self.address))
    }
}

impl Address {
    fn parse(url: &str) -> Result<Address, String> {
        let form = "clamd's address has the form tcp://host:3310 or unix:/path/of/its/socket";
        if let Some(path) = url.strip_prefix("unix:") {
            // Some write it as a URL with an empty host.
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') && !path.ends_with('/') {
                Ok(Address::Unix(path.into()))
            } else {
                Err(format!("{form}, and the path of the socket has to be absolute: {url:?}"))
            };
        }
        let place = url.strip_prefix("tcp://").ok_or_else(|| format!("{form}: {url:?}"))?;
        let place = place.strip_suffix('/').unwrap_or(place);
        let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or("none"))),
            None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map_or(Ok(PORT), |port| match port.parse() {
            Ok(0) | Err(_) => Err(format!("{form}, and {port:?} is no port: {url:?}")),
            Ok(port) => Ok(port),
        })?;
        if host.is_empty() || host.contains(['/', '@', '?', '#', ' ']) {
            return Err(format!("{form}, and {host:?} is no host: {url:?}"));
        }
        Ok(Address::Tcp { host: host.to_owned(), port })
    }

    async fn connect(&self) -> io::Result<(Answers, Questions)> {
        match self {
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                let (answers, questions) = stream.into_split();
                Ok((Box::new(answers), Box::new(questions)))
            }
            Address::Unix(path) => {
                let (answers, questions) = UnixStream::connect(path).await?.into_split();
                Ok((Box::new(answers), Box::new(questions)))
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The command, the pieces, and the piece of no length that ends them. Pieces are filled up before they are sent: an
/// empty one of the source would be taken for the end, and many small ones are slow.
async fn send(questions: &mut Questions, mut bytes: Chunks, patience: Duration) -> Result<(), Unsent> {
    write(questions, b"zINSTREAM\0", patience).await?;
    let mut piece = Vec::with_capacity(LENGTH_BYTES + PIECE_BYTES);
    piece.extend_from_slice(&[0; LENGTH_BYTES]);
    while let Some(some) = bytes.next().await {
        let mut some = some.map_err(Unsent::Source)?;
        while some.has_remaining() {
            let room = LENGTH_BYTES + PIECE_BYTES - piece.len();
            piece.extend_from_slice(&some.split_to(room.min(some.len())));
            if piece.len() == LENGTH_BYTES + PIECE_BYTES {
                write_piece(questions, &mut piece, patience).await?;
            }
        }
    }
    if piece.len() > LENGTH_BYTES {
        write_piece(questions, &mut piece, patience).await?;
    }
    write_piece(questions, &mut piece, patience).await
}

/// Leaves room for the next.
async fn write_piece(
    questions: &mut Questions,
    piece: &mut Vec<u8>,
    patience: Duration,
) -> Result<(), Unsent> {
    let length = u32::try_from(piece.len() - LENGTH_BYTES).expect("a piece is small");
    piece[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    write(questions, piece, patience).await?;
    piece.truncate(LENGTH_BYTES);
    Ok(())
}

async fn write(questions: &mut Questions, bytes: &[u8], patience: Duration) -> Result<(), Unsent> {
    match timeout(patience, questions.write_all(bytes)).await {
        Ok(written) => written.map_err(Unsent::Line),
        Err(_) => Err(Unsent::Late),
    }
}

/// One answer with its end: what was cut off says nothing.
async fn read_answer(answers: &mut Answers) -> io::Result<String> {
    let mut answer = Vec::new();
    loop {
        let mut some = [0; 512];
        let count = answers.read(&mut some).await?;
        answer.extend_from_slice(&some[..count]);
        match answer.iter().position(|byte| *byte == 0) {
            Some(end) if end + 1 == answer.len() => {
                answer.truncate(end);
                return Ok(String::from_utf8_lossy(&answer).into_owned());
            }
            None if count == 0 => {
                return Err(hung_up(&answer));
            }
            None if answer.len() <= ANSWER_BYTES_MAX => {}
            _ => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it says more than clamd ever does"));
            }
        }
    }
}

fn hung_up(answer: &[u8]) -> io::Error {
    let why = match String::from_utf8_lossy(answer).as_ref() {
        "" => "it hung up without an answer".to_owned(),
        some => format!("it hung up in the middle of its answer: {:?}", clipped(some)),
    };
    io::Error::new(io::ErrorKind::UnexpectedEof, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_told() {
        for (url, told) in [
            ("tcp://scanner:3310", "tcp://scanner:3310"),
            ("tcp://scanner", "tcp://scanner:3310"),
            ("tcp://10.0.0.1:99/", "tcp://10.0.0.1:99"),
            ("tcp://[::1]:99", "tcp://[::1]:99"),
            ("tcp://[::1]", "tcp://[::1]:3310"),
            ("unix:/run/clamav/clamd.ctl", "unix:/run/clamav/clamd.ctl"),
            ("unix:///run/clamav/clamd.ctl", "unix:/run/clamav/clamd.ctl"),
        ] {
            assert_eq!(Address::parse(url).expect(url).to_string(), told);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_form() {
        for url in [
            "",
            "scanner:3310",
            "http://scanner:3310",
            "tcp://",
            "tcp://:3310",
            "tcp://scanner:0",
            "tcp://scanner:99999",
            "tcp://scanner:",
            "tcp://[::1]3310",
            "tcp://::1",
            "tcp://scanner/path",
            "tcp://user@scanner",
            "unix:",
            "unix:run/clamd.ctl",
            "unix:/run/",
        ] {
            let error = Clamd::new(url).map(|clamd| clamd.address).expect_err(url);
            assert!(error.contains("tcp://host:3310 or unix:/path"), "{error}");
        }
    }
}
