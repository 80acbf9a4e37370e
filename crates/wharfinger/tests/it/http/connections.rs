//! Connections: kept for the next request, and closed when a client sends or reads nothing.

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

use super::http2::NonReadingClient;

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
            .route("/", get(async || "hello"))
            .route("/length", post(async |body: axum::body::Bytes| body.len().to_string()))
            .route("/endless", get(endless))
            .route("/silent", get(silent));
        let serving = tokio::spawn(wharfinger::http::serve(listener, router, limits, stop.clone()));
        Server { address, stop, serving }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connected")
    }

    /// Connects from another address of this machine.
    async fn connect_from(&self, address: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(format!("{address}:0").parse().expect("an address")).expect("bound");
        socket.connect(self.address).await.expect("connected")
    }

    async fn end(self) {
        self.stop.cancel();
        self.serving.await.expect("it ends");
    }
}

/// Whether the server closes the connection within two seconds.
async fn is_closed(connection: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(Duration::from_secs(2), connection.read(&mut [0; 512])).await;
    matches!(read, Ok(Ok(0) | Err(_)))
}

async fn get_root(connection: &mut TcpStream) -> String {
    connection.write_all(b"GET / HTTP/1.1\r\nhost: wharf\r\n\r\n").await.expect("sent");
    let mut received = String::new();
    while !received.ends_with("hello") {
        let mut piece = [0; 512];
        let read = connection.read(&mut piece).await.expect("received");
        assert!(read > 0, "closed after {received:?}");
        received.push_str(std::str::from_utf8(&piece[..read]).expect("text"));
    }
    received
}

/// Advances the clock. Nothing is sent or received meanwhile.
pub async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Proxies keep idle connections for up to two minutes. A request on a connection that the server closed would fail.
#[tokio::test]
async fn an_idle_connection_is_kept_longer_than_proxies_keep_it() {
    let server = Server::start(LIMITS).await;
    let mut connection = server.connect().await;
    for _ in 0..2 {
        assert!(get_root(&mut connection).await.starts_with("HTTP/1.1 200"));
        pass(Duration::from_secs(125)).await;
    }
    assert!(get_root(&mut connection).await.starts_with("HTTP/1.1 200"));
    pass(Duration::from_secs(600)).await;
    assert!(is_closed(&mut connection).await, "an idle connection is closed in the end");
    server.end().await;
}

/// Cases: no byte, the first byte of a request, half a head that continues slowly, and the start of HTTP/2.
#[tokio::test]
async fn a_connection_without_a_request_is_closed() {
    let server = Server::start(LIMITS).await;
    for sent in [&b""[..], b"P", b"G", b"GET / HTTP/1.1\r\nhost: wh", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut connection = server.connect().await;
        connection.write_all(sent).await.expect("sent");
        tokio::time::sleep(Duration::from_millis(50)).await;
        pass(Duration::from_secs(20)).await;
        let _ = connection.write_all(if sent.starts_with(b"GET") { b"a" } else { b"" }).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        pass(Duration::from_secs(25)).await;
        // HTTP/2 sends frames before it is closed.
        let mut closed = false;
        for _ in 0..5 {
            closed = closed || is_closed(&mut connection).await;
        }
        assert!(closed, "{:?}", String::from_utf8_lossy(sent));
    }
    server.end().await;
}

