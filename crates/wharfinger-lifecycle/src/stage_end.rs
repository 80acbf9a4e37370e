//! The end of an attempt at a stage: what happens to the file and to the job of the worker.

use crate::UnixMs;
use crate::file::{Change, File, JobEffect, JobRetry, Pin};
use crate::id::JobId;
use crate::key::ObjectKey;
use crate::limits::stored_reason;
use crate::processing::{self, PipelinePlan};
use crate::quarantine::{QuarantineCause, quarantine};
use crate::stage::Stage;
use crate::text_status::UnsupportedRule;
use crate::transition::TransitionError;

/// After an outage of this length, waiting costs attempts.
const OUTAGE_MS_MAX: i64 = 6 * 3_600_000;

/// The reason in the history of a file whose type can have text but that has none, for example a scanned PDF.
const NO_TEXT: &str = "the file has no text";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The stage succeeded.
    Done(StageOutput),
    /// The attempt failed: try again at `at` if an attempt is left.
    Retry { why: String, at: UnixMs },
    /// A service that all files need is unavailable. This costs no attempt, unless the outage lasts too long.
    Postponed { why: String, at: UnixMs },
    /// The store cannot read the object of this file. The file waits with growing pauses; other files do not wait. This
    /// costs no attempt, unless it lasts too long.
    ObjectUnreadable { why: String, jitter_ms: i64 },
    /// The extract stage cannot read text from this type of file. The plan says whether the file continues without text.
    Unsupported { why: String, output: StageOutput },
    /// Another attempt would not help.
    Failed { why: String },
    /// Infected, or changed in the store: the file can no longer be downloaded.
    Quarantined { cause: QuarantineCause, why: String },
    /// The worker returns the job, for example because it shuts down. This costs no attempt.
    Released,
}

/// The output of a stage for later stages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageOutput {
    /// A JSON object to store, for example the number of pages.
    pub details: Option<String>,
    /// The text that was extracted, in order. No parts: there is no text.
    pub text: Option<Vec<TextPart>>,
}

impl StageOutput {
    fn no_text(&self) -> Option<&'static str> {
        self.text.as_ref().filter(|parts| parts.is_empty()).map(|_| NO_TEXT)
    }
}

impl AttemptOutcome {
    /// The output to store when the attempt ends in this way.
    pub fn output(&self, plan: &PipelinePlan) -> Option<&StageOutput> {
        match self {
            AttemptOutcome::Done(output) => Some(output),
            AttemptOutcome::Unsupported { output, .. } if plan.unsupported == UnsupportedRule::Ready => {
                Some(output)
            }
            _ => None,
        }
    }
}

/// One part of a file's text, in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPart {
    pub key: ObjectKey,
    pub pin: Pin,
    pub bytes: u64,
}

/// The leased job of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldJob {
    pub id: JobId,
    pub attempts: i64,
    pub max_attempts: i64,
    /// Number of workers in a row that were lost before this one.
    pub lost_leases: i64,
    /// The worker sent heartbeats until the deadline: it was slow, not lost.
    pub deadline_exceeded: bool,
    pub put_off_since: Option<UnixMs>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionResult {
    Next(Stage),
    Ready,
    Retried,
    Failed,
    Quarantined,
    /// The lease token was not current: nothing was changed.
    LeaseLost,
}

pub fn decide(
    file: &File,
    job: &HeldJob,
    outcome: &AttemptOutcome,
    plan: &PipelinePlan,
    now: UnixMs,
) -> Result<(Change, CompletionResult), TransitionError> {
    match outcome {
        AttemptOutcome::Done(output) => done(file, job, output.no_text(), plan, now),
        AttemptOutcome::Unsupported { why, .. } => match plan.unsupported {
            UnsupportedRule::Ready => done(file, job, Some(why.as_str()), plan, now),
            UnsupportedRule::Failed => dead_letter(file, job, why, why, plan, now),
        },
        AttemptOutcome::Retry { why, at } if job.attempts < job.max_attempts => {
            let job_retry = JobRetry { run_at: *at, error: Some(stored_reason(why)), ..counted_retry(job) };
            retry(file, why, job_retry, plan, now)
        }
        AttemptOutcome::Retry { why, .. } => dead_letter(file, job, "no attempts left", why, plan, now),
        AttemptOutcome::Postponed { why, at } => postpone(file, job, why, *at, plan, now),
        AttemptOutcome::ObjectUnreadable { why, jitter_ms } => {
            let waited_ms = now.saturating_sub(job.put_off_since.unwrap_or(now));
            let at = now
                .saturating_add(processing::unreadable_object_pause_ms(waited_ms))
                .saturating_add(*jitter_ms);
            postpone(file, job, why, at, plan, now)
        }
        AttemptOutcome::Failed { why } => dead_letter(file, job, why, why, plan, now),
        AttemptOutcome::Quarantined { cause, why } => {
            Ok((quarantine(file, *cause, why, plan, now)?, CompletionResult::Quarantined))
        }
        AttemptOutcome::Released => {
            let job_retry = JobRetry {
                run_at: now,
                uncounted_attempts: 1,
                lost_leases: job.lost_leases,
                put_off_since: job.put_off_since,
                ..counted_retry(job)
            };
            retry(file, "returned to the queue", job_retry, plan, now)
        }
    }
}

