//! Sends notifications to the webhook: those of different files in parallel, those of one file in order.

use std::sync::atomic::Ordering;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wharfinger_catalog::{Catalog, CatalogError, Destination, Notification, OutboxLine, OutboxPayload};
use wharfinger_engines::webhooks::{Endpoint, Message, SendError, Webhook};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::checksum::to_hex;

use super::{PAUSE_MS_MAX, RetryDecision, SECOND_MS, after_failure};
use crate::clock::rfc3339;
use crate::core::Core;
use crate::notify::Notifier;
use crate::telemetry::metric::{self, Delivery};

const AT_ONCE: usize = 16;
/// How long claimed lines are hidden: longer than a message and its answer take. If the process dies, they are sent again
/// after this.
const HIDDEN_MS: i64 = 60 * SECOND_MS;
/// After this many messages in a row without an answer, sending pauses.
const UNANSWERED_MAX: u32 = 8;
const UNANSWERED_PAUSE_MS: i64 = 15 * SECOND_MS;
const RATE_LIMIT_PAUSE_MS: i64 = 30 * SECOND_MS;

/// Returns how many lines arrived.
pub(super) async fn relay(notifier: &Notifier, stop: &CancellationToken) -> Result<u64, CatalogError> {
    let Some(webhook) = &notifier.webhook else { return Ok(0) };
    let mut arrived = 0;
    let mut failed = None;
    let mut in_progress = FuturesUnordered::new();
    let mut may_be_more = true;
    loop {
        let has_room = in_progress.len() <= AT_ONCE / 2 && failed.is_none();
        if may_be_more && has_room && !stop.is_cancelled() && !is_paused(notifier) {
            match claim(&notifier.core, webhook, AT_ONCE - in_progress.len()).await {
                Ok(lines) => {
                    may_be_more = !lines.is_empty();
                    in_progress.extend(lines.into_iter().map(|line| send(notifier, webhook, line)));
                }
                // Messages in progress are not aborted, or they would be sent twice.
                Err(error) => failed = Some(error),
            }
        }
        match in_progress.next().await {
            Some(Ok(has_arrived)) => {
                arrived += u64::from(has_arrived);
                // The next notification of the same file can be claimed now.
                may_be_more = true;
            }
            Some(Err(error)) => failed = Some(error),
            None => return failed.map_or(Ok(arrived), Err),
        }
    }
}

fn is_paused(notifier: &Notifier) -> bool {
    notifier.core.clock.now() < notifier.webhook_paused_until.load(Ordering::Relaxed)
}

fn pause(notifier: &Notifier, ms: i64) {
    let until = notifier.core.clock.now().saturating_add(ms.min(PAUSE_MS_MAX));
    notifier.webhook_paused_until.fetch_max(until, Ordering::Relaxed);
}

/// Claims lines that are due, and reads their notifications.
async fn claim(
    core: &Core,
    webhook: &Webhook,
    limit: usize,
) -> Result<Vec<(OutboxLine, Notification)>, CatalogError> {
    loop {
        let now = core.clock.now();
        let until = now.saturating_add(HIDDEN_MS);
        let lines = core.catalog.claim_outbox(Destination::Webhook, limit, now, until).await?;
        if lines.is_empty() {
            return Ok(Vec::new());
        }
        if disabled_since(&core.catalog, webhook.endpoint()).await?.is_some() {
            drop_lines(core, lines, Delivery::Dropped).await?;
            continue;
        }
        let ids: Vec<Uuid> = lines.iter().filter_map(notification_of).collect();
        let mut notifications = core.catalog.notifications_by_id(&ids).await?;
        let (mut found, mut missing) = (Vec::with_capacity(lines.len()), Vec::new());
        for line in lines {
            let at = notification_of(&line).and_then(|id| notifications.iter().position(|one| one.id == id));
            match at {
                Some(at) => found.push((line, notifications.swap_remove(at))),
                None => missing.push(line),
            }
        }
        if !missing.is_empty() {
            tracing::error!(
                job = "webhook",
                lines = missing.len(),
                "notifications expired before they were sent"
            );
            drop_lines(core, missing, Delivery::Dropped).await?;
        }
        if !found.is_empty() {
            return Ok(found);
        }
    }
}

fn notification_of(line: &OutboxLine) -> Option<Uuid> {
    match line.payload {
        OutboxPayload::Notification { notification, .. } => Some(notification),
        OutboxPayload::Refund { .. }
        | OutboxPayload::Check { .. }
        | OutboxPayload::Alert { .. }
        | OutboxPayload::Event { .. } => None,
    }
}

async fn drop_lines(core: &Core, lines: Vec<OutboxLine>, outcome: Delivery) -> Result<(), CatalogError> {
    metric::count_deliveries(Destination::Webhook, outcome, lines.len() as u64);
    core.catalog.outbox_delivered(lines.into_iter().map(|line| line.id).collect()).await
}

