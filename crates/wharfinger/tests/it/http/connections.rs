//! Connections that are kept for the next request.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

async fn ask(connection: &mut TcpStream) -> String {
    connection.write_all(b"GET / HTTP/1.1\r\nhost: wharf\r\n\r\n").await.expect("sent");
    let mut heard = String::new();
    while !heard.ends_with("ahoy") {
        let mut piece = [0; 512];
        let read = connection.read(&mut piece).await.expect("heard");
        assert!(read > 0, "closed after {heard:?}");
        heard.push_str(std::str::from_utf8(&piece[..read]).expect("text"));
    }
    heard
}

/// Nothing is sent or received while the clock moves.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Whoever reuses a connection must not find it closed under its request: proxies keep theirs for two minutes and less.
#[tokio::test]
async fn a_connection_is_kept_for_longer_than_a_proxy_keeps_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut connection = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("taken");
    let stop = CancellationToken::new();
    let router = Router::new().route("/", get(async || "ahoy"));
    let server = tokio::spawn(wharfinger::http::serve(listener, router, stop.clone()));
    for _ in 0..2 {
        assert!(ask(&mut connection).await.starts_with("HTTP/1.1 200"));
        pass(Duration::from_secs(125)).await;
    }
    assert!(ask(&mut connection).await.starts_with("HTTP/1.1 200"));
    pass(Duration::from_secs(600)).await;
    let left = connection.read(&mut [0; 512]).await.expect("its end");
    assert_eq!(left, 0, "nobody holds a place for ever");
    stop.cancel();
    server.await.expect("it ends");
}
