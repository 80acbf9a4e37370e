//! The cost of hostile clients and files: memory before authentication, service beside idle connections, disk space of
//! the worst small document, and one tenant's text beside hostile PDFs of another.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::Value;
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use crate::neighbours::put;
use crate::server::{Server, base, client};
use crate::timing::{Timing, say};
use crate::uploads::call;

const HTTP2_CONNECTIONS: usize = 200;
const STREAMS: usize = 64;
const IDLE: usize = 10_000;

pub(crate) async fn run() {
    http2_without_a_token().await;
    unread_answers().await;
    idle_connections().await;
    connections_that_do_not_read().await;
    small_document().await;
    hostile_pdfs().await;
}

/// Each stream announces a body, sends 64 KiB of it and waits.
async fn http2_without_a_token() {
    let server = Server::start(None).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = server.resident_kib();
    let mut attackers = Vec::new();
    for _ in 0..HTTP2_CONNECTIONS {
        let http = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().expect("a client");
        for _ in 0..STREAMS {
            let (http, url) = (http.clone(), format!("{}/api/v2/batches", server.url));
            attackers.push(tokio::spawn(async move {
                let first = futures::stream::once(async { Ok::<_, std::io::Error>(vec![b'x'; 64 << 10]) });
                let body = futures::StreamExt::chain(first, futures::stream::pending());
                let sent = http.post(url).body(reqwest::Body::wrap_stream(body)).send().await;
                drop(sent);
                futures::future::pending::<()>().await;
            }));
        }
    }
    let mut most = 0;
    let mut timing = Timing::default();
    let http = client();
    let until = Instant::now() + Duration::from_secs(15);
    while Instant::now() < until {
        most = most.max(server.resident_kib());
        let started = Instant::now();
        http.get(format!("{}/healthz", server.url)).send().await.expect("an answer");
        timing.add(started.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    attackers.iter().for_each(|attacker| attacker.abort());
    say(format!(
        "{HTTP2_CONNECTIONS} connections of HTTP/2 without a token, {STREAMS} bodies each: {} MiB more than before ({} MiB)",
        most.saturating_sub(before) / 1_024,
        before / 1_024
    ));
    say(timing.line("/healthz meanwhile"));
}

/// Each stream requests the largest answer that needs no token, with a flow-control window of 0.
async fn unread_answers() {
    let server = Server::start(None).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = server.resident_kib();
    let mut held = Vec::new();
    for _ in 0..HTTP2_CONNECTIONS {
        let http = reqwest::Client::builder()
            .no_proxy()
            .http2_prior_knowledge()
            .http2_initial_stream_window_size(0)
            .build()
            .expect("a client");
        let asked = (0..STREAMS).map(|_| http.get(format!("{}/openapi.json", server.url)).send());
        held.extend(futures::future::join_all(asked).await);
    }
    let most = server.resident_kib();
    let answered = held.iter().filter(|answer| answer.is_ok()).count();
    say(format!(
        "{answered} unread answers of HTTP/2, without a token: {} MiB more than before ({} MiB)",
        most.saturating_sub(before) / 1_024,
        before / 1_024
    ));
}

/// An HTTP/2 preface with a window of 0, and `GET /healthz`.
const REQUEST_WITHOUT_WINDOW: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
    \x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\
    \x00\x00\x13\x01\x05\x00\x00\x00\x01\x82\x86\x44\x08/healthz\x41\x05wharf";

/// All connection slots are in use by clients that send a request and read nothing.
async fn connections_that_do_not_read() {
    let server = Server::start(None).await;
    let held = open_connections(&server, 100, REQUEST_WITHOUT_WINDOW).await;
    // The server treats them as slow clients until then.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let what = format!("{} connections of 100 addresses that read no answer", held.len());
    new_clients(&server, &what).await;
}

/// Opens the connections from this number of addresses, and sends `first` on each.
async fn open_connections(server: &Server, addresses: usize, first: &[u8]) -> Vec<TcpStream> {
    let target = server.url.trim_start_matches("http://").parse().expect("an address");
    let mut held: Vec<TcpStream> = Vec::new();
    for n in 0..IDLE {
        let socket = TcpSocket::new_v4().expect("a socket");
        let from = format!("127.0.1.{}:0", 2 + n % addresses);
        socket.bind(from.parse().expect("an address")).expect("bound");
        if let Ok(Ok(mut stream)) = tokio::time::timeout(Duration::from_secs(5), socket.connect(target)).await
        {
            let _ = stream.write_all(first).await;
            held.push(stream);
        }
    }
    held
}

/// The time of new clients during the attack.
async fn new_clients(server: &Server, what: &str) {
    let (mut timing, mut failed) = (Timing::default(), 0);
    for _ in 0..100 {
        let started = Instant::now();
        let asked =
            client().get(format!("{}/healthz", server.url)).timeout(Duration::from_secs(30)).send().await;
        failed += usize::from(!asked.is_ok_and(|answer| answer.status() == 200));
        timing.add(started.elapsed());
    }
    say(format!("{what}; 100 new clients: {failed} failed; {} MiB", server.resident_kib() / 1_024));
    say(timing.line("/healthz"));
}

async fn idle_connections() {
    for (addresses, what) in [(1, "one address"), (100, "100 addresses")] {
        let server = Server::start(None).await;
        let started = Instant::now();
        let held = open_connections(&server, addresses, b"P").await;
        let took = started.elapsed().as_secs_f64();
        let what = format!("{} connections of one byte from {what}, opened in {took:.1} s", held.len());
        new_clients(&server, &what).await;
    }
}

/// An EPUB whose spine names one chapter a thousand times. The chapter is half a megabyte of one word.
const BOOK: &str = r#"
import sys, zipfile
book = zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED)
book.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
book.writestr("META-INF/container.xml", '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles><rootfile full-path="p" media-type="application/oebps-package+xml"/></rootfiles></container>')
items = "".join(f'<item id="c{n}" href="c{n}" media-type="application/xhtml+xml"/>' for n in range(1))
book.writestr("p", f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest><spine>' + '<itemref idref="c0"/>' * 1000 + '</spine></package>')
book.writestr("c0", '<html xmlns="http://www.w3.org/1999/xhtml"><body><p>' + "word " * 110000 + '</p></body></html>')
book.close()
"#;

async fn small_document() {
    let settings = [("PIPELINE_STAGES", "scan,extract,chunk,embed".to_owned())];
    let server = Server::start_with(None, &settings).await;
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    let file = folder.path().join("b.epub");
    assert!(Command::new("python3").args(["-c", BOOK]).arg(&file).status().expect("python3 runs").success());
    let data = server.blob_dir().parent().expect("the data dir").to_owned();
    let size = std::fs::metadata(&file).expect("the book").len();
    checkpoint(&data).await;
    let before = used(&data);
    put(&server, &server.token, &file);
    let ended = until_final(&server, &server.token, "b.epub").await;
    checkpoint(&data).await;
    say(format!(
        "a book of {size} bytes: {} (text truncated: {}), {} KiB more in the data dir",
        ended["status"],
        ended["textTruncated"],
        used(&data).saturating_sub(before) / 1_024
    ));
}

async fn hostile_pdfs() {
    let settings = [("PIPELINE_STAGES", "scan,extract,chunk,embed".to_owned())];
    let endless = harness::documents::folder().join("endless.pdf");
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    let text = folder.path().join("note.txt");
    std::fs::write(&text, "Forty crates of coffee.").expect("a file");
    for hostile in [0, 8] {
        let server = Server::start_with(None, &settings).await;
        let tokens = server.tokens(2, 1);
        for n in 0..hostile {
            let copy = folder.path().join(format!("{n}.pdf"));
            std::fs::copy(&endless, &copy).expect("a copy");
            put(&server, &tokens[0], &copy);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let started = Instant::now();
        put(&server, &tokens[1], &text);
        until_final(&server, &tokens[1], "note.txt").await;
        say(format!(
            "one text beside {hostile} hostile PDFs of another tenant: {:.2} s",
            started.elapsed().as_secs_f64()
        ));
    }
}

/// Moves the write-ahead log into the database file, so that sizes can be compared.
async fn checkpoint(data: &Path) {
    let options = SqliteConnectOptions::new().filename(data.join("wharfinger.db"));
    let mut connection = options.connect().await.expect("a connection");
    sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await.expect("done");
}

/// The bytes of all files below a folder.
fn used(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => used(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Waits until the file with this name is ready or failed, and returns it.
async fn until_final(server: &Server, token: &str, name: &str) -> Value {
    let http = client();
    loop {
        let (list, _) = call(&http, token, Method::GET, format!("{}/api/v2/files", server.url), None).await;
        let files = list["files"].as_array().expect("a list");
        let file = files.iter().find(|file| file["fileName"] == name);
        if let Some(file) =
            file.filter(|file| ["ready", "failed"].iter().any(|status| file["status"] == *status))
        {
            let url = format!("{}/api/v2/files/{}", server.url, file["fileId"].as_str().expect("an id"));
            return call(&http, token, Method::GET, url, None).await.0;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