/// Returns true if it arrived.
async fn send(
    notifier: &Notifier,
    webhook: &Webhook,
    (line, notification): (OutboxLine, Notification),
) -> Result<bool, CatalogError> {
    let core = &notifier.core;
    let now = core.clock.now();
    let message = Message {
        id: notification.id,
        sent_at: now.div_euclid(SECOND_MS),
        body: body(&notification).to_string(),
    };
    let outcome = webhook.send(&message).await;
    pause_if_needed(notifier, &outcome);
    let error = match outcome {
        Ok(()) => {
            metric::count_deliveries(Destination::Webhook, Delivery::Delivered, 1);
            core.catalog.outbox_delivered(vec![line.id]).await?;
            return Ok(true);
        }
        Err(SendError::Gone) => {
            disable(core, webhook.endpoint()).await?;
            drop_lines(core, vec![line], Delivery::Dropped).await?;
            return Ok(false);
        }
        Err(error) => error,
    };
    let (kind, id, host) = (&notification.kind, notification.id, webhook.endpoint().host());
    match after_failure(line.created_at, line.attempts, &error, core.clock.now(), rand::random()) {
        RetryDecision::RetryAt(at) => {
            metric::count_deliveries(Destination::Webhook, Delivery::Failed, 1);
            tracing::warn!(job = "webhook", host, notificationId = %id, kind, attempt = line.attempts + 1,
                error = %error, "cannot send a notification, it will be retried");
            core.catalog.delay_outbox(vec![line.id], &error.to_string(), at).await?;
        }
        RetryDecision::GiveUp => {
            tracing::error!(job = "webhook", host, notificationId = %id, kind, attempt = line.attempts + 1,
                error = %error, "a notification was given up after three days (WEBHOOK_URL)");
            drop_lines(core, vec![line], Delivery::GivenUp).await?;
        }
    }
    Ok(false)
}

/// Pauses all messages if the endpoint does not answer or is rate limited.
fn pause_if_needed(notifier: &Notifier, outcome: &Result<(), SendError>) {
    let unanswered = &notifier.unanswered;
    match outcome {
        Err(SendError::NoAnswer(_) | SendError::PrivateAddress) => {
            if unanswered.fetch_add(1, Ordering::Relaxed) + 1 >= UNANSWERED_MAX {
                unanswered.store(0, Ordering::Relaxed);
                pause(notifier, UNANSWERED_PAUSE_MS);
            }
        }
        Err(SendError::RateLimited { retry_after }) => {
            unanswered.store(0, Ordering::Relaxed);
            let asked = retry_after.map(|wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX));
            pause(notifier, asked.unwrap_or(RATE_LIMIT_PAUSE_MS));
        }
        Ok(()) | Err(SendError::Gone | SendError::Refused { .. }) => unanswered.store(0, Ordering::Relaxed),
    }
}

/// The body is the same at every attempt, because a notification never changes.
fn body(notification: &Notification) -> Value {
    let mut data = match serde_json::from_str(&notification.data) {
        Ok(Value::Object(data)) => data,
        _ => Map::new(),
    };
    for (name, value) in [
        ("id", json!(notification.id)),
        ("tenant", json!(notification.tenant)),
        ("user", json!(notification.user)),
        ("fileId", json!(notification.file_id)),
        ("fileName", json!(notification.file_name)),
        ("batchId", json!(notification.batch_id)),
        ("message", json!(notification.message)),
    ] {
        data.insert(name.to_owned(), value);
    }
    json!({ "type": notification.kind, "timestamp": rfc3339(notification.created_at), "data": data })
}

/// The fact is per URL, so a new URL starts enabled.
fn disabled_fact(endpoint: &Endpoint) -> String {
    format!("webhook_disabled_{}", to_hex(&Sha256::digest(endpoint.url())[..16]))
}

/// When the receiver answered 410 Gone, if it did.
pub async fn disabled_since(catalog: &Catalog, endpoint: &Endpoint) -> Result<Option<UnixMs>, CatalogError> {
    let fact = catalog.fact(&disabled_fact(endpoint)).await?;
    Ok(fact.and_then(|since| since.parse().ok()))
}

async fn disable(core: &Core, endpoint: &Endpoint) -> Result<(), CatalogError> {
    if disabled_since(&core.catalog, endpoint).await?.is_none() {
        core.catalog.set_fact(&disabled_fact(endpoint), &core.clock.now().to_string()).await?;
        tracing::error!(
            job = "webhook",
            host = endpoint.host(),
            "webhook disabled, the receiver answered 410 Gone: change WEBHOOK_URL, or run `wharfinger doctor \
             --enable-webhook`"
        );
    }
    metric::webhook_disabled(true);
    Ok(())
}

/// For `doctor --enable-webhook`.
pub async fn enable(catalog: &Catalog, endpoint: &Endpoint) -> Result<(), CatalogError> {
    catalog.set_fact(&disabled_fact(endpoint), "").await
}
