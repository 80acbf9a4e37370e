//! A clamd that is away, killed, standing still or cut off, and sources that fail: never a verdict, and in bounded
//! time an error that says to try again.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use harness::clamd::{Clamd, EICAR_SIGNATURE, Options, eicar};
use harness::proxy::Proxy;
use tokio::sync::oneshot;
use wharfinger_engines::scanner::{Chunks, Scanner, Verdict};

use super::site::{assert_unavailable, both, endless, file, impatient, infected, shared, started};

/// Sooner than the patience of the scanner, which would notice it as well.
const EVENTUALLY: Duration = Duration::from_secs(30);

async fn breaking(
    mut clamd: Clamd,
    fault: impl FnOnce(&mut Clamd) -> Result<(), harness::Error> + Send + 'static,
) -> Clamd {
    let breaking = tokio::task::spawn_blocking(move || {
        fault(&mut clamd).expect("broken");
        clamd
    });
    breaking.await.expect("broken")
}

#[tokio::test]
async fn a_clamd_that_is_away_is_unavailable_until_it_is_back() {
    let mut clamd = started(Options::default()).await;
    let scanners = both(&clamd);
    for fault in [Clamd::stop, Clamd::kill] {
        clamd = breaking(clamd, fault).await;
        for scanner in &scanners {
            let why = assert_unavailable(scanner.scan(file("harmless")).await);
            assert!(why.contains("clamd at "), "{why}");
            assert_unavailable(scanner.scan(file(eicar())).await);
            assert_unavailable(scanner.check().await);
        }
        clamd = breaking(clamd, Clamd::start_again).await;
        for scanner in &scanners {
            assert_eq!(scanner.scan(file("harmless")).await, Ok(Verdict::Clean));
            assert_eq!(scanner.scan(file(eicar())).await, infected(EICAR_SIGNATURE));
        }
    }
}

/// Harmless bytes that are more than clamd's buffers take, a sign that clamd was given them, and no end.
fn unfinished() -> (Chunks, oneshot::Receiver<()>) {
    let (sign, given) = oneshot::channel();
    let bytes = stream::iter((0..10).map(|_| Ok(Bytes::from(vec![b'.'; 70_000]))));
    let hold = stream::once(async move {
        sign.send(()).expect("somebody waits");
        std::future::pending().await
    });
    (bytes.chain(hold).boxed(), given)
}

/// Noticed at once, although the source has nothing to send at that time.
#[tokio::test]
async fn a_clamd_that_is_killed_in_the_middle_of_a_file_has_not_scanned_it() {
    let mut clamd = started(Options::default()).await;
    for scanner in both(&clamd) {
        let (source, given) = unfinished();
        let scan = tokio::spawn(async move { scanner.scan(source).await });
        given.await.expect("given");
        clamd = breaking(clamd, Clamd::kill).await;
        let outcome = tokio::time::timeout(EVENTUALLY, scan).await.expect("noticed");
        assert_unavailable(outcome.expect("scanned"));
        clamd = breaking(clamd, Clamd::start_again).await;
    }
}

#[tokio::test]
async fn a_clamd_that_stands_still_is_given_up_in_time() {
    let mut clamd = started(Options { stream_bytes_max: 1 << 30, ..Options::default() }).await;
    let scanners = [clamd.tcp_url(), clamd.unix_url()].map(|url| impatient(&url));
    clamd = breaking(clamd, Clamd::pause).await;
    for scanner in &scanners {
        let why = assert_unavailable(scanner.scan(file("harmless")).await);
        assert!(why.contains("no verdict in time"), "{why}");
        let why = assert_unavailable(scanner.scan(endless().0).await);
        assert!(why.contains("does not take the file in time"), "{why}");
        let why = assert_unavailable(scanner.check().await);
        assert!(why.contains("no answer in time"), "{why}");
    }
    drop(breaking(clamd, Clamd::resume).await);
}

#[tokio::test]
async fn a_line_that_is_cut_or_stalls_brings_no_verdict() {
    let clamd = shared().await;
    let proxy = Proxy::to(format!("127.0.0.1:{}", clamd.port())).expect("a proxy");
    let url = format!("tcp://{}", proxy.addr());
    let scanner = Scanner::clamd(&url).expect("an address");
    let bytes = vec![b'.'; 300_000];
    assert_eq!(scanner.scan(file(bytes.clone())).await, Ok(Verdict::Clean));

    // The command, five pieces with their lengths, and the end: at the last of them clamd has everything.
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
    let why = assert_unavailable(impatient(&url).scan(file(bytes.clone())).await);
    assert!(why.contains("in time"), "{why}");
    assert_unavailable(impatient(&url).check().await);
    proxy.cut();
    assert_unavailable(scanner.scan(file(bytes.clone())).await);
    proxy.repair().expect("repaired");
    assert_eq!(scanner.scan(file(bytes)).await, Ok(Verdict::Clean));
    assert_eq!(scanner.scan(file(eicar())).await, infected(EICAR_SIGNATURE));
}

/// Half of a file is not the file, even where that half is infected.
#[tokio::test]
async fn a_source_that_fails_brings_no_verdict() {
    for scanner in both(shared().await) {
        for error in ["gone".to_owned(), "the object was changed".to_owned()] {
            let broken = stream::iter([Ok(Bytes::from(eicar())), Err(error.clone())]).boxed();
            let why = assert_unavailable(scanner.scan(broken).await);
            assert!(why.contains(&error.to_string()), "{why}");
        }
    }
}
