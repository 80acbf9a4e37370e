//! A change that was decided: what it makes of a file, and what follows from it in the same transaction.

use crate::UnixMs;
use crate::event::Event;
use crate::file::{EndReason, File};
use crate::id::JobId;
use crate::limits;
use crate::stage::Stage;
use crate::state::Status;
use crate::transition::{Refusal, transition};

/// One line of a file's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub from: Option<Status>,
    pub to: Status,
    pub reason: String,
}

/// An order to delete the file's bytes: at once, and (where a URL may still live) once more at `finish_at`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleanup {
    pub reason: EndReason,
    pub finish_at: UnixMs,
}

/// What the owner is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    Ready,
    Failed,
    /// Failed because nobody brought it to an end, which is no fault of its own: operators are told too.
    GivenUp,
    Quarantined,
    DeletionWarning,
    CleanedUp,
}

impl Notice {
    pub fn as_str(self) -> &'static str {
        match self {
            Notice::Ready => "file-ready",
            Notice::Failed | Notice::GivenUp => "file-failed",
            Notice::Quarantined => "file-quarantined",
            Notice::DeletionWarning => "file-deletion-warning",
            Notice::CleanedUp => "file-cleaned-up",
        }
    }
}

/// What a change does to the jobs of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEffect {
    Keep,
    /// All of them go: a worker that holds one finds its lease lost.
    RemoveAll,
    /// All of them go, and this one takes their place.
    ReplaceAll(StageJob),
    /// Those that wait, and those that are leased, wait until this time. A leased check that only found out that it is
    /// too early would otherwise be gone when it ends.
    RunAt(UnixMs),
    /// This job goes on to the next stage with its file.
    Next {
        job: JobId,
        stage: Stage,
    },
    Remove {
        job: JobId,
    },
    Retry(JobRetry),
    /// There will be no other attempt: this job is a dead letter.
    Bury {
        job: JobId,
        reason: String,
        error: String,
    },
    /// This dead letter waits again, with all its attempts.
    Redrive {
        job: JobId,
    },
}

/// A job of a stage that is written for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageJob {
    pub stage: Stage,
    pub run_at: UnixMs,
    pub attempts: i64,
    /// Workers in a row that did not come back.
    pub lost_leases: i64,
    pub last_error: Option<String>,
    /// Set for a dead letter.
    pub dead_reason: Option<String>,
}

impl StageJob {
    pub fn new(stage: Stage, run_at: UnixMs) -> StageJob {
        StageJob { stage, run_at, attempts: 0, lost_leases: 0, last_error: None, dead_reason: None }
    }
}

/// A leased job that waits for its next attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRetry {
    pub job: JobId,
    pub run_at: UnixMs,
    /// None: the last error stays as it is.
    pub error: Option<String>,
    /// Attempts that do not count.
    pub unspent: i64,
    pub lost_leases: i64,
    pub put_off_since: Option<UnixMs>,
}

/// A decided change: `after` replaces `before` if and only if `before` is still what the catalog holds, and
/// everything else here happens in the same transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub before: File,
    pub after: File,
    pub steps: Vec<Step>,
    pub cleanup: Option<Cleanup>,
    pub notice: Option<Notice>,
    pub job: JobEffect,
}

impl Change {
    pub(crate) fn of(file: &File, now: UnixMs) -> Change {
        let mut after = file.clone();
        after.version += 1;
        after.updated_at = now;
        Change {
            before: file.clone(),
            after,
            steps: Vec::new(),
            cleanup: None,
            notice: None,
            job: JobEffect::Keep,
        }
    }

    pub(crate) fn step(&mut self, event: Event, reason: impl AsRef<str>) -> Result<(), Refusal> {
        let from = self.after.status;
        let to = transition(from, event)?;
        self.after.status = to;
        self.steps.push(Step { from: Some(from), to, reason: limits::reason(reason.as_ref()) });
        Ok(())
    }

    /// A line of history for what happened without a change of status.
    pub(crate) fn remark(&mut self, reason: &str) {
        let status = self.after.status;
        self.steps.push(Step { from: Some(status), to: status, reason: limits::reason(reason) });
    }

    /// Whether a worker can take the file up now.
    pub fn starts_stage(&self) -> bool {
        matches!(self.job, JobEffect::ReplaceAll(StageJob { dead_reason: None, .. }))
    }

    /// The version that a step led to: the last of them has the file's new one.
    pub fn version_of_step(&self, n: usize) -> i64 {
        let after_it = self.steps.len().saturating_sub(n + 1);
        self.after.version - i64::try_from(after_it).unwrap_or(i64::MAX)
    }

    pub fn refunded_bytes(&self) -> u64 {
        self.before.charged_bytes.saturating_sub(self.after.charged_bytes)
    }
}
