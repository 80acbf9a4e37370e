//! Notices on their way to the webhook: many files side by side, each file's one after the other.

use std::sync::atomic::Ordering;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wharfinger_catalog::{Catalog, CatalogError, Destination, Notification, OutboxPayload, OutboxLine};
use wharfinger_engines::webhooks::{Endpoint, Message, SendError, Webhook};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::checksum::to_hex;

use super::{Fate, PAUSE_MS_MAX, SECOND_MS, fate};
use crate::clock::rfc3339;
use crate::core::Core;
use crate::notify::Notifier;
use crate::telemetry::metric::{self, Delivery};

const AT_ONCE: usize = 16;
/// Longer than a message takes, with its answer read. Whoever dies with lines in hand holds them up this long.
const HIDDEN_MS: i64 = 60 * SECOND_MS;
/// After so many messages in a row without any answer the endpoint is taken for away, and left alone for a moment.
const UNANSWERED_MAX: u32 = 8;
const AWAY_REST_MS: i64 = 15 * SECOND_MS;
const BUSY_REST_MS: i64 = 30 * SECOND_MS;

/// Answers how many lines arrived.
pub(super) async fn relay(notifier: &Notifier, stop: &CancellationToken) -> Result<u64, CatalogError> {
    let Some(webhook) = &notifier.webhook else { return Ok(0) };
    let mut arrived = 0;
    let mut failed = None;
    let mut under_way = FuturesUnordered::new();
    let mut may_be_more = true;
    loop {
        let has_room = under_way.len() <= AT_ONCE / 2 && failed.is_none();
        if may_be_more && has_room && !stop.is_cancelled() && !rests(notifier) {
            match claim(&notifier.core, webhook, AT_ONCE - under_way.len()).await {
                Ok(lines) => {
                    may_be_more = !lines.is_empty();
                    under_way.extend(lines.into_iter().map(|told| tell(notifier, webhook, told)));
                }
                // What is under way is not broken off: it would only be sent again.
                Err(error) => failed = Some(error),
            }
        }
        match under_way.next().await {
            Some(Ok(has_arrived)) => {
                arrived += u64::from(has_arrived);
                // What is next of the same file waited for this one.
                may_be_more = true;
            }
            Some(Err(error)) => failed = Some(error),
            None => return failed.map_or(Ok(arrived), Err),
        }
    }
}

fn rests(notifier: &Notifier) -> bool {
    notifier.core.clock.now() < notifier.webhook_rests_until.load(Ordering::Relaxed)
}

fn rest(notifier: &Notifier, ms: i64) {
    let until = notifier.core.clock.now().saturating_add(ms.min(PAUSE_MS_MAX));
    notifier.webhook_rests_until.fetch_max(until, Ordering::Relaxed);
}

/// Lines that can be told now, each with what it tells.
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
        let mut known = core.catalog.notifications_by_id(&ids).await?;
        let (mut told, mut forgotten) = (Vec::with_capacity(lines.len()), Vec::new());
        for line in lines {
            let at = notification_of(&line).and_then(|id| known.iter().position(|known| known.id == id));
            match at {
                Some(at) => told.push((line, known.swap_remove(at))),
                None => forgotten.push(line),
            }
        }
        if !forgotten.is_empty() {
            tracing::error!(
                job = "webhook",
                lines = forgotten.len(),
                "notices were forgotten before they were told"
            );
            drop_lines(core, forgotten, Delivery::Dropped).await?;
        }
        if !told.is_empty() {
            return Ok(told);
        }
    }
}

fn notification_of(line: &OutboxLine) -> Option<Uuid> {
    match line.payload {
        OutboxPayload::Notice { notification, .. } => Some(notification),
        OutboxPayload::Refund { .. }
        | OutboxPayload::Check { .. }
        | OutboxPayload::Alert { .. }
        | OutboxPayload::Event { .. } => None,
    }
}

async fn drop_lines(core: &Core, lines: Vec<OutboxLine>, outcome: Delivery) -> Result<(), CatalogError> {
    metric::deliveries(Destination::Webhook, outcome, lines.len() as u64);
    core.catalog.outbox_delivered(lines.into_iter().map(|line| line.id).collect()).await
}

/// True if it has arrived.
async fn tell(
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
    learn(notifier, &outcome);
    let error = match outcome {
        Ok(()) => {
            metric::deliveries(Destination::Webhook, Delivery::Delivered, 1);
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
    match fate(line.created_at, line.attempts, &error, core.clock.now(), rand::random()) {
        Fate::AgainAt(at) => {
            metric::deliveries(Destination::Webhook, Delivery::Failed, 1);
            tracing::warn!(job = "webhook", host, notificationId = %id, kind, attempt = line.attempts + 1,
                error = %error, "a notice did not arrive and is told again later");
            core.catalog.delay_outbox(vec![line.id], &error.to_string(), at).await?;
        }
        Fate::GivenUp => {
            tracing::error!(job = "webhook", host, notificationId = %id, kind, attempt = line.attempts + 1,
                error = %error, "a notice is given up: the webhook has not taken it for three days");
            drop_lines(core, vec![line], Delivery::GivenUp).await?;
        }
    }
    Ok(false)
}

/// Whether the endpoint as a whole is to be left alone.
fn learn(notifier: &Notifier, outcome: &Result<(), SendError>) {
    let unanswered = &notifier.unanswered;
    match outcome {
        Err(SendError::Unanswered(_) | SendError::Private) => {
            if unanswered.fetch_add(1, Ordering::Relaxed) + 1 >= UNANSWERED_MAX {
                unanswered.store(0, Ordering::Relaxed);
                rest(notifier, AWAY_REST_MS);
            }
        }
        Err(SendError::TooMany { retry_after }) => {
            unanswered.store(0, Ordering::Relaxed);
            let asked = retry_after.map(|wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX));
            rest(notifier, asked.unwrap_or(BUSY_REST_MS));
        }
        Ok(()) | Err(SendError::Gone | SendError::Refused { .. }) => unanswered.store(0, Ordering::Relaxed),
    }
}

/// The same bytes at every attempt: what they are made of does not change.
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

/// Of this very URL: another begins enabled.
fn disabled_fact(endpoint: &Endpoint) -> String {
    format!("webhook_disabled_{}", to_hex(&Sha256::digest(endpoint.url())[..16]))
}

/// When the receiver said that it wants no more, if it did.
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
            "WEBHOOK_URL: the receiver answers 410 Gone, and nothing more is sent there until the URL is changed or \
             `wharfinger doctor --enable-webhook` has been run"
        );
    }
    metric::webhook_disabled(true);
    Ok(())
}

/// A person says that the receiver wants to be told again.
pub async fn enable(catalog: &Catalog, endpoint: &Endpoint) -> Result<(), CatalogError> {
    catalog.set_fact(&disabled_fact(endpoint), "").await
}
