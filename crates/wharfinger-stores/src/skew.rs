//! How far this machine's clock is from the store's, read off the dates of its answers.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wharfinger_calls::http::from_http_date;
use wharfinger_lifecycle::UnixMs;

/// The dates of answers are whole seconds, and an answer takes its time.
const UNSURE_MS: i64 = 5_000;

#[derive(Debug, Default)]
pub(super) struct Skew {
    ahead_ms: AtomicI64,
}

impl Skew {
    /// How far this machine is ahead; zero for what may be no more than the answer's way here.
    pub(super) fn ahead_ms(&self) -> i64 {
        let ahead = self.ahead_ms.load(Ordering::Relaxed);
        if ahead.abs() <= UNSURE_MS { 0 } else { ahead }
    }

    pub(super) fn store_time(&self) -> SystemTime {
        let ahead = self.ahead_ms();
        let by = Duration::from_millis(ahead.unsigned_abs());
        if ahead > 0 { SystemTime::now() - by } else { SystemTime::now() + by }
    }

    pub(super) fn store_now(&self) -> UnixMs {
        machine_time().saturating_sub(self.ahead_ms())
    }

    pub(super) fn read(&self, date: &str) {
        let Some(there) = from_http_date(date) else { return };
        self.ahead_ms.store(machine_time().saturating_sub(there), Ordering::Relaxed);
    }
}

/// Stores live by real time: a clock that tests move does not reach them.
pub(super) fn machine_time() -> UnixMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
