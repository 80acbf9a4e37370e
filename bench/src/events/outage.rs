//! Five million events while the store is down, and the recovery when it is back. Every event must be stored exactly
//! once. A steady client measures the effect of the recovery.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use harness::proxy::Proxy;
use wharfinger_events::encoding::{Encoding, inflate};
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::{EventsFolder, ObjectKey};
use wharfinger_stores::BlobStore;
use wharfinger_stores::s3::{S3Credentials, S3Options, S3Store};

use super::{Connection, events, request};
use crate::server::Server;
use crate::timing::{Timing, say};

const EVENTS: u64 = 5_000_000;
const PER_REQUEST: u64 = 1_000;
const CONNECTIONS: u64 = 8;
const STEADY: Duration = Duration::from_secs(15);
/// The events in each request of the steady client.
const STEADY_EVENTS: u64 = 100;
const STEADY_PAUSE: Duration = Duration::from_millis(20);

pub(crate) async fn run() {
    let count = std::env::args().nth(2).and_then(|count| count.parse().ok()).unwrap_or(EVENTS);
    let gateway = harness::radosgw::shared();
    let bucket = gateway.create_bucket();
    let proxy =
        Proxy::to(gateway.endpoint().trim_start_matches("http://").trim_end_matches('/')).expect("a proxy");
    let options = S3Options {
        bucket: bucket.clone(),
        prefix: "bench/".into(),
        region: Some(gateway.region().into()),
        endpoint: Some(gateway.endpoint()),
        public_endpoint: None,
        virtual_host: None,
        credentials: Some(S3Credentials {
            access_key: gateway.access_key().into(),
            secret_key: gateway.secret_key().into(),
            session_token: None,
        }),
    };
    let settings = [
        ("WHARFINGER_BLOB_URL", format!("s3://{bucket}/bench")),
        ("AWS_ENDPOINT_URL", format!("http://{}", proxy.addr())),
        ("AWS_ACCESS_KEY_ID", gateway.access_key().to_owned()),
        ("AWS_SECRET_ACCESS_KEY", gateway.secret_key().to_owned()),
        ("AWS_REGION", gateway.region().to_owned()),
    ];
    let server = Arc::new(Server::start_with(None, &settings).await);
    let mut next = steady_client(&server, count, STEADY, "before").await;

    proxy.cut();
    let started = Instant::now();
    let sent = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let (server, sent) = (server.clone(), sent.clone());
            std::thread::spawn(move || {
                let mut connection = Connection::open(&server);
                loop {
                    let first = sent.fetch_add(PER_REQUEST, Ordering::SeqCst);
                    if first >= count {
                        return;
                    }
                    let request = request(&server, &events(first..first + PER_REQUEST));
                    while connection.send(&request) != 202 {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("a client");
    }
    let took = started.elapsed();
    say(format!(
        "{count} events accepted while the store was down: {:.0} events/s (created and sent by the same two cores), at most {} MiB",
        count as f64 / took.as_secs_f64(),
        server.peak_kib() / 1_024
    ));
    server.until_metric("dlq_events_enqueued_total", |events| events >= count as f64).await;
    let waiting = server.metric("dlq_files_current").await;

    proxy.repair().expect("the network");
    let started = Instant::now();
    let is_done = Arc::new(AtomicBool::new(false));
    let recovered = {
        let (server, is_done) = (server.clone(), is_done.clone());
        tokio::spawn(async move {
            server.until_metric("dlq_files_current", |files| files == 0.0).await;
            is_done.store(true, Ordering::SeqCst);
            started.elapsed()
        })
    };
    while !is_done.load(Ordering::SeqCst) {
        next = steady_client(&server, next, STEADY.min(Duration::from_secs(5)), "while recovering").await;
    }
    let recovered = recovered.await.expect("recovered").as_secs_f64();
    say(format!(
        "{waiting} batches recovered in {recovered:.1} s beside a steady client: {:.0} events/s",
        count as f64 / recovered
    ));
    next = steady_client(&server, next, STEADY, "after").await;
    server.until_metric("s3_events_stored_total", |stored| stored >= next as f64).await;
    check(&options, next).await;
}

/// One client that sends a few events at a constant rate. Returns the next id.
async fn steady_client(server: &Arc<Server>, first: u64, time: Duration, when: &str) -> u64 {
    let (server, when) = (server.clone(), when.to_owned());
    let sending = tokio::task::spawn_blocking(move || {
        let mut connection = Connection::open(&server);
        let (started, mut next) = (Instant::now(), first);
        let mut timing = Timing::default();
        while started.elapsed() < time {
            let request = request(&server, &events(next..next + STEADY_EVENTS));
            let sent = Instant::now();
            assert_eq!(connection.send(&request), 202);
            timing.add(sent.elapsed());
            next += STEADY_EVENTS;
            std::thread::sleep(STEADY_PAUSE);
        }
        say(timing.line(&format!("{STEADY_EVENTS} events a request, {when:<16}")));
        next
    });
    sending.await.expect("a client")
}

/// Checks that each id is stored exactly once.
async fn check(options: &S3Options, count: u64) {
    let store = S3Store::connect(options).await.expect("the store");
    let mut seen = vec![0_u8; count as usize];
    let listed: Vec<_> = store.list("RAW/", None).try_collect().await.expect("a listing");
    let objects = listed.len();
    let mut bodies = futures::stream::iter(listed.into_iter().map(|object| {
        let store = &store;
        async move {
            let name = object.key.strip_prefix("RAW/").expect("below it").to_owned();
            let key = ObjectKey::events(EventsFolder::Raw, &name).expect("a key");
            let meta = store.head(&key, None).await.expect("an object");
            let pin = Pin { etag: meta.etag, version_id: meta.version_id };
            let chunks = store.get(&key, &pin, 0, None).await.expect("an object");
            let chunks: Vec<_> = chunks.try_collect().await.expect("its bytes");
            chunks.concat()
        }
    }))
    .buffer_unordered(4);
    while let Some(gz) = bodies.next().await {
        let text = inflate(Encoding::Gzip, &gz, usize::MAX, |_| true).expect("valid gzip");
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let line = std::str::from_utf8(line).expect("text");
            let (_, rest) = line.split_once("\"body\":{\"id\":").expect("an id");
            let id: usize = rest.split(',').next().and_then(|id| id.parse().ok()).expect("an id");
            seen[id] = seen[id].saturating_add(1);
        }
    }
    let missing = seen.iter().filter(|count| **count == 0).count();
    let twice = seen.iter().filter(|count| **count > 1).count();
    say(format!(
        "{objects} objects hold {count} acknowledged events: {missing} missing, {twice} more than once"
    ));
    assert_eq!((missing, twice), (0, 0));
}
