//! Verdicts of a working clamd, and files over its limits, through TCP and the Unix socket.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use harness::clamd::{
    EICAR_SIGNATURE, KNOWN_FILE, KNOWN_FILE_SIGNATURE, Options, PATTERN, PATTERN_SIGNATURE, STREAM_BYTES_MAX,
    eicar,
};
use wharfinger_engines::scanner::{ScanError, Verdict};

use super::site::{both, endless, file, infected, pieces, shared, started};

/// The length of the pieces that are sent to clamd.
const PIECE: usize = 64 * 1024;
const MAX: usize = STREAM_BYTES_MAX as usize;

#[tokio::test]
async fn infected_files_are_distinguished_from_clean_files() {
    for scanner in both(shared().await) {
        let version = scanner.check().await.expect("clamd answers");
        assert!(version.starts_with("ClamAV "), "{version}");
        assert_eq!(scanner.scan(file("")).await, Ok(Verdict::Clean));
        assert_eq!(scanner.scan(stream::empty().boxed()).await, Ok(Verdict::Clean));
        assert_eq!(scanner.scan(file("harmless")).await, Ok(Verdict::Clean));
        assert_eq!(scanner.scan(file(eicar())).await, infected(EICAR_SIGNATURE));
        assert_eq!(scanner.scan(file(KNOWN_FILE)).await, infected(KNOWN_FILE_SIGNATURE));
        assert_eq!(scanner.scan(file([KNOWN_FILE, b"\n"].concat())).await, Ok(Verdict::Clean));
    }
}

/// An empty piece ends the stream in clamd's protocol, so an empty piece of the source must not be sent.
#[tokio::test]
async fn a_file_in_any_pieces_is_scanned_completely() {
    for scanner in both(shared().await) {
        for at in [PIECE - 20, 2 * PIECE - PATTERN.len(), 2 * PIECE, 3 * PIECE + 1] {
            let bytes = [&vec![b'.'; at], PATTERN, b"and so on"].concat();
            for size in [1, 997, PIECE - 1, PIECE, PIECE + 1, bytes.len()] {
                let verdict = scanner.scan(pieces(&bytes, size)).await;
                assert_eq!(verdict, infected(PATTERN_SIGNATURE), "{at} in pieces of {size}");
            }
            let first = scanner.scan(pieces(&bytes[..at + PATTERN.len() - 1], 997)).await;
            assert_eq!(first, Ok(Verdict::Clean), "{at}");
        }
        let known = scanner.scan(pieces(KNOWN_FILE, 1)).await;
        assert_eq!(known, infected(KNOWN_FILE_SIGNATURE));
    }
}

#[tokio::test]
async fn a_large_file_is_scanned_completely() {
    let clamd = started(Options { stream_bytes_max: 40_000_000, ..Options::default() }).await;
    for scanner in both(&clamd) {
        let dots = Bytes::from(vec![b'.'; 1_000_003]);
        let before = stream::iter((0..30).map(move |_| Ok(dots.clone())));
        let found = scanner.scan(before.clone().chain(file(PATTERN)).boxed()).await;
        assert_eq!(found, infected(PATTERN_SIGNATURE));
        assert_eq!(scanner.scan(before.boxed()).await, Ok(Verdict::Clean));
    }
}

/// clamd answers and closes the connection while the scanner still sends. The answer must not be lost.
#[tokio::test]
async fn a_file_over_the_limit_of_clamd_is_too_large() {
    for scanner in both(shared().await) {
        assert_eq!(scanner.scan(file(vec![b'.'; MAX])).await, Ok(Verdict::Clean));
        let too_large = |outcome| match outcome {
            Err(error @ ScanError::TooLarge(_)) => {
                assert!(!error.is_retryable());
                let text = error.to_string();
                assert!(text.contains("size limit exceeded") && text.contains("StreamMaxLength"), "{text}");
            }
            other => panic!("{other:?}"),
        };
        too_large(scanner.scan(file(vec![b'.'; MAX + 1])).await);
        // The first write, the last write or no write can fail.
        for size in [MAX + PIECE, 2 * MAX, 5 * MAX, 20 * MAX] {
            for _ in 0..5 {
                too_large(scanner.scan(file(vec![b'.'; size])).await);
            }
        }
        let (source, taken) = endless();
        too_large(scanner.scan(source).await);
        let taken = taken.load(Ordering::SeqCst);
        assert!(taken < 1_000, "it continued to send: {taken} pieces");
    }
}

/// The module documentation of the scanner explains this to operators.
#[tokio::test]
async fn a_file_that_clamd_skips_is_reported_only_with_alert_exceeds_max() {
    let bytes = [&vec![b'.'; 200_000], PATTERN].concat();
    let without_alert = started(Options { settings: &["MaxFileSize 100K"], ..Options::default() }).await;
    let with_alert: &[&str] = &["MaxFileSize 100K", "AlertExceedsMax yes"];
    let with_alert = started(Options { settings: with_alert, ..Options::default() }).await;
    for scanner in both(&without_alert) {
        assert_eq!(scanner.scan(file(bytes.clone())).await, Ok(Verdict::Clean));
    }
    for scanner in both(&with_alert) {
        let verdict = scanner.scan(file(bytes.clone())).await;
        let Ok(Verdict::Infected { signature }) = verdict else { panic!("{verdict:?}") };
        assert!(signature.starts_with("Heuristics.Limits.Exceeded"), "{signature}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_scans_each_get_their_own_verdict() {
    let settings: &[&str] = &["MaxThreads 2", "MaxQueue 4"];
    let clamd = started(Options { settings, ..Options::default() }).await;
    let scanners = both(&clamd);
    let scans = (0..60).map(|n| {
        let scanner = scanners[n % 2].clone();
        let end = if n % 3 == 0 { PATTERN } else { b"harmless" };
        let bytes = [&vec![b'.'; n * 10_000], end].concat();
        tokio::spawn(async move { (n, scanner.scan(pieces(&bytes, 8_000)).await) })
    });
    for scan in scans.collect::<Vec<_>>() {
        let (n, verdict) = scan.await.expect("scanned");
        assert_eq!(verdict, if n % 3 == 0 { infected(PATTERN_SIGNATURE) } else { Ok(Verdict::Clean) }, "{n}");
    }
}
