//! A minimal HTTP client to check whether a server answers. Signed requests go through a Python script, because Rust's
//! standard library has no hash functions.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{Error, command, python_packages};

const SCRIPT: &str = include_str!("signed_request.py");
const TIMEOUT: Duration = Duration::from_secs(20);

/// The store's answer to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Answer {
    /// The answer if its status is 2xx, else an error.
    pub(crate) fn successful(self, doing: &str) -> Result<Self, Error> {
        match self.status {
            200..300 => Ok(self),
            status => Err(Error::new(format!(
                "{doing}: answered {status}: {}",
                String::from_utf8_lossy(&self.body)
            ))),
        }
    }
}

/// The credentials of a signed request, and the scheme of its signature.
pub(crate) struct Signer<'a> {
    /// `s3` or `azure`.
    pub(crate) scheme: &'a str,
    pub(crate) name: &'a str,
    pub(crate) secret: &'a str,
    pub(crate) region: &'a str,
}

/// Sends a signed request. The URL must be percent-encoded.
pub(crate) fn signed(signer: &Signer<'_>, method: &str, url: &str, body: &[u8]) -> Result<Answer, Error> {
    signed_with(signer, method, url, &[], body)
}

/// Like [`signed`], with headers that are not signed, each as `name: value`.
pub(crate) fn signed_with(
    signer: &Signer<'_>,
    method: &str,
    url: &str,
    headers: &[&str],
    body: &[u8],
) -> Result<Answer, Error> {
    let mut python = Command::new(python_packages::python());
    python.args([
        "-I",
        "-S",
        "-c",
        SCRIPT,
        signer.scheme,
        method,
        url,
        signer.name,
        signer.secret,
        signer.region,
    ]);
    python.args(headers);
    let doing = || format!("{method} {url} by a Python script");
    let mut child = python
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Error::while_doing(doing()))?;
    // The script reads everything before it writes, so the two do not deadlock. If the script fails meanwhile, its
    // standard error has the reason, and the error of this pipe does not.
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(body));
    let output = child.wait_with_output().map_err(Error::while_doing(doing()))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(Error::new(format!("{}: {}", doing(), command::last_lines(&stderr, 1))));
    }
    written.map_err(Error::while_doing(doing()))?;
    let end_of_line = output.stdout.iter().position(|byte| *byte == b'\n').unwrap_or(output.stdout.len());
    let (status, body) = output.stdout.split_at(end_of_line);
    let status = String::from_utf8_lossy(status).parse().map_err(Error::while_doing(doing()))?;
    Ok(Answer { status, body: body.get(1..).unwrap_or_default().to_owned() })
}

/// The status of an unsigned `GET /`. None: the answer is not HTTP, or there is none.
pub(crate) fn status(authority: &str) -> Option<u16> {
    let address = authority.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream
        .write_all(format!("GET / HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n").as_bytes())
        .ok()?;
    let mut start = [0; "HTTP/1.1 200".len()];
    stream.read_exact(&mut start).ok()?;
    // Read to the end, because some servers log an error when the client disconnects early.
    let _ = stream.take(64 * 1024).read_to_end(&mut Vec::new());
    let start = std::str::from_utf8(&start).ok()?;
    start.strip_prefix("HTTP/1.")?.get(2..)?.parse().ok()
}
