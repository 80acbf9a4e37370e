//! The difference between this machine's clock and the store's, from the `Date` headers of the store's answers.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wharfinger_calls::http::from_http_date;
use wharfinger_lifecycle::UnixMs;

/// A smaller difference can come from network delay, and from dates in whole seconds.
const TOLERANCE_MS: i64 = 5_000;

#[derive(Debug, Default)]
pub(super) struct Skew {
    ahead_ms: AtomicI64,
}

impl Skew {
    /// How far this machine's clock is ahead. Zero if the difference is within the tolerance.
    pub(super) fn ahead_ms(&self) -> i64 {
        let ahead = self.ahead_ms.load(Ordering::Relaxed);
        if ahead.abs() <= TOLERANCE_MS { 0 } else { ahead }
    }

    pub(super) fn store_time(&self) -> SystemTime {
        let ahead = self.ahead_ms();
        let by = Duration::from_millis(ahead.unsigned_abs());
        if ahead > 0 { SystemTime::now() - by } else { SystemTime::now() + by }
    }

    pub(super) fn store_now(&self) -> UnixMs {
        machine_time().saturating_sub(self.ahead_ms())
    }

    pub(super) fn update_from(&self, date: &str) {
        let Some(there) = from_http_date(date) else { return };
        self.ahead_ms.store(machine_time().saturating_sub(there), Ordering::Relaxed);
    }
}

/// The real time: the clock that tests can set does not affect stores.
pub(super) fn machine_time() -> UnixMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