/// The lease of the worker expired. This costs an attempt. The pauses grow, and a file that loses too many workers in a row
/// fails.
pub fn lost_worker(
    file: &File,
    job: &HeldJob,
    retry_at: UnixMs,
    plan: &PipelinePlan,
    now: UnixMs,
) -> Result<(Change, CompletionResult), TransitionError> {
    let stage = file.stage.map_or("its stage", Stage::as_str);
    let (lost_leases, why) = match job.deadline_exceeded {
        true => (0, format!("{stage} exceeded the time limit")),
        false => (job.lost_leases + 1, format!("the worker for {stage} stopped sending heartbeats")),
    };
    let run_at = match (lost_leases, processing::lost_worker_pause_ms(lost_leases)) {
        (0, _) => retry_at,
        (_, Some(pause_ms)) => now.saturating_add(pause_ms),
        (_, None) => {
            let why = processing::lost_workers_message(lost_leases, file.stage);
            return dead_letter(file, job, &why, &why, plan, now);
        }
    };
    if job.attempts >= job.max_attempts {
        return dead_letter(file, job, "no attempts left", &why, plan, now);
    }
    let job_retry = JobRetry { run_at, error: Some(stored_reason(&why)), lost_leases, ..counted_retry(job) };
    retry(file, &why, job_retry, plan, now)
}

/// `no_text` says why the extract stage found no text.
fn done(
    file: &File,
    job: &HeldJob,
    no_text: Option<&str>,
    plan: &PipelinePlan,
    now: UnixMs,
) -> Result<(Change, CompletionResult), TransitionError> {
    let mut change = match (file.stage, no_text) {
        (Some(Stage::Extract), None) => processing::finish_with_text(file, plan, now)?,
        (Some(Stage::Extract), Some(why)) => processing::finish_without_text(file, why, plan, now)?,
        _ => processing::finish(file, plan, now)?,
    };
    let (effect, result) = match change.after.stage {
        Some(stage) => (JobEffect::NextStage { job: job.id, stage }, CompletionResult::Next(stage)),
        None => (JobEffect::Remove { job: job.id }, CompletionResult::Ready),
    };
    change.job = effect;
    Ok((change, result))
}

/// A retry that counts as an attempt and ends an outage.
fn counted_retry(job: &HeldJob) -> JobRetry {
    JobRetry {
        job: job.id,
        run_at: 0,
        error: None,
        uncounted_attempts: 0,
        lost_leases: 0,
        put_off_since: None,
    }
}

fn postpone(
    file: &File,
    job: &HeldJob,
    why: &str,
    at: UnixMs,
    plan: &PipelinePlan,
    now: UnixMs,
) -> Result<(Change, CompletionResult), TransitionError> {
    let since = job.put_off_since.unwrap_or(now);
    let is_too_long = now.saturating_sub(since) >= OUTAGE_MS_MAX;
    if is_too_long && job.attempts >= job.max_attempts {
        return dead_letter(file, job, "no attempts left", why, plan, now);
    }
    let job_retry = JobRetry {
        run_at: at,
        error: Some(stored_reason(why)),
        uncounted_attempts: i64::from(!is_too_long),
        put_off_since: Some(since),
        ..counted_retry(job)
    };
    retry(file, why, job_retry, plan, now)
}

fn retry(
    file: &File,
    why: &str,
    job_retry: JobRetry,
    plan: &PipelinePlan,
    now: UnixMs,
) -> Result<(Change, CompletionResult), TransitionError> {
    let mut change = processing::retry(file, why, plan, now)?;
    change.job = JobEffect::Retry(job_retry);
    Ok((change, CompletionResult::Retried))
}

fn dead_letter(
    file: &File,
    job: &HeldJob,
    dead_reason: &str,
    why: &str,
    plan: &PipelinePlan,
    now: UnixMs,
) -> Result<(Change, CompletionResult), TransitionError> {
    let mut change = processing::fail(file, why, plan, now)?;
    change.job =
        JobEffect::DeadLetter { job: job.id, reason: stored_reason(dead_reason), error: stored_reason(why) };
    Ok((change, CompletionResult::Failed))
}
