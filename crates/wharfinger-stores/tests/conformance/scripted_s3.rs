//! An S3 server with scripted answers.

use std::net::SocketAddr;

use harness::scripted::{ReceivedRequest, ScriptedServer, response};
use wharfinger_stores::s3::{S3Credentials, S3Options, S3Store};

pub(super) fn options_of(server: &ScriptedServer) -> S3Options {
    S3Options {
        bucket: "bucket".into(),
        region: Some("eu-north-1".into()),
        endpoint: Some(format!("http://{}", server.address())),
        credentials: Some(S3Credentials {
            access_key: "key".into(),
            secret_key: "secret".into(),
            session_token: None,
        }),
        ..S3Options::default()
    }
}

pub(super) async fn store(server: &ScriptedServer) -> S3Store {
    S3Store::connect(&options_of(server)).await.expect("connected")
}

pub(super) fn xml(status: u16, body: &str) -> Vec<u8> {
    response(status, "application/xml", &format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>{body}"))
}

pub(super) fn error(status: u16, code: &str) -> Vec<u8> {
    xml(status, &format!("<Error><Code>{code}</Code><Message>Because.</Message></Error>"))
}

/// Forwards a request unchanged to a real server. Returns its whole answer.
pub(super) fn relayed(request: &ReceivedRequest, to: SocketAddr) -> Vec<u8> {
    use std::io::{Read as _, Write as _};
    let mut server = std::net::TcpStream::connect(to).expect("the server is running");
    let end_of_line = request.raw.windows(2).position(|pair| pair == b"\r\n").expect("a request") + 2;
    server.write_all(&request.raw[..end_of_line]).expect("written");
    server.write_all(b"connection: close\r\n").expect("written");
    server.write_all(&request.raw[end_of_line..]).expect("written");
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).expect("answered");
    answer
}
