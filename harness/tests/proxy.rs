//! Each fault of the proxy, against an echo server.

mod observe;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use harness::proxy::Proxy;
use observe::{TIMEOUT, becomes_true};

/// Sends all bytes back and records them.
struct Echo {
    address: SocketAddr,
    received: Arc<Mutex<Vec<u8>>>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address");
        let received = Arc::default();
        thread::spawn({
            let received = Arc::clone(&received);
            move || listener.incoming().flatten().for_each(|stream| echo(stream, &received))
        });
        Self { address, received }
    }

    fn received(&self) -> Vec<u8> {
        self.received.lock().expect("not poisoned").clone()
    }
}

fn echo(mut stream: TcpStream, received: &Arc<Mutex<Vec<u8>>>) {
    let received = Arc::clone(received);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            received.lock().expect("not poisoned").extend_from_slice(&buffer[..count]);
            if stream.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
    });
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.addr()).expect("connected");
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    stream
}

/// Sends the bytes and reads as many back. Returns fewer if the connection ends.
fn ask(stream: &mut TcpStream, bytes: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    if stream.write_all(bytes).is_ok() {
        let count = u64::try_from(bytes.len()).expect("a length");
        let _ = stream.take(count).read_to_end(&mut answer);
    }
    answer
}

/// Whether the other side has closed or reset the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn start() -> (Echo, Proxy) {
    let echo = Echo::start();
    let proxy = Proxy::to(echo.address).expect("listening");
    (echo, proxy)
}

#[test]
fn bytes_and_the_end_of_input_are_forwarded_in_both_directions() {
    let (_echo, proxy) = start();
    let mut stream = connect(&proxy);
    let large: Vec<u8> = (0..3_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    let mut reader = stream.try_clone().expect("cloned");
    let answer = thread::spawn(move || {
        let mut answer = Vec::new();
        reader.read_to_end(&mut answer).map(|_| answer)
    });
    stream.write_all(&large).expect("sent");
    stream.shutdown(std::net::Shutdown::Write).expect("ended");
    assert!(answer.join().expect("read").expect("whole") == large);
    assert!(becomes_true(|| proxy.connections() == 0), "an ended connection is still counted");
}

#[test]
fn a_cut_closes_and_refuses_connections_until_the_repair() {
    let (_echo, proxy) = start();
    let mut stream = connect(&proxy);
    assert_eq!(ask(&mut stream, b"one"), b"one");
    assert_eq!(proxy.connections(), 1);
    proxy.cut();
    assert!(is_closed(&mut stream));
    assert_eq!(proxy.connections(), 0);
    let refused = TcpStream::connect(proxy.addr()).expect_err("cut");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    proxy.cut();

    proxy.repair().expect("repaired");
    proxy.repair().expect("repaired twice");
    assert_eq!(ask(&mut connect(&proxy), b"two"), b"two");
    let address = proxy.addr();
    drop(proxy);
    assert!(TcpStream::connect(address).is_err(), "a dropped proxy accepts connections");
}

#[test]
fn an_answer_is_dropped_after_the_request_has_arrived() {
    let (echo, proxy) = start();
    let mut kept = connect(&proxy);
    assert_eq!(ask(&mut kept, b"before "), b"before ");
    proxy.drop_answers(true);
    for stream in [&mut kept, &mut connect(&proxy)] {
        assert_eq!(ask(stream, b"lost "), b"");
        assert!(is_closed(stream));
    }
    assert_eq!(echo.received(), b"before lost lost ");
    // Here the echo simulates a server that asks for the body of a request.
    assert_eq!(ask(&mut connect(&proxy), b"HTTP/1.1 100 Continue"), b"HTTP/1.1 100 Continue");
    proxy.drop_answers(false);
    assert_eq!(ask(&mut connect(&proxy), b"after"), b"after");
}

#[test]
fn a_stalled_connection_forwards_its_bytes_after_the_stall() {
    let (echo, proxy) = start();
    let mut old = connect(&proxy);
    assert_eq!(ask(&mut old, b"old "), b"old ");
    proxy.stall(true);
    let mut new = connect(&proxy);
    for stream in [&mut old, &mut new] {
        stream.write_all(b"held ").expect("sent");
        stream.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
        assert!(stream.read(&mut [0]).is_err(), "a stalled connection answered");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    }
    assert_eq!(echo.received(), b"old ");
    proxy.stall(false);
    for stream in [&mut old, &mut new] {
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).expect("answered");
        assert_eq!(&answer, b"held ");
    }
    proxy.stall(true);
    old.write_all(b"never").expect("sent");
    proxy.cut();
    assert!(is_closed(&mut old), "a stalled connection survived the cut");
}

#[test]
fn each_connection_is_closed_after_the_given_number_of_bytes() {
    let (echo, proxy) = start();
    proxy.cut_after(10);
    for passed in ["1234567890", "12345678901234567890"] {
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, b"123456"), b"123456");
        let _ = stream.write_all(b"7890abcdef");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "the last bytes were answered: {rest:?}");
        assert!(is_closed(&mut stream));
        // The client may see the end before the server has read the last bytes. Wait for them, so that the bytes of the
        // next connection come after them.
        assert!(becomes_true(|| echo.received() == passed.as_bytes()), "{:?}", echo.received());
    }
    proxy.cut_after(None);
    let mut stream = connect(&proxy);
    assert_eq!(ask(&mut stream, b"more than ten bytes"), b"more than ten bytes");
}

#[test]
fn a_new_target_closes_open_connections_and_gets_the_new_ones() {
    let (first, proxy) = start();
    let second = Echo::start();
    let mut old = connect(&proxy);
    assert_eq!(ask(&mut old, b"one"), b"one");
    proxy.point_at(second.address).expect("pointed");
    assert!(is_closed(&mut old));
    assert_eq!(ask(&mut connect(&proxy), b"two"), b"two");
    assert_eq!((first.received(), second.received()), (b"one".to_vec(), b"two".to_vec()));

    proxy.cut();
    proxy.point_at(first.address).expect("pointed");
    assert!(TcpStream::connect(proxy.addr()).is_err(), "a new target ended the cut");
    proxy.repair().expect("repaired");
    assert_eq!(ask(&mut connect(&proxy), b" three"), b" three");
    assert_eq!(first.received(), b"one three");
}

#[test]
fn a_connection_to_a_missing_server_is_closed() {
    let proxy = Proxy::to("127.0.0.1:1").expect("listening");
    assert!(is_closed(&mut connect(&proxy)));
}
