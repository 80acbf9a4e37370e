//! Delayed checks by way of the broker: what the outbox holds is published, what comes back when it is due is claimed
//! in the catalog, acknowledged at once, and only then run. The poller runs whatever the broker loses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{CatalogError, Destination, JobClaim, OutboxPayload, OutboxLine};
use wharfinger_engines::rabbitmq::{Delayed, Due, DueMessages, Rabbit, RabbitOptions};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::JobId;
use wharfinger_lifecycle::retry::Backoff;

use crate::checks;
use crate::config::Settings;
use crate::core::Core;
use crate::core::OpenError;
use crate::core::VerbError;
use crate::telemetry::metric;
use crate::uploads::Uploads;
use crate::uploads::init::CHECK_QUEUE;

const CLAIM_LINES: usize = 200;
/// Whoever dies with lines in hand holds them up this long.
const HIDDEN_MS: i64 = 30_000;
const LATER: Backoff = Backoff { base_ms: 1_000, cap_ms: 60_000 };
/// Deliveries that one process may hold unacknowledged, and that are claimed together.
const PREFETCH: u16 = 64;
/// Checks come in showers, as uploads do: one claim for many of them.
const GATHERS: Duration = Duration::from_millis(20);
/// How much later than it was due a check is run by the poller, while the broker is there to bring it.
const SLACK_MS: i64 = 30_000;
/// Wake-ups of one kind in one.
pub const WAKE_GATHERS: Duration = Duration::from_millis(20);
pub const CLEANUPS: &str = "cleanups";

pub fn rabbit_options(settings: &Settings, faults: &Faults) -> Option<RabbitOptions> {
    settings.broker_rabbit.as_ref().map(|url| RabbitOptions {
        url: url.clone(),
        delayed_exchange: settings.amqp_delayed_exchange,
        instance: settings.instance_id.clone(),
        faults: faults.clone(),
    })
}

/// The broker, as this process sees it.
pub struct Broker {
    pub rabbit: Rabbit,
    is_up: AtomicBool,
}

impl Broker {
    /// Connects and declares the queues. A broker that is away when the program starts is no reason not to start.
    pub async fn open(settings: &Settings, faults: &Faults) -> Result<Option<Broker>, OpenError> {
        let Some(options) = rabbit_options(settings, faults) else { return Ok(None) };
        match Rabbit::open(options.clone()).await {
            Ok(rabbit) => Ok(Some(Broker::new(rabbit, true))),
            Err(error) if error.is_retryable() => {
                tracing::error!(backend = "broker", error = %error,
                    "WHARFINGER_BROKER_URL: delayed checks are polled for until the broker answers");
                Ok(Some(Broker::new(Rabbit::lazy(options), false)))
            }
            Err(error) => Err(OpenError::Broker(error.to_string())),
        }
    }

    fn new(rabbit: Rabbit, is_up: bool) -> Broker {
        metric::broker_up(is_up);
        Broker { rabbit, is_up: AtomicBool::new(is_up) }
    }

    /// What is to be left to the broker by whoever polls.
    pub fn slack_ms(&self) -> i64 {
        if self.is_up() { SLACK_MS } else { 0 }
    }

    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    fn learn(&self, now_up: bool, why: Option<&str>) {
        if self.is_up.swap(now_up, Ordering::Relaxed) != now_up {
            metric::broker_up(now_up);
            match why {
                None => tracing::info!(backend = "broker", "the broker answers again"),
                Some(why) => tracing::error!(
                    backend = "broker",
                    error = why,
                    "the broker is away: delayed checks are polled for until it answers"
                ),
            }
        }
    }

    /// Whether it is there, for those who leave work to it.
    pub async fn look_after(&self) {
        match self.rabbit.check().await {
            Ok(()) => self.learn(true, None),
            Err(error) => self.learn(false, Some(&error.to_string())),
        }
    }
}

