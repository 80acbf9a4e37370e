//! One connection to clamd for each file. The bytes are sent in pieces with their length, and clamd answers with one
//! line. The answer can come before the end of the file, so it is read while sending.

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

use super::answer::{clipped, not_clamd, outcome_of, outcome_of_early};
use super::{Chunks, ScanError, Verdict, source_error};

const PORT: u16 = 3310;
const PIECE_BYTES: usize = 64 * 1024;
const LENGTH_BYTES: usize = 4;
/// Much longer than any signature name.
const ANSWER_BYTES_MAX: usize = 4_096;

/// The timeouts of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Duration,
    /// For clamd to accept the next piece. A connection waits while all threads of clamd are busy.
    pub piece: Duration,
    /// For the answer after the last piece. clamd's own limit is two minutes for each file (`MaxScanTime`).
    pub verdict: Duration,
    /// For the answer to VERSION, or for the reason after clamd closed a stream early.
    pub reply: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            piece: Duration::from_secs(120),
            verdict: Duration::from_secs(300),
            reply: Duration::from_secs(10),
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
type Requests = Box<dyn AsyncWrite + Send + Unpin>;

/// Why the file was not sent completely.
enum SendFailure {
    Source(String),
    /// The connection failed. clamd can have sent the reason before.
    Connection(io::Error),
    TimedOut,
}

impl Clamd {
    pub fn new(url: &str) -> Result<Clamd, String> {
        Ok(Clamd { address: Address::parse(url)?, timeouts: Timeouts::default() })
    }

    pub fn with_timeouts(self, timeouts: Timeouts) -> Clamd {
        Clamd { timeouts, ..self }
    }

    pub(super) async fn scan(&self, bytes: Chunks) -> Result<Verdict, ScanError> {
        let (mut answers, mut requests) = self.connect().await?;
        let mut answer = pin!(read_answer(&mut answers));
        let sent = tokio::select! {
            // Sending is polled first. Otherwise the answer to a complete stream could be taken for an early answer.
            biased;
            sent = send(&mut requests, bytes, self.timeouts.piece) => sent,
            early = &mut answer => return outcome_of_early(&early.map_err(|error| self.unavailable(error))?),
        };
        match sent {
            Ok(()) => {
                let answer = timeout(self.timeouts.verdict, answer).await;
                let answer = answer.map_err(|_| self.unavailable("no verdict in time"))?;
                outcome_of(&answer.map_err(|error| self.unavailable(error))?)
            }
            Err(SendFailure::Source(error)) => Err(source_error(error)),
            Err(SendFailure::TimedOut) => Err(self.unavailable("it did not accept the file in time")),
            Err(SendFailure::Connection(broken)) => match timeout(self.timeouts.reply, answer).await {
                Ok(Ok(answer)) => outcome_of_early(&answer),
                _ => Err(self.unavailable(broken)),
            },
        }
    }

    pub(super) async fn check(&self) -> Result<String, ScanError> {
        let (mut answers, mut requests) = self.connect().await?;
        let asking = async {
            requests.write_all(b"zVERSION\0").await?;
            read_answer(&mut answers).await
        };
        let answer = timeout(self.timeouts.reply, asking).await;
        let version = answer.map_err(|_| self.unavailable("no answer in time"))?;
        let version = version.map_err(|error| self.unavailable(error))?;
        if version.starts_with("ClamAV ") { Ok(version) } else { Err(not_clamd(&version)) }
    }