/// A client that waits for the server is not closed.
#[tokio::test]
async fn a_client_that_does_not_read_is_closed() {
    let server = Server::start(LIMITS).await;
    let (mut not_reading, mut waiting) = (server.connect().await, server.connect().await);
    not_reading.write_all(b"GET /endless HTTP/1.1\r\nhost: w\r\n\r\n").await.expect("sent");
    waiting.write_all(b"GET /silent HTTP/1.1\r\nhost: w\r\n\r\n").await.expect("sent");
    tokio::time::sleep(Duration::from_millis(300)).await;
    for _ in 0..8 {
        pass(Duration::from_secs(10)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut received = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(10), not_reading.read_to_end(&mut received)).await;
    assert!(ended.is_ok(), "the server closes the connection");
    assert!(waiting.read(&mut [0; 512]).await.expect("the head") > 0);
    assert!(!is_closed(&mut waiting).await, "a client that has read everything stays connected");
    drop(waiting);
    server.end().await;
}

#[tokio::test]
async fn connections_per_address_are_limited() {
    let limits = ConnectionLimits {
        per_address_max: 3,
        trusted_proxies: vec![AddressRange::parse("127.0.0.8/31").expect("a range")],
        ..LIMITS
    };
    let server = Server::start(limits).await;
    let mut first = Vec::new();
    for _ in 0..3 {
        first.push(server.connect_from("127.0.0.2").await);
        get_root(first.last_mut().expect("a connection")).await;
    }
    assert!(is_closed(&mut server.connect_from("127.0.0.2").await).await, "one more than the limit");
    get_root(&mut server.connect_from("127.0.0.3").await).await;
    let mut proxy = Vec::new();
    for _ in 0..10 {
        proxy.push(server.connect_from("127.0.0.9").await);
        get_root(proxy.last_mut().expect("a connection")).await;
    }
    first.pop();
    // The server notices the closed connection after a moment.
    let served = async {
        loop {
            let mut another = server.connect_from("127.0.0.2").await;
            let _ = another.write_all(b"GET / HTTP/1.1\r\nhost: wharf\r\n\r\n").await;
            if another.read(&mut [0; 512]).await.is_ok_and(|read| read > 0) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), served).await.expect("a new connection is served");
    drop((first, proxy));
    server.end().await;
}

/// Idle clients use all connections. New clients are served at once, and a client with a request stays.
#[tokio::test]
async fn connections_without_a_request_are_closed_for_new_ones() {
    let server = Server::start(LIMITS).await;
    let mut busy = server.connect().await;
    busy.write_all(b"GET /silent HTTP/1.1\r\nhost: w\r\n\r\n").await.expect("sent");
    assert!(busy.read(&mut [0; 512]).await.expect("the head") > 0);
    let mut clients = Vec::new();
    for _ in 0..200 {
        let mut connection = server.connect().await;
        let _ = connection.write_all(b"P").await;
        clients.push(connection);
    }
    for _ in 0..20 {
        let mut other = server.connect().await;
        let answer = tokio::time::timeout(Duration::from_secs(5), get_root(&mut other)).await;
        assert!(answer.expect("served in time").starts_with("HTTP/1.1 200"));
    }
    assert!(!is_closed(&mut busy).await);
    drop((busy, clients));
    server.end().await;
}

/// The client has an HTTP/2 window of 0. New requests must not extend its time limit.
#[tokio::test]
async fn a_client_that_reads_nothing_is_closed_despite_new_requests() {
    let server = Server::start(LIMITS).await;
    let mut client = NonReadingClient::connect(server.address).await;
    client.get("/").await;
    for second in (5..=75).step_by(5) {
        tokio::time::sleep(Duration::from_millis(10)).await;
        pass(Duration::from_secs(5)).await;
        if second % 25 == 0 && second <= 50 {
            assert!(!client.is_closed(), "the time limit is not over");
            client.get("/").await;
        }
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(client.is_closed(), "the first answer was not read in time");
    server.end().await;
}

/// Clients that send and cancel requests and read nothing use all connections. New clients are served, and a client
/// that waits for the server stays.
#[tokio::test]
async fn connections_that_read_nothing_are_closed_for_new_ones() {
    let server = Server::start(ConnectionLimits { connections_max: 20, ..LIMITS }).await;
    let mut busy = server.connect().await;
    busy.write_all(b"GET /silent HTTP/1.1\r\nhost: w\r\n\r\n").await.expect("sent");
    assert!(busy.read(&mut [0; 512]).await.expect("the head") > 0);
    let mut clients = Vec::new();
    for _ in 0..19 {
        let mut client = NonReadingClient::connect(server.address).await;
        let first = client.get("/").await;
        client.get("/").await;
        client.reset(first).await;
        clients.push(client);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut other = server.connect().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    pass(Duration::from_secs(6)).await;
    let answer = tokio::time::timeout(Duration::from_secs(5), get_root(&mut other)).await;
    assert!(answer.expect("served in time").starts_with("HTTP/1.1 200"));
    assert!(!is_closed(&mut busy).await);
    drop((busy, clients));
    server.end().await;
}

/// The server must not buffer a large head.
#[tokio::test]
async fn a_large_head_is_refused_before_its_end() {
    let server = Server::start(LIMITS).await;
    let mut connection = server.connect().await;
    let head = format!("GET / HTTP/1.1\r\nhost: w\r\nx: {}", "a".repeat(100 << 10));
    let _ = connection.write_all(head.as_bytes()).await;
    let mut received = [0; 512];
    let read = tokio::time::timeout(Duration::from_secs(5), connection.read(&mut received)).await;
    let received = match read.expect("the answer comes before the end of the head") {
        Ok(read) => String::from_utf8_lossy(&received[..read]).into_owned(),
        // The server closed the connection while the client was sending.
        Err(_) => String::new(),
    };
    assert!(received.is_empty() || received.starts_with("HTTP/1.1 431"), "{received}");
    // A head with large cookies is accepted.
    let mut other = server.connect().await;
    let head = format!("GET / HTTP/1.1\r\nhost: w\r\nx: {}\r\n\r\n", "a".repeat(32 << 10));
    other.write_all(head.as_bytes()).await.expect("sent");
    let mut received = [0; 12];
    other.read_exact(&mut received).await.expect("received");
    assert_eq!(&received, b"HTTP/1.1 200");
    server.end().await;
}
