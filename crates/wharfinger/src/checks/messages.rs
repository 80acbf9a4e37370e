//! Delayed checks through the broker. Outbox lines are published with a delay. A message that comes back when its check
//! is due is claimed in the catalog, acknowledged, and only then run. The poller runs the checks that the broker loses.
//! A message that cannot be read goes to the dead letters: another application may have sent it, and may need it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{CatalogError, Destination, JobClaim, OutboxPayload, WaitingCheck};
use wharfinger_engines::rabbitmq::{DelayedMessage, DueMessage, DueMessages, Rabbit, RabbitOptions};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::JobId;
use wharfinger_lifecycle::limits::clip;
use wharfinger_lifecycle::retry::Backoff;

use crate::checks;
use crate::checks::message_body::{self, Message};
use crate::config::Settings;
use crate::core::Core;
use crate::core::OpenError;
use crate::core::VerbError;
use crate::telemetry::metric;
use crate::uploads::Uploads;
use crate::uploads::init::CHECK_QUEUE;

const CLAIM_LINES: usize = 200;
/// Of the id of a foreign message in the log.
const MESSAGE_ID_BYTES_MAX: usize = 100;
/// How long claimed lines are hidden. If the process dies with them, they are sent again after this.
const HIDDEN_MS: i64 = 30_000;
const RETRY: Backoff = Backoff { base_ms: 1_000, cap_ms: 60_000 };
/// Unacknowledged deliveries per process. They are claimed together.
const PREFETCH: u16 = 64;
/// Checks come in bursts, as uploads do: wait this long, so that one claim takes many.
const BATCH_WAIT: Duration = Duration::from_millis(20);
/// While the broker answers, the poller runs a check only when its message is this late.
const DELIVERY_GRACE_MS: i64 = 30_000;
const WAKEUPS: &str = "wakeups";
/// Wake-ups within this time are sent as one.
const WAKE_PAUSE: Duration = Duration::from_millis(20);

pub fn rabbit_options(settings: &Settings, faults: &Faults) -> Option<RabbitOptions> {
    settings.broker_rabbit.as_ref().map(|url| RabbitOptions {
        url: url.clone(),
        prefix: settings.amqp_prefix.clone(),
        delayed_exchange: settings.amqp_delayed_exchange,
        instance: settings.instance_id.clone(),
        faults: faults.clone(),
    })
}

/// The connection of this process to the broker.
pub struct Broker {
    pub rabbit: Rabbit,
    is_up: AtomicBool,
}

impl Broker {
    /// Connects and declares the queues. If the broker does not answer, the program starts without it.
    pub async fn open(settings: &Settings, faults: &Faults) -> Result<Option<Broker>, OpenError> {
        let Some(options) = rabbit_options(settings, faults) else { return Ok(None) };
        match Rabbit::open(options.clone()).await {
            Ok(rabbit) => Ok(Some(Broker::new(rabbit, true))),
            Err(error) if error.is_retryable() => {
                tracing::error!(backend = "broker", error = %error,
                    "WHARFINGER_BROKER_URL: the broker does not answer, the database is polled for delayed checks");
                Ok(Some(Broker::new(Rabbit::lazy(options), false)))
            }
            Err(error) => Err(OpenError::Broker(error.to_string())),
        }
    }

    fn new(rabbit: Rabbit, is_up: bool) -> Broker {
        metric::broker_up(is_up);
        Broker { rabbit, is_up: AtomicBool::new(is_up) }
    }

    /// How long the poller waits for the broker to deliver a check that is due.
    pub fn delivery_grace_ms(&self) -> i64 {
        if self.is_up() { DELIVERY_GRACE_MS } else { 0 }
    }

    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    fn set_up(&self, now_up: bool, error: Option<&str>) {
        if self.is_up.swap(now_up, Ordering::Relaxed) != now_up {
            metric::broker_up(now_up);
            match error {
                None => tracing::info!(backend = "broker", "the broker answers again"),
                Some(error) => tracing::error!(
                    backend = "broker",
                    error,
                    "the broker does not answer, the database is polled for delayed checks"
                ),
            }
        }
    }

