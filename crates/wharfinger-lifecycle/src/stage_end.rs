//! How an attempt at a stage ends: what becomes of the file, and of the job that a worker held.

use crate::UnixMs;
use crate::file::{self, Change, File, JobEffect, JobRetry, Pin};
use crate::id::JobId;
use crate::key::ObjectKey;
use crate::limits::reason;
use crate::processing::{self, Plan};
use crate::stage::Stage;
use crate::transition::Refusal;

/// When something has been away for so long, waiting for it spends attempts.
const OUTAGE_MS_MAX: i64 = 6 * 3_600_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    Done(Output),
    /// Try again then, if an attempt is left.
    Retry {
        why: String,
        at: UnixMs,
    },
    /// Something that all files need is away: no attempt is spent, unless it has been away for too long.
    PutOff {
        why: String,
        at: UnixMs,
    },
    /// The file's own object could not be read: it waits as long as it has waited so far, within bounds. Other files
    /// do not wait. No attempt is spent, unless it has lasted for too long.
    Refused {
        why: String,
        jitter_ms: i64,
    },
    /// Trying again would not help.
    Failed {
        why: String,
    },
    /// Infected: the file can no longer be downloaded.
    Quarantined {
        why: String,
    },
    /// The worker has to stop, and the file has no part in that: no attempt is spent.
    GivenBack,
}

/// What a stage leaves for those after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// A JSON object to be kept, if there is something to say.
    pub said: Option<String>,
    /// The text that was extracted, in order.
    pub text: Option<Vec<TextPart>>,
}

/// One piece of a file's text, in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPart {
    pub key: ObjectKey,
    pub pin: Pin,
    pub bytes: u64,
}

/// What is known of the job under whose lease a stage was worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldJob {
    pub id: JobId,
    pub attempts: i64,
    pub max_attempts: i64,
    /// Workers in a row that did not come back, before this one.
    pub lost_leases: i64,
    /// Its lease lasted to its deadline: the worker was slow, not lost.
    pub is_late: bool,
    pub put_off_since: Option<UnixMs>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Next(Stage),
    Ready,
    Retried,
    Failed,
    Quarantined,
    /// The token was not the current one: nothing was changed.
    LeaseLost,
}

pub fn decide(
    file: &File,
    job: &HeldJob,
    ending: &Ending,
    plan: &Plan,
    now: UnixMs,
) -> Result<(Change, Ended), Refusal> {
    match ending {
        Ending::Done(_) => done(file, job, plan, now),
        Ending::Retry { why, at } if job.attempts < job.max_attempts => {
            let wait = JobRetry { run_at: *at, error: Some(reason(why)), ..first_wait(job) };
            retry(file, why, wait, plan, now)
        }
        Ending::Retry { why, .. } => bury(file, job, "attempts used up", why, plan, now),
        Ending::PutOff { why, at } => put_off(file, job, why, *at, plan, now),
        Ending::Refused { why, jitter_ms } => {
            let waited_ms = now.saturating_sub(job.put_off_since.unwrap_or(now));
            let at = now.saturating_add(processing::refused_pause_ms(waited_ms)).saturating_add(*jitter_ms);
            put_off(file, job, why, at, plan, now)
        }
        Ending::Failed { why } => bury(file, job, why, why, plan, now),
        Ending::Quarantined { why } => Ok((file::quarantine(file, why, now)?, Ended::Quarantined)),
        Ending::GivenBack => {
            let wait = JobRetry {
                run_at: now,
                unspent: 1,
                lost_leases: job.lost_leases,
                put_off_since: job.put_off_since,
                ..first_wait(job)
            };
            retry(file, "given back", wait, plan, now)
        }
    }
}

/// Its worker did not come back in time: that was an attempt. The pauses grow, and a file that loses its workers again and
/// again has failed.
pub fn lost_worker(
    file: &File,
    job: &HeldJob,
    retry_at: UnixMs,
    plan: &Plan,
    now: UnixMs,
) -> Result<(Change, Ended), Refusal> {
    let stage = file.stage.map_or("its stage", Stage::as_str);
    let (lost_leases, why) = match job.is_late {
        true => (0, format!("{stage} took longer than it may")),
        false => (job.lost_leases + 1, format!("the worker of {stage} did not come back")),
    };
    let run_at = match (lost_leases, processing::lost_worker_pause_ms(lost_leases)) {
        (0, _) => retry_at,
        (_, Some(pause_ms)) => now.saturating_add(pause_ms),
        (_, None) => {
            let why = processing::lost_workers(lost_leases, file.stage);
            return bury(file, job, &why, &why, plan, now);
        }
    };
    if job.attempts >= job.max_attempts {
        return bury(file, job, "attempts used up", &why, plan, now);
    }
    let wait = JobRetry { run_at, error: Some(reason(&why)), lost_leases, ..first_wait(job) };
    retry(file, &why, wait, plan, now)
}

fn done(file: &File, job: &HeldJob, plan: &Plan, now: UnixMs) -> Result<(Change, Ended), Refusal> {
    let mut change = processing::finish(file, plan, now)?;
    let (effect, ended) = match change.after.stage {
        Some(stage) => (JobEffect::Next { job: job.id, stage }, Ended::Next(stage)),
        None => (JobEffect::Remove { job: job.id }, Ended::Ready),
    };
    change.job = effect;
    Ok((change, ended))
}

/// A wait that counts as an attempt and forgets earlier outages.
fn first_wait(job: &HeldJob) -> JobRetry {
    JobRetry { job: job.id, run_at: 0, error: None, unspent: 0, lost_leases: 0, put_off_since: None }
}

fn put_off(
    file: &File,
    job: &HeldJob,
    why: &str,
    at: UnixMs,
    plan: &Plan,
    now: UnixMs,
) -> Result<(Change, Ended), Refusal> {
    let since = job.put_off_since.unwrap_or(now);
    let is_too_long = now.saturating_sub(since) >= OUTAGE_MS_MAX;
    if is_too_long && job.attempts >= job.max_attempts {
        return bury(file, job, "attempts used up", why, plan, now);
    }
    let wait = JobRetry {
        run_at: at,
        error: Some(reason(why)),
        unspent: i64::from(!is_too_long),
        put_off_since: Some(since),
        ..first_wait(job)
    };
    retry(file, why, wait, plan, now)
}

fn retry(
    file: &File,
    why: &str,
    wait: JobRetry,
    plan: &Plan,
    now: UnixMs,
) -> Result<(Change, Ended), Refusal> {
    let mut change = processing::retry(file, why, plan, now)?;
    change.job = JobEffect::Retry(wait);
    Ok((change, Ended::Retried))
}

fn bury(
    file: &File,
    job: &HeldJob,
    death: &str,
    why: &str,
    plan: &Plan,
    now: UnixMs,
) -> Result<(Change, Ended), Refusal> {
    let mut change = processing::fail(file, why, plan, now)?;
    change.job = JobEffect::Bury { job: job.id, reason: reason(death), error: reason(why) };
    Ok((change, Ended::Failed))
}
