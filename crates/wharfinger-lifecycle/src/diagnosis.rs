//! Decides whether a piece of work is stuck, and why. It compares the work with the job that should process it. Any
//! pipeline with queues and leases can use this module. Wharfinger uses it both to list and to recover stuck files.
//!
//! ```
//! use wharfinger_lifecycle::diagnosis::{Diagnosis, Fault, Job, JobState, Position, Work, diagnose};
//!
//! let work = Work { stage: Some("resize"), position: Position::InProgress("resize"), version: 3, last_progress_at: 0 };
//! let job = Job { stage: "resize", state: JobState::Leased { version: 3, until: 5_000, deadline_at: 60_000 } };
//! // The lease ended at 5,000, and no heartbeat extended it.
//! assert_eq!(diagnose(&work, &[job], 1_000, 10_000), Diagnosis::Stuck(Fault::LeaseExpired));
//! // Work with recent progress is never stuck.
//! assert_eq!(diagnose(&work, &[], 60_000, 10_000), Diagnosis::Progressing);
//! ```

use std::fmt;

use crate::UnixMs;
use crate::stage::Stage;
use crate::state::Status;

/// A piece of work that passes through stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work<S> {
    /// The stage that the work waits for or is in.
    pub stage: Option<S>,
    pub position: Position<S>,
    /// Every change of the work raises it.
    pub version: i64,
    /// The time of the last progress.
    pub last_progress_at: UnixMs,
}

/// The position that the work itself records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position<S> {
    /// In a queue.
    Waiting,
    /// Leased by a worker of this stage.
    InProgress(S),
    /// Neither queued nor leased, although it should be.
    Neither,
}

/// A job that should process the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job<S> {
    /// The stage whose queue contains the job.
    pub stage: S,
    pub state: JobState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Waits for a worker.
    Waiting,
    /// A worker holds the job until `until`. Heartbeats extend `until`, but not beyond `deadline_at`. `version` is the
    /// version of the work that the worker got.
    Leased { version: i64, until: UnixMs, deadline_at: UnixMs },
    /// A dead letter.
    Dead,
}

/// What is wrong with the jobs of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    NoJob,
    SeveralJobs,
    DeadJob,
    WrongStage,
    /// The job waits and the work does not, or the reverse.
    StateMismatch,
    StaleVersion,
    DeadlineExceeded,
    LeaseExpired,
}

impl Fault {
    /// The text for lists and histories.
    pub fn as_str(self) -> &'static str {
        match self {
            Fault::NoJob => "its job was missing",
            Fault::SeveralJobs => "it had several jobs",
            Fault::DeadJob => "its job was a dead letter",
            Fault::WrongStage => "its job was for another stage",
            Fault::StateMismatch => "its job was in a different state",
            Fault::StaleVersion => "its worker had an older version",
            Fault::DeadlineExceeded => "its worker exceeded the time limit",
            Fault::LeaseExpired => "its worker stopped sending heartbeats",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diagnosis {
    /// It made progress recently.
    Progressing,
    /// It made no progress for a long time, but its job is valid. More workers help; a recovery does not.
    Waiting,
    /// Its job is missing or invalid. A recovery with a new job helps.
    Stuck(Fault),
}

/// Diagnoses a piece of work. `jobs` are all its stage jobs; leave out jobs of other kinds.
pub fn diagnose<S: PartialEq>(
    work: &Work<S>,
    jobs: &[Job<S>],
    stuck_after_ms: i64,
    now: UnixMs,
) -> Diagnosis {
    if now < work.last_progress_at.saturating_add(stuck_after_ms) {
        return Diagnosis::Progressing;
    }
    fault(work, jobs, now).map_or(Diagnosis::Waiting, Diagnosis::Stuck)
}

/// The fault in the jobs of a piece of work, regardless of its last progress. `None` if there is exactly one valid job. A
/// valid job is in the queue of the work's stage. It waits like the work, or a worker holds it and is in time.
pub fn fault<S: PartialEq>(work: &Work<S>, jobs: &[Job<S>], now: UnixMs) -> Option<Fault> {
    let job = match jobs {
        [] => return Some(Fault::NoJob),
        [job] => job,
        _ => return Some(Fault::SeveralJobs),
    };
    if job.state == JobState::Dead {
        return Some(Fault::DeadJob);
    }
    if work.stage.as_ref() != Some(&job.stage) {
        return Some(Fault::WrongStage);
    }
    match (job.state, &work.position) {
        (JobState::Waiting, Position::Waiting) => None,
        (JobState::Leased { version, until, deadline_at }, Position::InProgress(stage))
            if *stage == job.stage =>
        {
            if version != work.version {
                Some(Fault::StaleVersion)
            } else if deadline_at <= now {
                Some(Fault::DeadlineExceeded)
            } else if until <= now {
                Some(Fault::LeaseExpired)
            } else {
                None
            }
        }
        _ => Some(Fault::StateMismatch),
    }
}

impl Position<Stage> {
    /// The position of a file by its status.
    pub fn of(status: Status) -> Position<Stage> {
        match Stage::ALL.into_iter().find(|stage| stage.status() == status) {
            Some(stage) => Position::InProgress(stage),
            None if status == Status::Queued => Position::Waiting,
            None => Position::Neither,
        }
    }
}
