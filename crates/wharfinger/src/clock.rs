//! The clock. Deadlines in the catalog are compared with it. Tests move it by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat, Utc};
use tokio::sync::watch;
use wharfinger_lifecycle::UnixMs;

#[derive(Clone, Debug)]
pub struct Clock(Arc<Kind>);

#[derive(Debug)]
enum Kind {
    /// The machine's clock, corrected by the clock of a PostgreSQL server.
    System {
        offset_ms: AtomicI64,
    },
    Manual {
        now: watch::Sender<UnixMs>,
    },
}

impl Clock {
    pub fn system() -> Clock {
        Clock(Arc::new(Kind::System { offset_ms: AtomicI64::new(0) }))
    }

    /// Changes only by `advance`.
    pub fn manual(now: UnixMs) -> Clock {
        Clock(Arc::new(Kind::Manual { now: watch::Sender::new(now) }))
    }

    pub fn now(&self) -> UnixMs {
        match &*self.0 {
            Kind::System { offset_ms } => machine_now() + offset_ms.load(Ordering::Relaxed),
            Kind::Manual { now } => *now.borrow(),
        }
    }

    pub fn advance(&self, by: Duration) {
        if let Kind::Manual { now } = &*self.0 {
            now.send_modify(|now| *now += i64::try_from(by.as_millis()).unwrap_or(i64::MAX / 4));
        }
    }

    /// Corrects this clock by the database server's clock, which was read between `before` and now.
    pub fn follow(&self, server_now: UnixMs, before: UnixMs) {
        if let Kind::System { offset_ms } = &*self.0 {
            let middle = (before + machine_now()) / 2;
            offset_ms.store(server_now - middle, Ordering::Relaxed);
        }
    }

    /// The machine's uncorrected time.
    pub fn machine_now(&self) -> UnixMs {
        machine_now()
    }

    pub async fn sleep_until(&self, at: UnixMs) {
        match &*self.0 {
            Kind::System { .. } => {
                let ms = u64::try_from(at - self.now()).unwrap_or(0);
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
            Kind::Manual { now } => {
                // The sender lives as long as this clock, so waiting cannot fail.
                let _ = now.subscribe().wait_for(|now| *now >= at).await;
            }
        }
    }
}

fn machine_now() -> UnixMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

pub fn to_utc(at: UnixMs) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(at).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

pub fn parse_rfc3339(text: &str) -> Option<UnixMs> {
    // In a query string, a plus sign is a space.
    let at = DateTime::parse_from_rfc3339(&text.replace(' ', "+")).ok()?;
    Some(at.timestamp_millis())
}

pub fn rfc3339(at: UnixMs) -> String {
    to_utc(at).to_rfc3339_opts(SecondsFormat::Millis, true)
}
