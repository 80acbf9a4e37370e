//! Outages: a clamd that is stopped, killed, paused or disconnected, and files that cannot be read. There is never a
//! verdict, and always a retryable error in limited time.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use harness::clamd::{Clamd, EICAR_SIGNATURE, Options, eicar};
use harness::proxy::Proxy;
use tokio::sync::oneshot;
use wharfinger_engines::scanner::{Chunks, Scanner, Verdict};

use super::site::{assert_unavailable, both, endless, file, infected, shared, started, with_short_timeouts};

/// Shorter than the timeouts of the scanner, so that a timeout does not pass the test.
const EVENTUALLY: Duration = Duration::from_secs(30);

async fn with_fault(
    mut clamd: Clamd,
    fault: impl FnOnce(&mut Clamd) -> Result<(), harness::Error> + Send + 'static,
) -> Clamd {
    let with_fault = tokio::task::spawn_blocking(move || {
        fault(&mut clamd).expect("the fault is applied");
        clamd
    });
    with_fault.await.expect("the fault is applied")
}

#[tokio::test]
async fn a_stopped_clamd_is_unavailable_until_it_runs_again() {
    let mut clamd = started(Options::default()).await;
    let scanners = both(&clamd);
    for fault in [Clamd::stop, Clamd::kill] {
        clamd = with_fault(clamd, fault).await;
        for scanner in &scanners {
            let why = assert_unavailable(scanner.scan(file("harmless")).await);
            assert!(why.contains("clamd at "), "{why}");
            assert_unavailable(scanner.scan(file(eicar())).await);
            assert_unavailable(scanner.check().await);
        }
        clamd = with_fault(clamd, Clamd::start_again).await;
        for scanner in &scanners {
            assert_eq!(scanner.scan(file("harmless")).await, Ok(Verdict::Clean));
            assert_eq!(scanner.scan(file(eicar())).await, infected(EICAR_SIGNATURE));
        }
    }
}

/// A stream that never ends. It sends more bytes than clamd's buffers hold, and then signals that they were sent.
fn unfinished() -> (Chunks, oneshot::Receiver<()>) {
    let (signal, sent) = oneshot::channel();
    let bytes = stream::iter((0..10).map(|_| Ok(Bytes::from(vec![b'.'; 70_000]))));
    let hold = stream::once(async move {
        signal.send(()).expect("the test waits for it");
        std::future::pending().await
    });
    (bytes.chain(hold).boxed(), sent)
}

/// The scanner detects it immediately, although it has nothing to send at that time.
#[tokio::test]
async fn a_clamd_that_is_killed_in_the_middle_of_a_file_gives_no_verdict() {
    let mut clamd = started(Options::default()).await;
    for scanner in both(&clamd) {
        let (source, sent) = unfinished();
        let scan = tokio::spawn(async move { scanner.scan(source).await });
        sent.await.expect("sent");
        clamd = with_fault(clamd, Clamd::kill).await;
        let outcome = tokio::time::timeout(EVENTUALLY, scan).await.expect("noticed");
        assert_unavailable(outcome.expect("scanned"));
        clamd = with_fault(clamd, Clamd::start_again).await;
    }
}

#[tokio::test]
async fn a_paused_clamd_causes_a_timeout() {
    let mut clamd = started(Options { stream_bytes_max: 1 << 30, ..Options::default() }).await;
    let scanners = [clamd.tcp_url(), clamd.unix_url()].map(|url| with_short_timeouts(&url));
    clamd = with_fault(clamd, Clamd::pause).await;
    for scanner in &scanners {
        let why = assert_unavailable(scanner.scan(file("harmless")).await);
        assert!(why.contains("no verdict in time"), "{why}");
        let why = assert_unavailable(scanner.scan(endless().0).await);
        assert!(why.contains("did not accept the file in time"), "{why}");
        let why = assert_unavailable(scanner.check().await);
        assert!(why.contains("no answer in time"), "{why}");
    }
    drop(with_fault(clamd, Clamd::resume).await);
}

#[tokio::test]
async fn a_cut_or_stalled_connection_gives_no_verdict() {
    let clamd = shared().await;
    let proxy = Proxy::to(format!("127.0.0.1:{}", clamd.port())).expect("a proxy");
    let url = format!("tcp://{}", proxy.addr());
    let scanner = Scanner::clamd(&url).expect("an address");
    let bytes = vec![b'.'; 300_000];
    assert_eq!(scanner.scan(file(bytes.clone())).await, Ok(Verdict::Clean));

    // The command, five pieces with their lengths, and the end marker. After `all` bytes clamd has the whole file.
    let all = 10 + 5 * 4 + 300_000 + 4;
    for bytes_until in [1, 9, 10, 12, 14, 70_000, all - 4, all - 1, all] {
        proxy.cut_after(bytes_until);
        assert_unavailable(scanner.scan(file(bytes.clone())).await);
    }
    proxy.repair().expect("repaired");
    proxy.drop_answers(true);
    assert_unavailable(scanner.scan(file(bytes.clone())).await);
    assert_unavailable(scanner.scan(file(eicar())).await);
    assert_unavailable(scanner.check().await);
    proxy.repair().expect("repaired");
    proxy.stall(true);
    let why = assert_unavailable(with_short_timeouts(&url).scan(file(bytes.clone())).await);
    assert!(why.contains("in time"), "{why}");
    assert_unavailable(with_short_timeouts(&url).check().await);
    proxy.cut();
    assert_unavailable(scanner.scan(file(bytes.clone())).await);
    proxy.repair().expect("repaired");
    assert_eq!(scanner.scan(file(bytes)).await, Ok(Verdict::Clean));
    assert_eq!(scanner.scan(file(eicar())).await, infected(EICAR_SIGNATURE));
}

/// Also if the part before the error is infected.
#[tokio::test]
async fn a_read_error_gives_no_verdict() {
    for scanner in both(shared().await) {
        for error in ["gone".to_owned(), "the object was changed".to_owned()] {
            let broken = stream::iter([Ok(Bytes::from(eicar())), Err(error.clone())]).boxed();
            let why = assert_unavailable(scanner.scan(broken).await);
            assert!(why.contains(&error.to_string()), "{why}");
        }
    }
}