    /// Checks the connection, for `is_up`.
    pub async fn check_connection(&self) {
        match self.rabbit.check().await {
            Ok(()) => self.set_up(true, None),
            Err(error) => self.set_up(false, Some(&error.to_string())),
        }
    }
}

/// Publishes all lines that are due. Returns how many arrived.
pub async fn relay(core: &Core, broker: &Broker) -> Result<u64, CatalogError> {
    let mut arrived = 0;
    loop {
        let now = core.clock.now();
        let lines = core
            .catalog
            .claim_outbox(Destination::Broker, CLAIM_LINES, now, now.saturating_add(HIDDEN_MS))
            .await?;
        if lines.is_empty() {
            return Ok(arrived);
        }
        let jobs: Vec<JobId> = lines.iter().filter_map(|line| job_of(&line.payload)).collect();
        let checks = core.catalog.waiting_checks(&jobs).await?;
        let checks: BTreeMap<JobId, WaitingCheck> =
            checks.into_iter().map(|check| (check.job, check)).collect();
        let (mut done, mut sent, mut messages) = (Vec::new(), Vec::new(), Vec::new());
        for line in lines {
            match job_of(&line.payload).and_then(|job| checks.get(&job)) {
                Some(check) => {
                    messages.push(delayed(line.id.clone(), check, now));
                    sent.push(line);
                }
                // Its upload was confirmed or deleted in the meantime, or its check runs.
                None => done.push(line.id),
            }
        }
        let outcomes = broker.rabbit.publish_delayed(&messages).await;
        let (mut late, mut why, mut attempts) = (Vec::new(), String::new(), 0);
        for (line, outcome) in sent.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => {
                    arrived += 1;
                    done.push(line.id);
                }
                Err(error) => {
                    why = error.to_string();
                    attempts = line.attempts;
                    late.push(line.id);
                }
            }
        }
        core.catalog.outbox_delivered(done).await?;
        if !late.is_empty() {
            let delay = RETRY.delay_ms(attempts + 1, rand::random());
            let until = core.clock.now().saturating_add(i64::try_from(delay).unwrap_or(i64::MAX / 4));
            core.catalog.delay_outbox(late, &why, until).await?;
            broker.set_up(false, Some(&why));
            return Ok(arrived);
        }
    }
}

fn job_of(payload: &OutboxPayload) -> Option<JobId> {
    match payload {
        OutboxPayload::Check { job, .. } => Some(*job),
        OutboxPayload::Refund { .. }
        | OutboxPayload::Notification { .. }
        | OutboxPayload::Alert { .. }
        | OutboxPayload::Event { .. } => None,
    }
}

fn delayed(id: String, check: &WaitingCheck, now: UnixMs) -> DelayedMessage {
    let delay_ms = u64::try_from(check.run_at.saturating_sub(now)).unwrap_or(0);
    DelayedMessage { id, body: message_body::check_orphan(check), delay_ms }
}

/// Runs the checks that the broker delivers, until `stop` is cancelled.
pub async fn consume(uploads: &Uploads, broker: &Broker, stop: &CancellationToken) {
    let mut due = broker.rabbit.due(PREFETCH);
    while let Some(messages) = stop.run_until_cancelled(gather(&mut due)).await {
        if let Err(error) = run(uploads, broker, messages).await {
            tracing::warn!(job = CHECK_QUEUE, error = %error.with_cause(), "cannot run the delivered checks, the poller will run them");
        }
    }
}

async fn gather(due: &mut DueMessages) -> Vec<DueMessage> {
    let mut messages = vec![due.next().await];
    let _ = tokio::time::timeout(BATCH_WAIT, async {
        while messages.len() < usize::from(PREFETCH) {
            messages.push(due.next().await);
        }
    })
    .await;
    messages
}

