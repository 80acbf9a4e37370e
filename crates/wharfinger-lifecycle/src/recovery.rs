//! Files that no worker will move on: which of them are stuck is decided by [`crate::diagnosis`], what becomes of them is
//! decided here. Another job takes the place of what they had, so that a worker that still holds the old one holds
//! nothing; a file that was recovered too often has failed.

use crate::UnixMs;
use crate::diagnosis::{self, Fault, Job, JobState, Position, Work};
use crate::file::{Change, File, JobEffect, StageJob};
use crate::limits::reason;
use crate::processing::{self, Plan};
use crate::stage::Stage;
use crate::state::Status;
use crate::transition::Refusal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recoverable {
    /// Only a file whose check is due, and not more often than the plan says.
    Overdue,
    /// A file that a person named, at any time and however often it was recovered.
    Named,
}

/// A job of a stage, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownJob {
    pub job: Job<Stage>,
    pub attempts: i64,
    /// Workers in a row that did not come back.
    pub lost_leases: i64,
}

impl KnownJob {
    /// The same with a lease that is over by now. A worker that was only slow counts as come back.
    fn lost_by(&self, now: UnixMs) -> i64 {
        match self.job.state {
            JobState::Leased { until, deadline_at, .. } if until <= now => match deadline_at <= until {
                true => 0,
                false => self.lost_leases + 1,
            },
            _ => self.lost_leases,
        }
    }
}

/// What a file was found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No longer in the pipeline, or not due.
    MovedOn,
    /// Its job is sound and waits.
    Waits,
    /// A worker holds it and is in time.
    InWork { until: UnixMs },
    /// Stuck: what is to be done.
    Stuck(Box<Change>),
}

/// What is wrong with the jobs of a file; none where there is one and it is sound.
pub fn fault_of(
    status: Status,
    stage: Option<Stage>,
    version: i64,
    jobs: &[KnownJob],
    now: UnixMs,
) -> Option<Fault> {
    let jobs: Vec<Job<Stage>> = jobs.iter().map(|known| known.job.clone()).collect();
    let work = Work { stage, position: Position::of(status), version, moved_at: now };
    diagnosis::fault(&work, &jobs, now)
}

pub fn decide(
    file: &File,
    jobs: &[KnownJob],
    what: Recoverable,
    plan: &Plan,
    now: UnixMs,
) -> Result<Found, Refusal> {
    let is_due = what == Recoverable::Named || file.next_check_at.is_some_and(|at| at <= now);
    if !file.status.is_working() || !is_due {
        return Ok(Found::MovedOn);
    }
    let Some(fault) = fault_of(file.status, file.stage, file.version, jobs, now) else {
        let lease = jobs.iter().find_map(|known| match known.job.state {
            JobState::Leased { until, .. } => Some(until),
            JobState::Waiting | JobState::Dead => None,
        });
        return Ok(lease.map_or(Found::Waits, |until| Found::InWork { until }));
    };
    // Lost workers are counted here too, or a file that kills its workers would be recovered for ever.
    let lost_leases = jobs.iter().map(|job| job.lost_by(now)).max().unwrap_or(0);
    let is_lost = lost_leases > 0 && processing::lost_worker_pause_ms(lost_leases).is_none();
    let fault = fault.as_str();
    let mut change = match what {
        Recoverable::Overdue if is_lost => {
            processing::fail(file, &processing::lost_workers(lost_leases, file.stage), plan, now)?
        }
        Recoverable::Overdue => processing::recover_or_give_up(file, fault, plan, now)?,
        Recoverable::Named => processing::recover(file, fault, plan, now)?,
    };
    let is_dead = !change.after.status.is_working();
    let death = match is_lost {
        true => processing::lost_workers(lost_leases, change.after.stage),
        false => "recoveries used up".to_owned(),
    };
    let pause_ms = match what {
        Recoverable::Named => 0,
        Recoverable::Overdue => processing::lost_worker_pause_ms(lost_leases).unwrap_or(0),
    };
    let attempts = jobs.iter().map(|job| job.attempts).max().unwrap_or(0);
    change.job = JobEffect::ReplaceAll(StageJob {
        stage: change.after.stage.unwrap_or(Stage::ALL[0]),
        run_at: now.saturating_add(pause_ms),
        attempts: if is_dead { attempts } else { 0 },
        lost_leases,
        last_error: Some(reason(fault)),
        dead_reason: is_dead.then(|| reason(&death)),
    });
    Ok(Found::Stuck(Box::new(change)))
}
