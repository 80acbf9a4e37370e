//! The wait before the next call to the broker.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

const FIRST_MS: u64 = 500;
const LAST_MS: u64 = 30_000;

/// Stores the end of the wait, so that a cancelled wait continues where it stopped.
#[derive(Default)]
pub(super) struct Backoff {
    failures: u32,
    until: Option<Instant>,
}

impl Backoff {
    pub(super) fn succeed(&mut self) {
        *self = Backoff::default();
    }

    /// Half of the wait is random, so that processes that lost the same broker do not reconnect together.
    pub(super) fn fail(&mut self) {
        let longest = FIRST_MS.saturating_mul(1 << self.failures.min(10)).min(LAST_MS);
        let random = Uuid::new_v4().as_u64_pair().1 % (longest / 2);
        self.failures = self.failures.saturating_add(1);
        self.until = Some(Instant::now() + Duration::from_millis(longest / 2 + random));
    }

    pub(super) async fn wait(&self) {
        if let Some(until) = self.until {
            tokio::time::sleep_until(until).await;
        }
    }
}