/// The process with the claim runs the check, even if its message is delivered several times. Messages are acknowledged
/// even if the claim failed: the poller runs their checks.
async fn run(uploads: &Uploads, broker: &Broker, messages: Vec<DueMessage>) -> Result<(), VerbError> {
    let core = &uploads.core;
    let (mut ids, mut known) = (Vec::new(), Vec::new());
    for message in messages {
        match message_body::parse(&message.body) {
            Ok(Message::CheckOrphan(id)) => {
                ids.push(id);
                known.push(message);
            }
            Ok(Message::RunCleanups) => reject(message, "it is a wake-up, not a check").await,
            Err(error) => reject(message, &error.to_string()).await,
        }
    }
    let claim = JobClaim { limit: ids.len(), ..checks::claim(core) };
    let claimed = core.catalog.claim_jobs_by_id(claim, ids.clone()).await;
    let early = match &claimed {
        Ok(jobs) if jobs.len() < ids.len() => publish_again(core, broker, &ids).await,
        _ => Ok(()),
    };
    for message in known {
        // An unacknowledged message is delivered again. Its check is then already claimed.
        let _ = message.ack().await;
    }
    checks::run(uploads, claimed?).await?;
    early
}

/// Moves a message to the dead letters. After an error it is delivered again, so it is counted only once it is there.
async fn reject(message: DueMessage, why: &str) {
    let id = clip(&message.id, MESSAGE_ID_BYTES_MAX).to_owned();
    match message.reject().await {
        Ok(()) => {
            metric::broker_unknown_message();
            tracing::error!(
                job = CHECK_QUEUE,
                messageId = id,
                error = why,
                action = "rejected",
                "a message that cannot be read was moved to the dead letters"
            );
        }
        Err(error) => tracing::warn!(job = CHECK_QUEUE, messageId = id, error = %error,
            "cannot move a message to the dead letters, it will be delivered again"),
    }
}

/// Wakes the reapers of other processes, until `stop` is cancelled.
pub async fn send_wakeups(core: &Core, broker: &Broker, stop: &CancellationToken) {
    let body = message_body::run_cleanups();
    while stop.run_until_cancelled(core.wakeups.other_processes.notified()).await.is_some() {
        // A lost wake-up costs a little time: every reaper also polls.
        let _ = broker.rabbit.wake(&body).await;
        tokio::time::sleep(WAKE_PAUSE).await;
    }
}

/// Wakes what other processes ask for, until `stop` is cancelled. A wake-up cannot be rejected, because each process has
/// its own copy. So a copy of one that cannot be read is added to the dead letters.
pub async fn receive_wakeups(core: &Core, broker: &Broker, stop: &CancellationToken) {
    let mut wakes = broker.rabbit.wakeups();
    while let Some(body) = stop.run_until_cancelled(wakes.next()).await {
        let why = match message_body::parse(&body) {
            Ok(Message::RunCleanups) => {
                core.wakeups.cleanup.notify_one();
                continue;
            }
            Ok(Message::CheckOrphan(_)) => "it is a check, not a wake-up".to_owned(),
            Err(error) => error.to_string(),
        };
        metric::broker_unknown_message();
        match broker.rabbit.dead_letter(&body).await {
            Ok(()) => tracing::error!(
                job = WAKEUPS,
                error = why,
                action = "rejected",
                "a wake-up that cannot be read was added to the dead letters"
            ),
            Err(error) => tracing::error!(job = WAKEUPS, error = why, cause = %error, action = "dropped",
                "a wake-up that cannot be read could not be added to the dead letters"),
        }
    }
}

/// Publishes the checks again that are not due yet, because a fresh URL moved their time.
async fn publish_again(core: &Core, broker: &Broker, ids: &[JobId]) -> Result<(), VerbError> {
    let now = core.clock.now();
    let waiting = core.catalog.waiting_checks(ids).await?;
    let again: Vec<DelayedMessage> = waiting
        .iter()
        .filter(|check| check.run_at > now)
        .map(|check| delayed(check.job.to_string(), check, now))
        .collect();
    if again.is_empty() {
        return Ok(());
    }
    for outcome in broker.rabbit.publish_delayed(&again).await {
        outcome.map_err(|error| VerbError::Unavailable(error.to_string()))?;
    }
    Ok(())
}