    async fn connect(&self) -> Result<(Answers, Requests), ScanError> {
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
        let form = "the address of clamd must have the form tcp://host:3310 or unix:/path/of/the/socket";
        if let Some(path) = url.strip_prefix("unix:") {
            // The form with an empty host is accepted too.
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') && !path.ends_with('/') {
                Ok(Address::Unix(path.into()))
            } else {
                Err(format!("{form}, with an absolute path: {url:?}"))
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
            Ok(0) | Err(_) => Err(format!("{form}, but {port:?} is not a port: {url:?}")),
            Ok(port) => Ok(port),
        })?;
        if host.is_empty() || host.contains(['/', '@', '?', '#', ' ']) {
            return Err(format!("{form}, but {host:?} is not a host: {url:?}"));
        }
        Ok(Address::Tcp { host: host.to_owned(), port })
    }

    async fn connect(&self) -> io::Result<(Answers, Requests)> {
        match self {
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                let (answers, requests) = stream.into_split();
                Ok((Box::new(answers), Box::new(requests)))
            }
            Address::Unix(path) => {
                let (answers, requests) = UnixStream::connect(path).await?.into_split();
                Ok((Box::new(answers), Box::new(requests)))
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

/// Sends the command, the pieces, and an empty piece as the end. The bytes of the source are collected into full
/// pieces: an empty piece would end the stream early, and small pieces are slow.
async fn send(requests: &mut Requests, mut bytes: Chunks, time_limit: Duration) -> Result<(), SendFailure> {
    write(requests, b"zINSTREAM\0", time_limit).await?;
    let mut piece = Vec::with_capacity(LENGTH_BYTES + PIECE_BYTES);
    piece.extend_from_slice(&[0; LENGTH_BYTES]);
    while let Some(some) = bytes.next().await {
        let mut some = some.map_err(SendFailure::Source)?;
        while some.has_remaining() {
            let room = LENGTH_BYTES + PIECE_BYTES - piece.len();
            piece.extend_from_slice(&some.split_to(room.min(some.len())));
            if piece.len() == LENGTH_BYTES + PIECE_BYTES {
                write_piece(requests, &mut piece, time_limit).await?;
            }
        }
    }
    if piece.len() > LENGTH_BYTES {
        write_piece(requests, &mut piece, time_limit).await?;
    }
    write_piece(requests, &mut piece, time_limit).await
}

/// Sends the piece and clears it, except for the space for its length.
async fn write_piece(
    requests: &mut Requests,
    piece: &mut Vec<u8>,
    time_limit: Duration,
) -> Result<(), SendFailure> {
    let length = u32::try_from(piece.len() - LENGTH_BYTES).expect("a piece is small");
    piece[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    write(requests, piece, time_limit).await?;
    piece.truncate(LENGTH_BYTES);
    Ok(())
}

async fn write(requests: &mut Requests, bytes: &[u8], time_limit: Duration) -> Result<(), SendFailure> {
    match timeout(time_limit, requests.write_all(bytes)).await {
        Ok(written) => written.map_err(SendFailure::Connection),
        Err(_) => Err(SendFailure::TimedOut),
    }
}

/// Reads one complete answer. A truncated answer is an error.
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
                return Err(truncated(&answer));
            }
            None if answer.len() <= ANSWER_BYTES_MAX => {}
            _ => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer is too long for clamd"));
            }
        }
    }
}

fn truncated(answer: &[u8]) -> io::Error {
    let why = match String::from_utf8_lossy(answer).as_ref() {
        "" => "it closed the connection without an answer".to_owned(),
        some => format!("it closed the connection in the middle of its answer: {:?}", clipped(some)),
    };
    io::Error::new(io::ErrorKind::UnexpectedEof, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_parsed_and_displayed() {
        for (url, displayed) in [
            ("tcp://scanner:3310", "tcp://scanner:3310"),
            ("tcp://scanner", "tcp://scanner:3310"),
            ("tcp://10.0.0.1:99/", "tcp://10.0.0.1:99"),
            ("tcp://[::1]:99", "tcp://[::1]:99"),
            ("tcp://[::1]", "tcp://[::1]:3310"),
            ("unix:/run/clamav/clamd.ctl", "unix:/run/clamav/clamd.ctl"),
            ("unix:///run/clamav/clamd.ctl", "unix:/run/clamav/clamd.ctl"),
        ] {
            assert_eq!(Address::parse(url).expect(url).to_string(), displayed);
        }
    }

    #[test]
    fn an_invalid_address_is_refused_and_the_error_shows_the_form() {
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
