//! A decided change of a file, with everything that the same transaction has to write.

use crate::UnixMs;
use crate::event::Event;
use crate::file::{EndReason, File};
use crate::id::JobId;
use crate::limits;
use crate::stage::Stage;
use crate::state::Status;
use crate::transition::{TransitionError, transition};

/// One line of a file's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    pub from: Option<Status>,
    pub to: Status,
    pub reason: String,
}

/// A request to delete the file's bytes: now, and once more at `finish_at` if an upload URL is still valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleanup {
    pub reason: EndReason,
    pub finish_at: UnixMs,
}

/// The notification that the owner of the file gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileNotification {
    Ready,
    Failed,
    /// Failed after too many recoveries. The cause may be the workers, so operators get an alert too.
    GivenUp,
    Quarantined,
    DeletionWarning,
    CleanedUp,
}

impl FileNotification {
    pub fn as_str(self) -> &'static str {
        match self {
            FileNotification::Ready => "file-ready",
            FileNotification::Failed | FileNotification::GivenUp => "file-failed",
            FileNotification::Quarantined => "file-quarantined",
            FileNotification::DeletionWarning => "file-deletion-warning",
            FileNotification::CleanedUp => "file-cleaned-up",
        }
    }
}

/// The effect of a change on the jobs of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEffect {
    Keep,
    /// Removes all jobs. A worker that holds one loses its lease.
    RemoveAll,
    /// Replaces all jobs by this one.
    ReplaceAll(NewStageJob),
    /// Moves the waiting and the leased jobs to this time. Otherwise a leased check that runs too early would remove
    /// its job when it ends.
    RescheduleAll(UnixMs),
    /// Moves this job to the queue of the next stage.
    NextStage {
        job: JobId,
        stage: Stage,
    },
    Remove {
        job: JobId,
    },
    Retry(JobRetry),
    /// Turns this job into a dead letter: no attempt follows.
    DeadLetter {
        job: JobId,
        reason: String,
        error: String,
    },
    /// Queues this dead letter again, with all its attempts.
    Redrive {
        job: JobId,
    },
}

/// A stage job to insert for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewStageJob {
    pub stage: Stage,
    pub run_at: UnixMs,
    pub attempts: i64,
    /// Number of workers in a row that were lost with this job.
    pub lost_leases: i64,
    pub last_error: Option<String>,
    /// Set for a dead letter.
    pub dead_reason: Option<String>,
}

impl NewStageJob {
    pub fn new(stage: Stage, run_at: UnixMs) -> NewStageJob {
        NewStageJob { stage, run_at, attempts: 0, lost_leases: 0, last_error: None, dead_reason: None }
    }
}

/// Returns a leased job to its queue for another attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRetry {
    pub job: JobId,
    pub run_at: UnixMs,
    /// `None` keeps the last error.
    pub error: Option<String>,
    /// Attempts to subtract because they do not count.
    pub uncounted_attempts: i64,
    pub lost_leases: i64,
    pub put_off_since: Option<UnixMs>,
}

/// A decided change. The catalog replaces `before` by `after` only if the row still has the version of `before`. The
/// same transaction writes everything else in this struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub before: File,
    pub after: File,
    pub history: Vec<HistoryEntry>,
    pub cleanup: Option<Cleanup>,
    pub notification: Option<FileNotification>,
    pub job: JobEffect,
}

impl Change {
    pub(crate) fn new(file: &File, now: UnixMs) -> Change {
        let mut after = file.clone();
        after.version += 1;
        after.updated_at = now;
        Change {
            before: file.clone(),
            after,
            history: Vec::new(),
            cleanup: None,
            notification: None,
            job: JobEffect::Keep,
        }
    }

    pub(crate) fn apply(&mut self, event: Event, reason: impl AsRef<str>) -> Result<(), TransitionError> {
        let from = self.after.status;
        let to = transition(from, event)?;
        self.after.status = to;
        self.history.push(HistoryEntry {
            from: Some(from),
            to,
            reason: limits::stored_reason(reason.as_ref()),
        });
        Ok(())
    }

    /// Adds a history line without a change of status.
    pub(crate) fn add_note(&mut self, reason: &str) {
        let status = self.after.status;
        self.history.push(HistoryEntry {
            from: Some(status),
            to: status,
            reason: limits::stored_reason(reason),
        });
    }

    /// Whether the change adds a job that a worker can lease.
    pub fn starts_stage(&self) -> bool {
        matches!(self.job, JobEffect::ReplaceAll(NewStageJob { dead_reason: None, .. }))
    }

    /// The file version of history entry `n`. The last entry has the new version of the file.
    pub fn version_of_entry(&self, n: usize) -> i64 {
        let later_entries = self.history.len().saturating_sub(n + 1);
        self.after.version - i64::try_from(later_entries).unwrap_or(i64::MAX)
    }

    pub fn refunded_bytes(&self) -> u64 {
        self.before.charged_bytes.saturating_sub(self.after.charged_bytes)
    }
}
