//! Sends notifications to the webhook and alerts to Slack. Both are outbox lines, written in the same transaction as
//! the change they report. A line may be delivered twice. It is given up after three days. The webhook gets the
//! notifications of a file in order.

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

/// The pause after each failure of a line. The last value is used for all further failures.
const PAUSES_MS: [i64; 7] =
    [5 * SECOND_MS, MINUTE_MS, 5 * MINUTE_MS, 30 * MINUTE_MS, 2 * HOUR_MS, 5 * HOUR_MS, 6 * HOUR_MS];
/// Longer `Retry-After` values are shortened to this.
const PAUSE_MS_MAX: i64 = 6 * HOUR_MS;
/// Pauses are up to this share longer, so that lines that failed together are not retried together.
const JITTER: f64 = 0.2;
/// A line that still fails at this age is given up.
const GIVE_UP_AFTER_MS: i64 = 72 * HOUR_MS;

/// The connections of this process to the webhook and Slack.
pub struct Notifier {
    core: Arc<Core>,
    pub webhook: Option<Webhook>,
    pub slack: Option<Slack>,
    /// Nothing is sent to the webhook before this time.
    webhook_paused_until: AtomicI64,
    /// Messages in a row without an answer.
    unanswered: AtomicU32,
    slack_paused_until: AtomicI64,
}

impl Notifier {
    /// Sends nothing yet. Warns if the URLs are not encrypted.
    pub fn new(core: Arc<Core>, faults: &Faults) -> Result<Notifier, EndpointError> {
        let settings = &core.settings.notify;
        let endpoints = [
            ("WEBHOOK_URL", settings.webhook.as_ref().map(|webhook| &webhook.endpoint)),
            ("SLACK_WEBHOOK_URL", settings.slack.as_ref()),
        ];
        for (name, endpoint) in endpoints {
            if let Some(endpoint) = endpoint.filter(|at| !at.is_encrypted() && !at.allows_private()) {
                let host = endpoint.host();
                tracing::warn!(
                    host,
                    "{name}: http:// is not encrypted, others in the network can read the messages"
                );
            }
        }
        let webhook = settings.webhook.clone();
        let slack = settings.slack.clone();
        Ok(Notifier {
            webhook: webhook.map(|it| Webhook::new(it.endpoint, it.secrets, faults.clone())).transpose()?,
            slack: slack.map(|endpoint| Slack::new(endpoint, faults.clone())).transpose()?,
            webhook_paused_until: AtomicI64::new(0),
            unanswered: AtomicU32::new(0),
            slack_paused_until: AtomicI64::new(0),
            core,
        })
    }

    pub fn is_needed(&self) -> bool {
        self.webhook.is_some() || self.slack.is_some()
    }
}

/// Sends all lines that are due, until `stop` is cancelled. Returns how many arrived.
pub async fn relay(notifier: &Notifier, stop: &CancellationToken) -> Result<u64, CatalogError> {
    // An error of one does not stop the other.
    let (to_webhook, to_slack) = tokio::join!(webhook::relay(notifier, stop), slack::relay(notifier));
    Ok(to_webhook? + to_slack?)
}

/// When the next line is due.
pub async fn next_at(notifier: &Notifier) -> Result<Option<UnixMs>, CatalogError> {
    let mut next: Option<UnixMs> = None;
    for (destination, is_configured, paused_until) in [
        (Destination::Webhook, notifier.webhook.is_some(), &notifier.webhook_paused_until),
        (Destination::Slack, notifier.slack.is_some(), &notifier.slack_paused_until),
    ] {
        if is_configured && let Some(due) = notifier.core.catalog.next_outbox_at(destination).await? {
            let at = due.max(paused_until.load(Ordering::Relaxed));
            next = Some(next.map_or(at, |earlier| earlier.min(at)));
        }
    }
    Ok(next)
}

/// What to do with a line that did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetryDecision {
    RetryAt(UnixMs),
    GiveUp,
}

fn after_failure(
    created_at: UnixMs,
    failures_before: u32,
    error: &SendError,
    now: UnixMs,
    random: f64,
) -> RetryDecision {
    if now.saturating_sub(created_at) >= GIVE_UP_AFTER_MS {
        return RetryDecision::GiveUp;
    }
    let step = usize::try_from(failures_before).unwrap_or(usize::MAX).min(PAUSES_MS.len() - 1);
    let pause = PAUSES_MS[step];
    let pause = pause + (pause as f64 * JITTER * random.clamp(0.0, 1.0)) as i64;
    let asked = error.retry_after().map_or(0, |wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX));
    RetryDecision::RetryAt(now.saturating_add(pause.max(asked).min(PAUSE_MS_MAX)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pause(failures_before: u32, error: &SendError, random: f64) -> i64 {
        match after_failure(0, failures_before, error, 0, random) {
            RetryDecision::RetryAt(at) => at,
            RetryDecision::GiveUp => panic!("given up at once"),
        }
    }

    #[test]
    fn pauses_grow_to_a_limit_and_a_receiver_may_ask_for_longer_ones() {
        let away = SendError::NoAnswer("away".into());
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
        let busy = |seconds| SendError::RateLimited { retry_after: Some(Duration::from_secs(seconds)) };
        assert_eq!(pause(0, &busy(90), 1.0), 90_000);
        assert_eq!(pause(0, &busy(1), 0.0), 5_000, "never shorter than the own pause");
        assert_eq!(pause(0, &busy(u64::MAX / 2), 0.0), PAUSE_MS_MAX);
    }

    #[test]
    fn a_line_is_given_up_after_three_days_and_not_before() {
        let away = SendError::NoAnswer("away".into());
        assert_ne!(after_failure(0, 100, &away, GIVE_UP_AFTER_MS - 1, 0.5), RetryDecision::GiveUp);
        assert_eq!(after_failure(0, 0, &away, GIVE_UP_AFTER_MS, 0.5), RetryDecision::GiveUp);
    }
}
