//! A server that says what a test tells it to say, for what no real one can be brought to do.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use wharfinger_backends::blobs::s3::{S3Credentials, S3Options, S3Store};

#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// With its query.
    pub(crate) path: String,
    /// As it came, head and body.
    pub(crate) raw: Vec<u8>,
}

pub(crate) struct Scripted {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Scripted {
    /// What is answered may depend on the request and on how many came before it. It is written as it is, and
    /// then the connection is closed.
    pub(crate) async fn start(answer: impl Fn(&Asked, usize) -> Vec<u8> + Send + Sync + 'static) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (seen, answer) = (asked.clone(), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (seen, answer) = (seen.clone(), answer.clone());
                tokio::spawn(async move {
                    let Some(request) = read(&mut stream).await else { return };
                    let before = {
                        let mut seen = seen.lock().expect("no test panics with it");
                        seen.push(request.clone());
                        seen.len() - 1
                    };
                    // It may take its time, as it may ask another server.
                    let said = tokio::task::spawn_blocking(move || answer(&request, before)).await;
                    let _ = stream.write_all(&said.expect("an answer")).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        Scripted { address, asked }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn options(&self) -> S3Options {
        S3Options {
            bucket: "bucket".into(),
            region: Some("eu-north-1".into()),
            endpoint: Some(format!("http://{}", self.address)),
            credentials: Some(S3Credentials {
                access_key: "key".into(),
                secret_key: "secret".into(),
                session_token: None,
            }),
            ..S3Options::default()
        }
    }

    pub(super) async fn store(&self) -> S3Store {
        S3Store::connect(&self.options()).await.expect("connected")
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no test panics with it").clone()
    }
}

async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut raw = Vec::new();
    loop {
        let mut some = [0; 8_192];
        let count = stream.read(&mut some).await.ok().filter(|count| *count > 0)?;
        raw.extend_from_slice(&some[..count]);
        let text = String::from_utf8_lossy(&raw).into_owned();
        let Some((head, _)) = text.split_once("\r\n\r\n") else { continue };
        let lower = head.to_lowercase();
        let length = lower.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
        if raw.len() >= head.len() + 4 + length {
            let mut words = head.split(' ').map(str::to_owned);
            return Some(Asked { method: words.next()?, path: words.next()?, raw });
        }
    }
}

/// An answer of the usual shape.
pub(crate) fn says(status: u16, content_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} So\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

pub(super) fn xml(status: u16, body: &str) -> Vec<u8> {
    says(status, "application/xml", &format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>{body}"))
}

pub(super) fn error(status: u16, code: &str) -> Vec<u8> {
    xml(status, &format!("<Error><Code>{code}</Code><Message>Because.</Message></Error>"))
}

/// A request handed on to a real server as it is, and its whole answer.
pub(super) fn relayed(asked: &Asked, to: SocketAddr) -> Vec<u8> {
    use std::io::{Read as _, Write as _};
    let mut server = std::net::TcpStream::connect(to).expect("the server is there");
    let end_of_line = asked.raw.windows(2).position(|pair| pair == b"\r\n").expect("a request") + 2;
    server.write_all(&asked.raw[..end_of_line]).expect("written");
    server.write_all(b"connection: close\r\n").expect("written");
    server.write_all(&asked.raw[end_of_line..]).expect("written");
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).expect("answered");
    answer
}
