//! What was told to owners, told to other systems too: lines of the outbox, written with what happened, go to the
//! webhook and to Slack. At least once; to the webhook in order for each file.

mod slack;
mod webhook;

pub use webhook::{disabled_since, enable};

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use tokio_util::sync::CancellationToken;
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{CatalogError, Destination};
use wharfinger_engines::webhooks::{EndpointError, SendError, Slack, Webhook};
use wharfinger_lifecycle::UnixMs;

use crate::core::Core;

const SECOND_MS: i64 = 1_000;
const MINUTE_MS: i64 = 60 * SECOND_MS;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// How long after each failure a line is tried again, and the last of them for all that follow.
const PAUSES_MS: [i64; 7] =
    [5 * SECOND_MS, MINUTE_MS, 5 * MINUTE_MS, 30 * MINUTE_MS, 2 * HOUR_MS, 5 * HOUR_MS, 6 * HOUR_MS];
/// No receiver is believed that asks for more.
const PAUSE_MS_MAX: i64 = 6 * HOUR_MS;
/// Up to this share longer, so that what failed together does not come back together.
const JITTER: f64 = 0.2;
/// A line that fails after this long is given up.
const GIVE_UP_AFTER_MS: i64 = 72 * HOUR_MS;

/// The ways out, as this process has them.
pub struct Notifier {
    core: Arc<Core>,
    pub webhook: Option<Webhook>,
    pub slack: Option<Slack>,
    /// Nothing is sent to the webhook before this.
    webhook_rests_until: AtomicI64,
    /// Messages in a row that nobody answered.
    unanswered: AtomicU32,
    slack_rests_until: AtomicI64,
}

impl Notifier {
    /// Sends nothing yet; says what an operator may not have meant.
    pub fn new(core: Arc<Core>, faults: &Faults) -> Result<Notifier, EndpointError> {
        let settings = &core.settings.notify;
        let endpoints = [
            ("WEBHOOK_URL", settings.webhook.as_ref().map(|webhook| &webhook.endpoint)),
            ("SLACK_WEBHOOK_URL", settings.slack.as_ref()),
        ];
        for (name, endpoint) in endpoints {
            if let Some(endpoint) = endpoint.filter(|at| !at.is_encrypted() && !at.allows_private()) {
                let host = endpoint.host();
                tracing::warn!(host, "{name}: http:// lets everybody on the way read what is told");
            }
        }
        let webhook = settings.webhook.clone();
        let slack = settings.slack.clone();
        Ok(Notifier {
            webhook: webhook.map(|it| Webhook::new(it.endpoint, it.secrets, faults.clone())).transpose()?,
            slack: slack.map(|endpoint| Slack::new(endpoint, faults.clone())).transpose()?,
            webhook_rests_until: AtomicI64::new(0),
            unanswered: AtomicU32::new(0),
            slack_rests_until: AtomicI64::new(0),
            core,
        })
    }

    pub fn is_needed(&self) -> bool {
        self.webhook.is_some() || self.slack.is_some()
    }
}

/// Tells all that is due, unless told to begin nothing new; answers how many lines arrived.
pub async fn relay(notifier: &Notifier, stop: &CancellationToken) -> Result<u64, CatalogError> {
    // One that fails does not keep the other from its turn.
    let (told, alerted) = tokio::join!(webhook::relay(notifier, stop), slack::relay(notifier));
    Ok(told? + alerted?)
}

/// When there may be something to tell next.
pub async fn next_at(notifier: &Notifier) -> Result<Option<UnixMs>, CatalogError> {
    let mut next: Option<UnixMs> = None;
    for (destination, configured, rests_until) in [
        (Destination::Webhook, notifier.webhook.is_some(), &notifier.webhook_rests_until),
        (Destination::Slack, notifier.slack.is_some(), &notifier.slack_rests_until),
    ] {
        if configured && let Some(due) = notifier.core.catalog.next_outbox_at(destination).await? {
            let at = due.max(rests_until.load(Ordering::Relaxed));
            next = Some(next.map_or(at, |earlier| earlier.min(at)));
        }
    }
    Ok(next)
}

/// What becomes of a line that did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    AgainAt(UnixMs),
    GivenUp,
}

fn fate(created_at: UnixMs, failures_before: u32, error: &SendError, now: UnixMs, random: f64) -> Fate {
    if now.saturating_sub(created_at) >= GIVE_UP_AFTER_MS {
        return Fate::GivenUp;
    }
    let step = usize::try_from(failures_before).unwrap_or(usize::MAX).min(PAUSES_MS.len() - 1);
    let pause = PAUSES_MS[step];
    let pause = pause + (pause as f64 * JITTER * random.clamp(0.0, 1.0)) as i64;
    let asked = error.retry_after().map_or(0, |wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX));
    Fate::AgainAt(now.saturating_add(pause.max(asked).min(PAUSE_MS_MAX)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pause(failures_before: u32, error: &SendError, random: f64) -> i64 {
        match fate(0, failures_before, error, 0, random) {
            Fate::AgainAt(at) => at,
            Fate::GivenUp => panic!("given up at once"),
        }
    }

    #[test]
    fn pauses_grow_to_their_cap_and_a_receiver_may_ask_for_longer_ones() {
        let away = SendError::Unanswered("away".into());
        let mut before = 0;
        for failures in 0..20 {
            let (least, most) = (pause(failures, &away, 0.0), pause(failures, &away, 1.0));
            assert!(
                before <= least && least <= most && most <= PAUSE_MS_MAX,
                "{failures}: {least} to {most}"
            );
            before = least;
        }
        assert_eq!((pause(0, &away, 0.0), before), (5_000, PAUSE_MS_MAX));
        let busy = |seconds| SendError::TooMany { retry_after: Some(Duration::from_secs(seconds)) };
        assert_eq!(pause(0, &busy(90), 1.0), 90_000);
        assert_eq!(pause(0, &busy(1), 0.0), 5_000, "never sooner than by itself");
        assert_eq!(pause(0, &busy(u64::MAX / 2), 0.0), PAUSE_MS_MAX);
    }

    #[test]
    fn a_line_is_given_up_after_three_days_and_not_before() {
        let away = SendError::Unanswered("away".into());
        assert_ne!(fate(0, 100, &away, GIVE_UP_AFTER_MS - 1, 0.5), Fate::GivenUp);
        assert_eq!(fate(0, 0, &away, GIVE_UP_AFTER_MS, 0.5), Fate::GivenUp);
    }
}
