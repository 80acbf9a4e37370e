//! Events a second and processor time for a million events, by ack mode and events in a request. Beside it a bare loop
//! of writes with `fdatasync`, and a bare loop of gzip over the same events.

pub(crate) mod outage;
pub(crate) mod spool;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use wharfinger_events::pack::Packer;

use crate::server::{Server, base};
use crate::timing::say;

const RUN: Duration = Duration::from_secs(6);
const CONNECTIONS: usize = 32;

/// About 255 bytes, similar to the events in published benchmarks.
pub(crate) fn event(id: u64) -> String {
    format!(
        "{{\"id\":{id},\"type\":\"page.viewed\",\"at\":\"2026-11-15T10:{:02}:{:02}.{:03}Z\",\"session\":\"{:016x}\",\
         \"url\":\"https://shop.example.com/products/{}?ref=newsletter\",\"agent\":\"Mozilla/5.0 (X11; Linux x86_64)\",\
         \"user\":\"user-{}\",\"amount\":{}.{:02},\"tags\":[\"web\",\"eu\"]}}\n",
        id / 60 % 60,
        id % 60,
        id % 1_000,
        id.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        id.wrapping_mul(2_654_435_761) % 50_000,
        id.wrapping_mul(40_503) % 100_000,
        id % 500,
        id % 100,
    )
}

pub(crate) fn events(ids: std::ops::Range<u64>) -> String {
    ids.map(event).collect()
}

pub(crate) fn request(server: &Server, body: &str) -> Vec<u8> {
    let head = format!(
        "POST /api/v2/events HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {}\r\ncontent-type: \
         application/x-ndjson\r\ncontent-length: {}\r\n\r\n",
        server.token,
        body.len()
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

/// One persistent connection. `send` returns the status.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) fn open(server: &Server) -> Connection {
        let stream = TcpStream::connect(server.url.trim_start_matches("http://")).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        Connection(BufReader::new(stream))
    }

    pub(crate) fn send(&mut self, request: &[u8]) -> u16 {
        self.0.get_mut().write_all(request).expect("sent");
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a status");
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let mut length = 0;
        loop {
            line.clear();
            self.0.read_line(&mut line).expect("a header");
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        self.0.by_ref().take(length).read_to_end(&mut Vec::new()).expect("a body");
        status
    }
}

pub(crate) async fn run() {
    limits();
    for ack in ["memory", "disk", "stored"] {
        for per_request in [1_u64, 100, 1_000] {
            measure(ack, per_request).await;
        }
    }
}

fn limits() {
    let body = events(0..100_000);
    say(format!("an event has {} bytes on average", body.len() / 100_000));
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    for per_write in [1, 100, 1_000] {
        let block = events(0..per_write);
        let mut file = std::fs::File::create(folder.path().join("bare")).expect("a file");
        let started = Instant::now();
        let mut writes = 0_u64;
        while started.elapsed() < RUN / 3 {
            file.write_all(block.as_bytes()).and_then(|()| file.sync_data()).expect("written");
            writes += 1;
        }
        let seconds = started.elapsed().as_secs_f64();
        say(format!(
            "bare write and fdatasync, {per_write:>4} events each: {:>8.0} events/s, {:>6.0} syncs/s",
            (writes * per_write) as f64 / seconds,
            writes as f64 / seconds
        ));
    }
    let (mut packer, started, mut packed, mut out) = (Packer::default(), Instant::now(), 0_u64, 0);
    while started.elapsed() < RUN / 3 {
        out = packer.pack(body.as_bytes()).len();
        packed += 100_000;
    }
    let seconds = started.elapsed().as_secs_f64();
    say(format!(
        "bare gzip on one core: {:>8.0} events/s, {:.2} CPU-s per million, to {:.3} of the size",
        packed as f64 / seconds,
        seconds * 1e6 / packed as f64,
        out as f64 / body.len() as f64
    ));
}

async fn measure(ack: &'static str, per_request: u64) {
    let server = Server::start_with(None, &[("INGEST_ACK", ack.to_owned())]).await;
    let body = events(0..per_request);
    let request = Arc::new(request(&server, &body));
    let (stop, accepted, waited) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let cpu_before = server.cpu_seconds();
    let started = Instant::now();
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let (request, stop, accepted, waited) =
                (request.clone(), stop.clone(), accepted.clone(), waited.clone());
            let mut connection = Connection::open(&server);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    match connection.send(&request) {
                        202 => drop(accepted.fetch_add(per_request, Ordering::Relaxed)),
                        429 => {
                            waited.fetch_add(1, Ordering::Relaxed);
                            std::thread::sleep(Duration::from_millis(20));
                        }
                        other => panic!("answered {other}"),
                    }
                }
            })
        })
        .collect();
    std::thread::sleep(RUN);
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().expect("a client");
    }
    let seconds = started.elapsed().as_secs_f64();
    let accepted = accepted.load(Ordering::Relaxed);
    let until_stored =
        server.until_metric("s3_events_stored_total", |stored| stored >= accepted as f64).await;
    let cpu = server.cpu_seconds() - cpu_before;
    say(format!(
        "{ack:<6} {per_request:>4} events a request: {:>8.0} events/s, {:>6.2} CPU-s per million, {} times asked to wait, at \
         most {} MiB, all stored {:.1} s later",
        accepted as f64 / seconds,
        cpu * 1e6 / accepted as f64,
        waited.load(Ordering::Relaxed),
        server.peak_kib() / 1_024,
        until_stored.as_secs_f64(),
    ));
}
