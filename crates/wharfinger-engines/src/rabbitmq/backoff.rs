//! How long to wait before the broker is asked again.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

const FIRST_MS: u64 = 500;
const LAST_MS: u64 = 30_000;

/// Remembers its moment, so that a wait that was abandoned half-way goes on where it was.
#[derive(Default)]
pub(super) struct Backoff {
    failures: u32,
    until: Option<Instant>,
}

impl Backoff {
    pub(super) fn succeed(&mut self) {
        *self = Backoff::default();
    }

    /// Half of the wait is by chance, so that processes which lost the same broker do not come back as one.
    pub(super) fn fail(&mut self) {
        let most = FIRST_MS.saturating_mul(1 << self.failures.min(10)).min(LAST_MS);
        let chance = Uuid::new_v4().as_u64_pair().1 % (most / 2);
        self.failures = self.failures.saturating_add(1);
        self.until = Some(Instant::now() + Duration::from_millis(most / 2 + chance));
    }

    pub(super) async fn wait(&self) {
        if let Some(until) = self.until {
            tokio::time::sleep_until(until).await;
        }
    }
}
