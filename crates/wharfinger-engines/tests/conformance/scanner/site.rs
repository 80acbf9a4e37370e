//! Test files as streams, and scanners with short timeouts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use harness::clamd::{self, Options};
use wharfinger_engines::scanner::{Chunks, Clamd, ScanError, Scanner, Timeouts, Verdict};

pub(super) async fn shared() -> &'static clamd::Clamd {
    tokio::task::spawn_blocking(clamd::shared).await.expect("a clamd")
}

pub(super) async fn started(options: Options) -> clamd::Clamd {
    let starting =
        tokio::task::spawn_blocking(move || clamd::Clamd::start(options).expect("a clamd for this test"));
    starting.await.expect("started")
}

/// Scanners for both addresses of one clamd: TCP and Unix socket.
pub(super) fn both(clamd: &clamd::Clamd) -> [Scanner; 2] {
    [clamd.tcp_url(), clamd.unix_url()].map(|url| Scanner::clamd(&url).expect("an address"))
}

/// A scanner with short timeouts that are still long enough for a working clamd.
pub(super) fn with_short_timeouts(url: &str) -> Scanner {
    let short = Duration::from_millis(700);
    let timeouts = Timeouts { connect: Duration::from_secs(5), piece: short, verdict: short, reply: short };
    Scanner::Clamd(Clamd::new(url).expect("an address").with_timeouts(timeouts))
}

pub(super) fn file(bytes: impl Into<Bytes>) -> Chunks {
    stream::iter([Ok(bytes.into())]).boxed()
}

/// The bytes as a stream of small and empty pieces.
pub(super) fn pieces(bytes: &[u8], size: usize) -> Chunks {
    let bytes = Bytes::copy_from_slice(bytes);
    let starts = (0..bytes.len()).step_by(size);
    let pieces = starts
        .flat_map(move |start| [Ok(Bytes::new()), Ok(bytes.slice(start..bytes.len().min(start + size)))]);
    stream::iter(pieces.collect::<Vec<_>>()).boxed()
}

/// An endless stream of zeros in pieces of 100,000 bytes, and the number of pieces that were read.
pub(super) fn endless() -> (Chunks, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = taken.clone();
    let zeros = Bytes::from(vec![0; 100_000]);
    let source = stream::repeat_with(move || {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(zeros.clone())
    });
    (source.boxed(), taken)
}

pub(super) fn infected(signature: &str) -> Result<Verdict, ScanError> {
    Ok(Verdict::Infected { signature: signature.to_owned() })
}

#[track_caller]
pub(super) fn assert_unavailable<T: std::fmt::Debug>(outcome: Result<T, ScanError>) -> String {
    match outcome {
        Err(error @ ScanError::Unavailable(_)) => {
            assert!(error.is_retryable());
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}
