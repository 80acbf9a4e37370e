//! Whether a piece of work is stuck, and why: what is known of it, next to what is known of the job that should move it
//! on. For any pipeline whose work waits in queues and is leased to workers. This is the one definition of stuck: lists and
//! recoveries of files both use it.
//!
//! ```
//! use wharfinger_lifecycle::diagnosis::{Diagnosis, Fault, Job, JobState, Position, Work, diagnose};
//!
//! let work = Work { stage: Some("resize"), position: Position::InWork("resize"), version: 3, moved_at: 0 };
//! let job = Job { stage: "resize", state: JobState::Leased { version: 3, until: 5_000, deadline_at: 60_000 } };
//! // The worker that holds it should have said something by now.
//! assert_eq!(diagnose(&work, &[job], 1_000, 10_000), Diagnosis::Stuck(Fault::WorkerGone));
//! // For as long as it has moved lately, nobody minds.
//! assert_eq!(diagnose(&work, &[], 60_000, 10_000), Diagnosis::OnItsWay);
//! ```

use std::fmt;

use crate::UnixMs;
use crate::stage::Stage;
use crate::state::Status;

/// A piece of work that goes through stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work<S> {
    /// The stage that it waits for or is in.
    pub stage: Option<S>,
    pub position: Position<S>,
    /// Raised at every change.
    pub version: i64,
    /// When it last got on.
    pub moved_at: UnixMs,
}

/// Where a piece of work says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position<S> {
    /// In a queue.
    Waiting,
    /// With a worker of a stage.
    InWork(S),
    /// In neither, though it should be.
    Nowhere,
}

/// What should move a piece of work on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job<S> {
    /// Whose queue it is in.
    pub stage: S,
    pub state: JobState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// For a worker.
    Waiting,
    /// Held by one, who works on this version of the work, has said that it is alive until then, and may not take longer
    /// than the deadline.
    Leased { version: i64, until: UnixMs, deadline_at: UnixMs },
    /// Given up.
    Dead,
}

/// What keeps a piece of work from getting on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    NoJob,
    SeveralJobs,
    DeadJob,
    OtherStage,
    /// The job waits and the work does not, or the other way round.
    Elsewhere,
    OlderVersion,
    OverDeadline,
    WorkerGone,
}

impl Fault {
    /// As people read it in lists and histories.
    pub fn as_str(self) -> &'static str {
        match self {
            Fault::NoJob => "its job was missing",
            Fault::SeveralJobs => "it had several jobs",
            Fault::DeadJob => "its job was dead",
            Fault::OtherStage => "its job was for another stage",
            Fault::Elsewhere => "its job was not where the file is",
            Fault::OlderVersion => "its worker held an older version of it",
            Fault::OverDeadline => "its worker took longer than it may",
            Fault::WorkerGone => "its worker did not come back",
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
    /// It has moved lately.
    OnItsWay,
    /// It has not moved for long, but its job is sound: more workers help, not mending.
    Waits,
    /// Nobody will move it on. Beginning it anew under another job helps.
    Stuck(Fault),
}

/// Looks at a piece of work and all jobs of stages that there are for it. Jobs of other kinds are not asked for.
pub fn diagnose<S: PartialEq>(
    work: &Work<S>,
    jobs: &[Job<S>],
    stuck_after_ms: i64,
    now: UnixMs,
) -> Diagnosis {
    if now < work.moved_at.saturating_add(stuck_after_ms) {
        return Diagnosis::OnItsWay;
    }
    fault(work, jobs, now).map_or(Diagnosis::Waits, Diagnosis::Stuck)
}

/// What is wrong with the jobs of a piece of work, however long it has not moved; none where there is one and it is
/// sound: in the queue of the work's stage, and either it waits with the work or a worker holds both and is in time.
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
        return Some(Fault::OtherStage);
    }
    match (job.state, &work.position) {
        (JobState::Waiting, Position::Waiting) => None,
        (JobState::Leased { version, until, deadline_at }, Position::InWork(stage))
            if *stage == job.stage =>
        {
            if version != work.version {
                Some(Fault::OlderVersion)
            } else if deadline_at <= now {
                Some(Fault::OverDeadline)
            } else if until <= now {
                Some(Fault::WorkerGone)
            } else {
                None
            }
        }
        _ => Some(Fault::Elsewhere),
    }
}

impl Position<Stage> {
    /// Where a file in the pipeline is by its status.
    pub fn of(status: Status) -> Position<Stage> {
        match Stage::ALL.into_iter().find(|stage| stage.status() == status) {
            Some(stage) => Position::InWork(stage),
            None if status == Status::Queued => Position::Waiting,
            None => Position::Nowhere,
        }
    }
}
