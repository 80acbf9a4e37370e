//! Who is to look for work now. A wake-up that gets lost costs time, nothing else: each sleeper also looks by itself.

use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;
use wharfinger_lifecycle::UnixMs;

#[derive(Debug, Default)]
pub struct Wakeups {
    /// There are bytes to delete.
    pub cleanup: Notify,
    /// Other processes have bytes to delete.
    pub other_processes: Notify,
    /// A refund is to be told to Redis.
    pub refund: Notify,
    /// There is something to tell the webhook or Slack.
    pub notice: Notify,
    /// There is something to archive.
    pub archive: Notify,
    /// A delayed check is to be published.
    pub broker: Notify,
    /// A delayed check is due earlier than the next one known.
    pub check: TimedWakeup,
    /// A job was written for a stage.
    pub stage: Notify,
}

/// Wakes a sleeper only for what comes before the time it sleeps until.
#[derive(Debug, Default)]
pub struct TimedWakeup {
    sleeping_until: AtomicI64,
    wakeup: Notify,
}

impl TimedWakeup {
    pub fn wake_for(&self, at: UnixMs) {
        if at < self.sleeping_until.load(Ordering::SeqCst) {
            self.wakeup.notify_one();
        }
    }

    pub async fn woken_before(&self, at: UnixMs) {
        self.sleeping_until.store(at, Ordering::SeqCst);
        self.wakeup.notified().await;
    }
}
