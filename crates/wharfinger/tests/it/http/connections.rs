//! Connections: kept for the next request, and closed when a client only holds them.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use wharfinger::config::AddressRange;
use wharfinger::http::ConnectionLimits;

use super::http2::Unread;

const LIMITS: ConnectionLimits =
    ConnectionLimits { connections_max: 100, per_address_max: 0, trusted_proxies: Vec::new() };

struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Server {
    async fn start(limits: ConnectionLimits) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        let endless = || async {
            let pieces = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![0_u8; 1 << 20]));
            Body::from_stream(pieces)
        };
        let silent =
            || async { Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>()) };
        let router = Router::new()
            .route("/", get(async || "ahoy"))
            .route("/length", post(async |body: axum::body::Bytes| body.len().to_string()))
            .route("/endless", get(endless))
            .route("/silent", get(silent));
        let serving = tokio::spawn(wharfinger::http::serve(listener, router, limits, stop.clone()));
        Server { address, stop, serving }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("taken")
    }

    /// From another address of this machine.
    async fn connect_from(&self, address: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(format!("{address}:0").parse().expect("an address")).expect("bound");
        socket.connect(self.address).await.expect("taken")
    }

    async fn end(self) {
        self.stop.cancel();
        self.serving.await.expect("it ends");
    }
}

/// Whether the server closes it, as it does or will in a moment.
async fn is_closed(connection: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(Duration::from_secs(2), connection.read(&mut [0; 512])).await;
    matches!(read, Ok(Ok(0) | Err(_)))
}

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
pub async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Whoever reuses a connection must not find it closed under its request: proxies keep theirs for two minutes and less.
#[tokio::test]
async fn a_connection_is_kept_for_longer_than_a_proxy_keeps_it() {
    let server = Server::start(LIMITS).await;
    let mut connection = server.connect().await;
    for _ in 0..2 {
        assert!(ask(&mut connection).await.starts_with("HTTP/1.1 200"));
        pass(Duration::from_secs(125)).await;
    }
    assert!(ask(&mut connection).await.starts_with("HTTP/1.1 200"));
    pass(Duration::from_secs(600)).await;
    assert!(is_closed(&mut connection).await, "no place is held for ever");
    server.end().await;
}

/// Nothing at all, one byte of two protocols, half a head, a head that comes byte by byte, a beginning of HTTP/2.
#[tokio::test]
async fn a_client_without_a_request_is_closed() {
    let server = Server::start(LIMITS).await;
    for said in [&b""[..], b"P", b"G", b"GET / HTTP/1.1\r\nhost: wh", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut connection = server.connect().await;
        connection.write_all(said).await.expect("sent");
        tokio::time::sleep(Duration::from_millis(50)).await;
        pass(Duration::from_secs(20)).await;
        let _ = connection.write_all(if said.starts_with(b"GET") { b"a" } else { b"" }).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        pass(Duration::from_secs(25)).await;
        // HTTP/2 says something before it is closed.
        let mut closed = false;
        for _ in 0..5 {
            closed = closed || is_closed(&mut connection).await;
        }
        assert!(closed, "{:?}", String::from_utf8_lossy(said));
    }
    server.end().await;
}

