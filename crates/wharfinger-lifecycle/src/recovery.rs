//! Recovers stuck files. [`crate::diagnosis`] decides which files are stuck. A recovery replaces all jobs of the file, so
//! a worker that still holds an old job loses its lease. A file that was recovered too often fails.

use crate::UnixMs;
use crate::diagnosis::{self, Fault, Job, JobState, Position, Work};
use crate::file::{Change, File, JobEffect, NewStageJob};
use crate::limits::stored_reason;
use crate::processing::{self, PipelinePlan};
use crate::stage::Stage;
use crate::state::Status;
use crate::transition::TransitionError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryTrigger {
    /// The sweep: only files whose check is due, up to the retry limit.
    Overdue,
    /// A person, for one file: at any time, without a retry limit.
    Manual,
    /// A person, for all stuck files: at any time, up to the retry limit. Files at the limit are left to the sweep.
    ManualForAll,
}

/// The columns of a stage job that a recovery needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    pub job: Job<Stage>,
    pub attempts: i64,
    /// Number of workers in a row that were lost with this job.
    pub lost_leases: i64,
}

impl JobRecord {
    /// The lost workers, including one whose lease has expired by now. A worker that reached its deadline was slow, not
    /// lost.
    fn lost_leases_at(&self, now: UnixMs) -> i64 {
        match self.job.state {
            JobState::Leased { until, deadline_at, .. } if until <= now => match deadline_at <= until {
                true => 0,
                false => self.lost_leases + 1,
            },
            _ => self.lost_leases,
        }
    }
}

/// The decision about one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryDecision {
    /// The file has left the pipeline, its check is not due, or it has no recoveries left.
    NotApplicable,
    /// Its job is valid and waits for a worker.
    Waiting,
    /// A worker holds the job and is in time.
    InProgress { until: UnixMs },
    /// The file is stuck: the change that recovers or fails it.
    Stuck(Box<Change>),
}

/// The fault in the jobs of a file. `None` if there is exactly one valid job.
pub fn fault_of(
    status: Status,
    stage: Option<Stage>,
    version: i64,
    jobs: &[JobRecord],
    now: UnixMs,
) -> Option<Fault> {
    let jobs: Vec<Job<Stage>> = jobs.iter().map(|record| record.job.clone()).collect();
    let work = Work { stage, position: Position::of(status), version, last_progress_at: now };
    diagnosis::fault(&work, &jobs, now)
}

pub fn decide(
    file: &File,
    jobs: &[JobRecord],
    trigger: RecoveryTrigger,
    plan: &PipelinePlan,
    now: UnixMs,
) -> Result<RecoveryDecision, TransitionError> {
    let is_due = trigger != RecoveryTrigger::Overdue || file.next_check_at.is_some_and(|at| at <= now);
    if !file.status.is_working() || !is_due {
        return Ok(RecoveryDecision::NotApplicable);
    }
    let Some(fault) = fault_of(file.status, file.stage, file.version, jobs, now) else {
        let lease = jobs.iter().find_map(|record| match record.job.state {
            JobState::Leased { until, .. } => Some(until),
            JobState::Waiting | JobState::Dead => None,
        });
        return Ok(lease.map_or(RecoveryDecision::Waiting, |until| RecoveryDecision::InProgress { until }));
    };
    if trigger == RecoveryTrigger::ManualForAll && file.retry_count >= plan.stuck_retries_max {
        return Ok(RecoveryDecision::NotApplicable);
    }
    // Lost workers count here too. Otherwise a file that kills its workers would be recovered forever.
    let lost_leases = jobs.iter().map(|job| job.lost_leases_at(now)).max().unwrap_or(0);
    let is_lost = lost_leases > 0 && processing::lost_worker_pause_ms(lost_leases).is_none();
    let fault = fault.as_str();
    let mut change = match trigger {
        RecoveryTrigger::Overdue if is_lost => {
            processing::fail(file, &processing::lost_workers_message(lost_leases, file.stage), plan, now)?
        }
        RecoveryTrigger::Overdue => processing::recover_or_give_up(file, fault, plan, now)?,
        RecoveryTrigger::Manual | RecoveryTrigger::ManualForAll => {
            processing::recover(file, fault, plan, now)?
        }
    };
    let is_dead = !change.after.status.is_working();
    let dead_reason = match is_lost {
        true => processing::lost_workers_message(lost_leases, change.after.stage),
        false => "no recoveries left".to_owned(),
    };
    let pause_ms = match trigger {
        RecoveryTrigger::Manual | RecoveryTrigger::ManualForAll => 0,
        RecoveryTrigger::Overdue => processing::lost_worker_pause_ms(lost_leases).unwrap_or(0),
    };
    let attempts = jobs.iter().map(|job| job.attempts).max().unwrap_or(0);
    change.job = JobEffect::ReplaceAll(NewStageJob {
        stage: change.after.stage.unwrap_or(Stage::ALL[0]),
        run_at: now.saturating_add(pause_ms),
        attempts: if is_dead { attempts } else { 0 },
        lost_leases,
        last_error: Some(stored_reason(fault)),
        dead_reason: is_dead.then(|| stored_reason(&dead_reason)),
    });
    Ok(RecoveryDecision::Stuck(Box::new(change)))
}
