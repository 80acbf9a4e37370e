//! Wake-ups for the background loops. A lost wake-up only costs time, because the loops that do the work also poll.

use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;
use wharfinger_lifecycle::UnixMs;

#[derive(Debug, Default)]
pub struct Wakeups {
    /// A cleanup is due.
    pub cleanup: Notify,
    /// A cleanup is due: wake the reapers of other processes.
    pub other_processes: Notify,
    /// A refund waits to be sent to Redis.
    pub refund: Notify,
    /// A line for the webhook or Slack waits.
    pub notification: Notify,
    /// A file event waits to be archived.
    pub archive: Notify,
    /// A delayed check waits to be published.
    pub broker: Notify,
    /// A delayed check was scheduled.
    pub check: TimedWakeup,
    /// A job was written for a stage.
    pub stage: Notify,
}

/// Wakes the sleeper only for a time before its planned end.
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
