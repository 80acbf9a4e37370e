//! Sends alerts to Slack. All waiting alerts are sent as one message, then there is a pause.

use std::sync::atomic::Ordering;

use wharfinger_catalog::{CatalogError, Destination, OutboxLine, OutboxPayload};
use wharfinger_lifecycle::limits::clip;

use super::{RetryDecision, SECOND_MS, after_failure};
use crate::notify::Notifier;
use crate::telemetry::metric::{self, Delivery};

const CLAIM_LINES: usize = 500;
/// How long claimed lines are hidden: longer than a message takes. If the process dies, they are sent again after this.
const HIDDEN_MS: i64 = 60 * SECOND_MS;
/// Between two messages.
const PAUSE_MS: i64 = 10 * SECOND_MS;
/// A message shows at most this many alerts, and the number of the others.
const ALERTS_SHOWN_MAX: usize = 10;
const ALERT_BYTES_MAX: usize = 500;

/// Returns how many lines arrived.
pub(super) async fn relay(notifier: &Notifier) -> Result<u64, CatalogError> {
    let core = &notifier.core;
    let Some(slack) = &notifier.slack else { return Ok(0) };
    let now = core.clock.now();
    if now < notifier.slack_paused_until.load(Ordering::Relaxed) {
        return Ok(0);
    }
    let lines = core.catalog.claim_outbox(Destination::Slack, CLAIM_LINES, now, now + HIDDEN_MS).await?;
    if lines.is_empty() {
        return Ok(0);
    }
    notifier.slack_paused_until.store(now + PAUSE_MS, Ordering::Relaxed);
    let count = lines.len() as u64;
    let error = match slack.send(&text(&lines), now.div_euclid(SECOND_MS)).await {
        Ok(()) => {
            metric::count_deliveries(Destination::Slack, Delivery::Delivered, count);
            core.catalog.outbox_delivered(lines.into_iter().map(|line| line.id).collect()).await?;
            return Ok(count);
        }
        Err(error) => error,
    };
    tracing::warn!(job = "slack", lines = count, error = %error, "cannot send alerts to Slack");
    let (mut late, mut given_up) = (Vec::new(), Vec::new());
    for line in lines {
        match after_failure(line.created_at, line.attempts, &error, core.clock.now(), rand::random()) {
            RetryDecision::RetryAt(at) => late.push((line.id, at)),
            RetryDecision::GiveUp => given_up.push(line.id),
        }
    }
    // They were sent together and are retried together.
    if let Some(at) = late.iter().map(|(_, at)| *at).min() {
        metric::count_deliveries(Destination::Slack, Delivery::Failed, late.len() as u64);
        let ids = late.into_iter().map(|(id, _)| id).collect();
        core.catalog.delay_outbox(ids, &error.to_string(), at).await?;
    }
    if !given_up.is_empty() {
        tracing::error!(job = "slack", lines = given_up.len(), error = %error,
            "alerts were given up after three days (SLACK_WEBHOOK_URL)");
        metric::count_deliveries(Destination::Slack, Delivery::GivenUp, given_up.len() as u64);
        core.catalog.outbox_delivered(given_up).await?;
    }
    Ok(0)
}

fn text(lines: &[OutboxLine]) -> String {
    let mut shown: Vec<String> = lines
        .iter()
        .filter_map(|line| match &line.payload {
            OutboxPayload::Alert { message } => Some(clip(message, ALERT_BYTES_MAX).to_owned()),
            OutboxPayload::Refund { .. }
            | OutboxPayload::Check { .. }
            | OutboxPayload::Notification { .. }
            | OutboxPayload::Event { .. } => None,
        })
        .take(ALERTS_SHOWN_MAX)
        .collect();
    if lines.len() > shown.len() {
        shown.push(format!("… and {} more", lines.len() - shown.len()));
    }
    format!("Wharfinger: {}", shown.join("\n"))
}