/// One that reads nothing of a long answer; and one that waits for news, which is our affair.
#[tokio::test]
async fn a_client_that_does_not_read_is_closed() {
    let server = Server::start(LIMITS).await;
    let (mut lazy, mut waiting) = (server.connect().await, server.connect().await);
    lazy.write_all(b"GET /endless HTTP/1.1\r\nhost: w\r\n\r\n").await.expect("sent");
    waiting.write_all(b"GET /silent HTTP/1.1\r\nhost: w\r\n\r\n").await.expect("sent");
    tokio::time::sleep(Duration::from_millis(300)).await;
    for _ in 0..8 {
        pass(Duration::from_secs(10)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut left = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(10), lazy.read_to_end(&mut left)).await;
    assert!(ended.is_ok(), "its connection ends, after what was sent");
    assert!(waiting.read(&mut [0; 512]).await.expect("its head") > 0);
    assert!(!is_closed(&mut waiting).await, "nothing was left unread");
    drop(waiting);
    server.end().await;
}

#[tokio::test]
async fn one_address_has_so_many_connections() {
    let limits = ConnectionLimits {
        per_address_max: 3,
        trusted_proxies: vec![AddressRange::parse("127.0.0.8/31").expect("a range")],
        ..LIMITS
    };
    let server = Server::start(limits).await;
    let mut first = Vec::new();
    for _ in 0..3 {
        first.push(server.connect_from("127.0.0.2").await);
        ask(first.last_mut().expect("one")).await;
    }
    assert!(is_closed(&mut server.connect_from("127.0.0.2").await).await, "one too many");
    ask(&mut server.connect_from("127.0.0.3").await).await;
    let mut proxy = Vec::new();
    for _ in 0..10 {
        proxy.push(server.connect_from("127.0.0.9").await);
        ask(proxy.last_mut().expect("one")).await;
    }
    first.pop();
    // The server learns of it in a moment.
    let served = async {
        loop {
            let mut another = server.connect_from("127.0.0.2").await;
            let _ = another.write_all(b"GET / HTTP/1.1\r\nhost: wharf\r\n\r\n").await;
            if another.read(&mut [0; 512]).await.is_ok_and(|read| read > 0) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), served).await.expect("its place is free");
    drop((first, proxy));
    server.end().await;
}

/// All places are taken by clients that say nothing: others are served at once, and those with a request stay.
#[tokio::test]
async fn connections_without_a_request_make_room() {
    let server = Server::start(LIMITS).await;
    let mut busy = server.connect().await;
    busy.write_all(b"GET /silent HTTP/1.1\r\nhost: w\r\n\r\n").await.expect("sent");
    assert!(busy.read(&mut [0; 512]).await.expect("its head") > 0);
    let mut holding = Vec::new();
    for _ in 0..200 {
        let mut connection = server.connect().await;
        let _ = connection.write_all(b"P").await;
        holding.push(connection);
    }
    for _ in 0..20 {
        let mut other = server.connect().await;
        let asked = tokio::time::timeout(Duration::from_secs(5), ask(&mut other)).await;
        assert!(asked.expect("served soon").starts_with("HTTP/1.1 200"));
    }
    assert!(!is_closed(&mut busy).await);
    drop((busy, holding));
    server.end().await;
}

/// By HTTP/2, with a window of 0: new requests make up for nothing.
#[tokio::test]
async fn new_requests_do_not_keep_a_client_that_reads_nothing() {
    let server = Server::start(LIMITS).await;
    let mut unread = Unread::connect(server.address).await;
    unread.get("/").await;
    for second in (5..=75).step_by(5) {
        tokio::time::sleep(Duration::from_millis(10)).await;
        pass(Duration::from_secs(5)).await;
        if second % 25 == 0 && second <= 50 {
            assert!(!unread.is_closed(), "there is time to read");
            unread.get("/").await;
        }
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(unread.is_closed(), "its first answer is unread");
    server.end().await;
}

/// All places are taken by clients that ask again and again, take requests back, and do not read: those that wait for us
/// stay, and others are served.
#[tokio::test]
async fn connections_that_read_nothing_make_room() {
    let server = Server::start(ConnectionLimits { connections_max: 20, ..LIMITS }).await;
    let mut busy = server.connect().await;
    busy.write_all(b"GET /silent HTTP/1.1\r\nhost: w\r\n\r\n").await.expect("sent");
    assert!(busy.read(&mut [0; 512]).await.expect("its head") > 0);
    let mut holding = Vec::new();
    for _ in 0..19 {
        let mut unread = Unread::connect(server.address).await;
        let first = unread.get("/").await;
        unread.get("/").await;
        unread.reset(first).await;
        holding.push(unread);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut other = server.connect().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    pass(Duration::from_secs(6)).await;
    let asked = tokio::time::timeout(Duration::from_secs(5), ask(&mut other)).await;
    assert!(asked.expect("served soon").starts_with("HTTP/1.1 200"));
    assert!(!is_closed(&mut busy).await);
    drop((busy, holding));
    server.end().await;
}

/// The server says that a head is too large long before it has taken all of it.
#[tokio::test]
async fn a_large_head_is_refused_before_its_end() {
    let server = Server::start(LIMITS).await;
    let mut connection = server.connect().await;
    let head = format!("GET / HTTP/1.1\r\nhost: w\r\nx: {}", "a".repeat(100 << 10));
    let _ = connection.write_all(head.as_bytes()).await;
    let mut heard = [0; 512];
    let read = tokio::time::timeout(Duration::from_secs(5), connection.read(&mut heard)).await;
    let heard = match read.expect("it does not wait for the end") {
        Ok(read) => String::from_utf8_lossy(&heard[..read]).into_owned(),
        // Closed on what it was still sent.
        Err(_) => String::new(),
    };
    assert!(heard.is_empty() || heard.starts_with("HTTP/1.1 431"), "{heard}");
    // A head that people have, with large cookies, is taken.
    let mut other = server.connect().await;
    let head = format!("GET / HTTP/1.1\r\nhost: w\r\nx: {}\r\n\r\n", "a".repeat(32 << 10));
    other.write_all(head.as_bytes()).await.expect("sent");
    let mut heard = [0; 12];
    other.read_exact(&mut heard).await.expect("heard");
    assert_eq!(&heard, b"HTTP/1.1 200");
    server.end().await;
}