/// Publishes all that is due; answers how many lines arrived.
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
        let messages: Vec<Delayed> = lines.iter().filter_map(|line| message(line, now)).collect();
        let outcomes = broker.rabbit.publish_delayed(&messages).await;
        let (mut done, mut late, mut why) = (Vec::new(), Vec::new(), String::new());
        for (line, outcome) in lines.iter().zip(outcomes) {
            match outcome {
                Ok(()) => done.push(line.id.clone()),
                Err(error) => {
                    why = error.to_string();
                    late.push(line.clone());
                }
            }
        }
        arrived += done.len() as u64;
        core.catalog.outbox_delivered(done).await?;
        if let Some(first) = late.first() {
            let delay = LATER.delay_ms(first.attempts + 1, rand::random());
            let until = core.clock.now().saturating_add(i64::try_from(delay).unwrap_or(i64::MAX / 4));
            let ids = late.into_iter().map(|line| line.id).collect();
            core.catalog.delay_outbox(ids, &why, until).await?;
            broker.learn(false, Some(&why));
            return Ok(arrived);
        }
    }
}

fn message(line: &OutboxLine, now: UnixMs) -> Option<Delayed> {
    match line.payload {
        OutboxPayload::Check { job, due_at } => Some(delayed(line.id.clone(), job, due_at, now)),
        OutboxPayload::Refund { .. }
        | OutboxPayload::Notice { .. }
        | OutboxPayload::Alert { .. }
        | OutboxPayload::Event { .. } => None,
    }
}

fn delayed(id: String, job: JobId, due_at: UnixMs, now: UnixMs) -> Delayed {
    let delay_ms = u64::try_from(due_at.saturating_sub(now)).unwrap_or(0);
    Delayed { id, body: job.to_string(), delay_ms }
}

/// Runs checks as they come due, until told to stop.
pub async fn consume(uploads: &Uploads, broker: &Broker, stop: &CancellationToken) {
    let mut due = broker.rabbit.due(PREFETCH);
    while let Some(messages) = stop.run_until_cancelled(gather(&mut due)).await {
        if let Err(error) = run(uploads, broker, messages).await {
            tracing::warn!(job = CHECK_QUEUE, error = %error.with_cause(), "checks that came due are left to the poller");
        }
    }
}

async fn gather(due: &mut DueMessages) -> Vec<Due> {
    let mut messages = vec![due.next().await];
    let _ = tokio::time::timeout(GATHERS, async {
        while messages.len() < usize::from(PREFETCH) {
            messages.push(due.next().await);
        }
    })
    .await;
    messages
}

/// The claim is what counts: whoever has it runs the check, however often its message comes. A message is acknowledged
/// even where the catalog could not be asked: held back it would do no more than the poller does.
async fn run(uploads: &Uploads, broker: &Broker, messages: Vec<Due>) -> Result<(), VerbError> {
    let core = &uploads.core;
    let (mut ids, mut known) = (Vec::new(), Vec::new());
    for message in messages {
        match message.body.parse::<JobId>() {
            Ok(id) => {
                ids.push(id);
                known.push(message);
            }
            Err(_) => {
                tracing::error!(job = CHECK_QUEUE, "a message that names no job goes to the dead letters");
                let _ = message.refuse().await;
            }
        }
    }
    let claim = JobClaim { limit: ids.len(), ..checks::claim(core) };
    let claimed = core.catalog.claim_jobs_by_id(claim, ids.clone()).await;
    let early = match &claimed {
        Ok(jobs) if jobs.len() < ids.len() => send_back(core, broker, &ids).await,
        _ => Ok(()),
    };
    for message in known {
        // One that is not acknowledged comes again, and finds nothing to claim.
        let _ = message.ack().await;
    }
    checks::run(uploads, claimed?).await?;
    early
}

/// Those whose time was put off meanwhile, by a fresh URL say, go round once more.
async fn send_back(core: &Core, broker: &Broker, ids: &[JobId]) -> Result<(), VerbError> {
    let now = core.clock.now();
    let waiting = core.catalog.waiting_jobs(ids).await?;
    let again: Vec<Delayed> = waiting
        .into_iter()
        .filter(|(_, run_at)| *run_at > now)
        .map(|(job, run_at)| delayed(job.to_string(), job, run_at, now))
        .collect();
    if again.is_empty() {
        return Ok(());
    }
    for outcome in broker.rabbit.publish_delayed(&again).await {
        outcome.map_err(|error| VerbError::Unavailable(error.to_string()))?;
    }
    Ok(())
}
