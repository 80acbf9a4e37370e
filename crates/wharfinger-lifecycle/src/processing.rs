//! The way of a confirmed file through its stages. Recovery resumes at the stage that stopped: what earlier stages
//! made is kept.

use crate::UnixMs;
use crate::event::Event;
use crate::file::{Change, File, JobEffect, Notice};
use crate::id::JobId;
use crate::limits::reason;
use crate::retention::{FailureRetention, RetentionStep};
use crate::stage::Stage;
use crate::transition::Refusal;

/// What confirmed files go through, and when somebody looks after those that do not get on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub stages: Vec<Stage>,
    /// Without progress for so long, a file is stuck.
    pub stuck_after_ms: i64,
    /// How often a stuck file is begun anew without a person's word.
    pub stuck_retries_max: u32,
    pub failures: FailureRetention,
}

impl Plan {
    /// Confirmed files are ready at once.
    pub fn without_stages() -> Plan {
        Plan {
            stages: Vec::new(),
            stuck_after_ms: 1_800_000,
            stuck_retries_max: 3,
            failures: FailureRetention { keep_ms: 30 * 86_400_000, warning_ms: 7 * 86_400_000 },
        }
    }

    pub(crate) fn stuck_at(&self, now: UnixMs) -> UnixMs {
        now.saturating_add(self.stuck_after_ms)
    }

    fn failure_due_at(&self, failed_at: UnixMs) -> UnixMs {
        match self.failures.fate(failed_at, None, failed_at) {
            RetentionStep::KeepUntil(at) => at,
            RetentionStep::Warn | RetentionStep::Delete => failed_at,
        }
    }
}

/// After so many lost workers in a row a file has failed.
pub const LOST_WORKERS_MAX: i64 = 3;

/// How long a file waits after it lost its worker for the n-th time in a row; none: it has failed. The pauses grow, so that
/// a crash loop of minutes does not use up the chances of a healthy file.
pub fn lost_worker_pause_ms(lost: i64) -> Option<i64> {
    match lost {
        ..=0 => Some(0),
        1 => Some(60_000),
        2 => Some(15 * 60_000),
        LOST_WORKERS_MAX.. => None,
    }
}

/// How long a file waits whose object the store does not give, after it has waited so long: twice as long in all each
/// time, at least half a minute and at most an hour.
pub fn refused_pause_ms(waited_ms: i64) -> i64 {
    waited_ms.clamp(30_000, 3_600_000)
}

/// Why a file has failed that lost so many workers.
pub fn lost_workers(lost: i64, stage: Option<Stage>) -> String {
    format!("{lost} workers in a row were lost during {}", stage.map_or("its stage", Stage::as_str))
}

/// A worker took it.
pub fn start(file: &File, stage: Stage, plan: &Plan, now: UnixMs) -> Result<Change, Refusal> {
    if file.stage != Some(stage) {
        return Err(Refusal::NotFrom { from: file.status, event: Event::Started(stage) });
    }
    let mut change = Change::of(file, now);
    change.step(Event::Started(stage), format!("{} began", stage.as_str()))?;
    change.after.next_check_at = Some(plan.stuck_at(now));
    Ok(change)
}

/// The stage ended well: the next one follows, or the file is ready.
pub fn finish(file: &File, plan: &Plan, now: UnixMs) -> Result<Change, Refusal> {
    let mut change = Change::of(file, now);
    let done = file.stage.map_or("it", Stage::as_str);
    let place = file.stages.iter().position(|stage| Some(*stage) == file.stage);
    let next = place.and_then(|place| file.stages.get(place + 1)).copied();
    change.after.stage = next;
    change.after.error = None;
    match next {
        Some(stage) => {
            change.step(Event::Finished, format!("{done} done, waits for {}", stage.as_str()))?;
            change.after.next_check_at = Some(plan.stuck_at(now));
        }
        None => {
            change.step(Event::Completed, format!("{done} done"))?;
            change.after.ready_at = Some(now);
            change.after.next_check_at = None;
            change.notice = Some(Notice::Ready);
        }
    }
    Ok(change)
}

/// An attempt ended badly, and there will be another.
pub fn retry(file: &File, why: &str, plan: &Plan, now: UnixMs) -> Result<Change, Refusal> {
    let mut change = Change::of(file, now);
    change.step(Event::Retried, why)?;
    change.after.next_check_at = Some(plan.stuck_at(now));
    Ok(change)
}

/// There will be no other attempt, unless a person says so.
pub fn fail(file: &File, why: &str, plan: &Plan, now: UnixMs) -> Result<Change, Refusal> {
    let mut change = Change::of(file, now);
    change.step(Event::Failed, why)?;
    change.after.error = Some(reason(why));
    change.after.failed_at = Some(now);
    change.after.warned_at = None;
    change.after.next_check_at = Some(plan.failure_due_at(now));
    change.notice = Some(Notice::Failed);
    Ok(change)
}

/// Nobody works on it, and nobody would: it waits again for the stage that stopped. What becomes of its job is
/// decided by [`crate::recovery`].
pub fn recover(file: &File, why: &str, plan: &Plan, now: UnixMs) -> Result<Change, Refusal> {
    let stage = stopped_at(file, plan);
    let mut change = Change::of(file, now);
    change.step(Event::Recovered, format!("{why}; waits for {} again", stage.as_str()))?;
    change.after.stage = Some(stage);
    change.after.retry_count = file.retry_count.saturating_add(1);
    change.after.next_check_at = Some(plan.stuck_at(now));
    Ok(change)
}

/// The same as long as it has not been done too often. Then the file has failed for good, and not for its owner alone.
pub fn recover_or_give_up(file: &File, why: &str, plan: &Plan, now: UnixMs) -> Result<Change, Refusal> {
    if file.retry_count < plan.stuck_retries_max {
        return recover(file, why, plan, now);
    }
    let stage = stopped_at(file, plan);
    let tried = match file.retry_count {
        0 => String::new(),
        1 => ", although it was begun anew once".to_owned(),
        times => format!(", although it was begun anew {times} times"),
    };
    let mut change = fail(file, &format!("{} did not come to an end{tried}", stage.as_str()), plan, now)?;
    // A redrive begins where it stopped.
    change.after.stage = Some(stage);
    change.notice = Some(Notice::GivenUp);
    Ok(change)
}

/// The stage that a file waits for or is worked on by. A row that does not say so was written by no verb of ours: then
/// its status tells, or it begins at the beginning.
fn stopped_at(file: &File, plan: &Plan) -> Stage {
    let of_status = || Stage::ALL.into_iter().find(|stage| stage.status() == file.status);
    let first = || file.stages.first().or(plan.stages.first()).copied();
    file.stage.or_else(of_status).or_else(first).unwrap_or(Stage::ALL[0])
}

/// A person sends a failed file through again, from the stage that stopped it.
pub fn redrive(file: &File, letter: JobId, plan: &Plan, now: UnixMs) -> Result<Change, Refusal> {
    let mut change = Change::of(file, now);
    change.step(Event::Redriven, "redriven")?;
    change.after.error = None;
    change.after.failed_at = None;
    change.after.warned_at = None;
    // Whoever sends it through again gives it all its chances.
    change.after.retry_count = 0;
    change.after.next_check_at = Some(plan.stuck_at(now));
    change.job = JobEffect::Redrive { job: letter };
    Ok(change)
}

/// Nobody will send it through again: it stays failed, and names no stage to begin at.
pub fn discard(file: &File, letter: JobId, now: UnixMs) -> Change {
    let mut change = Change::of(file, now);
    change.remark("its dead letter was discarded");
    change.after.stage = None;
    change.job = JobEffect::Remove { job: letter };
    change
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::file::{Announcement, Pin, StageJob, UploadPolicy, confirm, register};
    use crate::id::{TenantId, UserId};
    use crate::state::Status;

    const LETTER: JobId = JobId(uuid::Uuid::from_u128(7));

    fn plan(stages: &[Stage]) -> Plan {
        Plan { stages: stages.to_vec(), ..Plan::without_stages() }
    }

    fn confirmed(plan: &Plan) -> Change {
        let announced = Announcement {
            name: "a".into(),
            size: 1,
            content_type: None,
            checksum_sha256: None,
            metadata: None,
        };
        let policy = UploadPolicy {
            charge_bytes_min: 0,
            window_ms: 1,
            grace_ms: 1,
            min_rate_bytes: 1,
            tombstone_ms: 1,
            store_refuses_ended: true,
        };
        let file = register(
            "018f4e6e-7f3a-7000-8000-000000000001".parse().expect("a fixed id"),
            TenantId::new("t").expect("a fixed name"),
            UserId::new("u").expect("a fixed name"),
            announced,
            &policy,
            0,
        );
        let pin = Pin { etag: "e".into(), version_id: None };
        confirm(&file, pin, None, "confirmed", plan, 1).expect("confirmable")
    }

    #[test]
    fn a_file_goes_through_its_stages_in_order_and_is_ready() {
        let plan = plan(&[Stage::Extract, Stage::Scan]);
        let change = confirmed(&plan);
        let job = JobEffect::ReplaceAll(StageJob::new(Stage::Extract, 1));
        assert_eq!((change.after.status, change.job), (Status::Queued, job));
        let mut file = change.after;
        let mut seen = Vec::new();
        while let Some(stage) = file.stage {
            file = start(&file, stage, &plan, 2).expect("queued").after;
            seen.push(file.status);
            assert!(file.next_check_at.is_some());
            let change = finish(&file, &plan, 3).expect("working");
            file = change.after;
        }
        assert_eq!(seen, [Status::Extracting, Status::Scanning]);
        assert_eq!((file.status, file.ready_at, file.next_check_at), (Status::Ready, Some(3), None));
    }

    #[test]
    fn stages_that_are_configured_later_do_not_concern_it() {
        let file = confirmed(&plan(&[Stage::Scan])).after;
        let later = plan(&[Stage::Scan, Stage::Extract]);
        let file = start(&file, Stage::Scan, &later, 2).expect("queued").after;
        assert_eq!(finish(&file, &later, 3).expect("working").after.status, Status::Ready);
    }

    #[test]
    fn a_stuck_file_is_begun_anew_where_it_stopped_and_not_for_ever() {
        let plan = Plan { stuck_retries_max: 2, ..plan(&[Stage::Scan, Stage::Extract]) };
        let file = confirmed(&plan).after;
        let file = start(&file, Stage::Scan, &plan, 2).expect("queued").after;
        let file = finish(&file, &plan, 3).expect("working").after;
        let mut file = start(&file, Stage::Extract, &plan, 4).expect("queued").after;
        for retry in 1..=2 {
            let change = recover_or_give_up(&file, "its job was missing", &plan, 5).expect("working");
            assert_eq!((change.after.stage, change.notice), (Some(Stage::Extract), None));
            assert_eq!(change.steps[0].reason, "its job was missing; waits for extract again");
            file = change.after;
            assert_eq!(
                (file.status, file.stage, file.retry_count),
                (Status::Queued, Some(Stage::Extract), retry)
            );
            assert_eq!(file.next_check_at, Some(5 + plan.stuck_after_ms));
        }
        let change = recover_or_give_up(&file, "its job was missing", &plan, 6).expect("working");
        assert_eq!((change.after.status, change.after.retry_count), (Status::Failed, 2));
        assert_eq!(change.notice, Some(Notice::GivenUp));
        let said = "extract did not come to an end, although it was begun anew 2 times";
        assert_eq!(change.after.error.as_deref(), Some(said));
        // A person's word goes beyond the limit.
        let asked = recover(&file, "asked for", &plan, 6).expect("working").after;
        assert_eq!((asked.status, asked.retry_count), (Status::Queued, 3));
    }

    #[test]
    fn no_retries_means_failed_at_once() {
        let plan = Plan { stuck_retries_max: 0, ..plan(&[Stage::Scan]) };
        let change =
            recover_or_give_up(&confirmed(&plan).after, "its job was missing", &plan, 5).expect("queued");
        assert_eq!(change.after.status, Status::Failed);
        assert_eq!(change.after.error.as_deref(), Some("scan did not come to an end"));
    }

    #[test]
    fn a_row_that_names_no_stage_is_begun_where_it_can_be() {
        let plan = plan(&[Stage::Extract, Stage::Chunk]);
        let queued = confirmed(&plan).after;
        let resumed = |status: Status, stages: &[Stage], plan: &Plan| {
            let file = File { status, stage: None, stages: stages.to_vec(), ..queued.clone() };
            recover(&file, "its job was missing", plan, 5).expect("working").after.stage
        };
        assert_eq!(resumed(Status::Embedding, &[Stage::Scan], &plan), Some(Stage::Embed));
        assert_eq!(resumed(Status::Uploaded, &[Stage::Chunk], &plan), Some(Stage::Chunk));
        assert_eq!(resumed(Status::Queued, &[], &plan), Some(Stage::Extract));
        assert_eq!(resumed(Status::Queued, &[], &Plan::without_stages()), Some(Stage::Scan));
    }

    #[test]
    fn only_what_is_in_the_pipeline_is_recovered() {
        let plan = plan(&[Stage::Scan]);
        let queued = confirmed(&plan).after;
        for status in Status::ALL {
            let file = File { status, ..queued.clone() };
            let recovered = recover(&file, "its job was missing", &plan, 5);
            assert_eq!(recovered.is_ok(), status.is_working(), "{status}");
            let given_up = Plan { stuck_retries_max: 0, ..plan.clone() };
            let failed = recover_or_give_up(&file, "its job was missing", &given_up, 5);
            assert_eq!(failed.is_ok(), status.is_working(), "{status}");
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Start,
        Finish,
        Retry,
        Fail,
        Recover,
        RecoverOrGiveUp,
        Redrive,
    }

    const ACTS: [Act; 7] =
        [Act::Start, Act::Finish, Act::Retry, Act::Fail, Act::Recover, Act::RecoverOrGiveUp, Act::Redrive];

    proptest! {
        /// I15, and what recovery must not do: no stage is skipped or done again, the limit holds, and every job that is
        /// written is for the stage that the file waits for.
        #[test]
        fn random_ways_through_the_stages(
            acts in prop::collection::vec(prop::sample::select(ACTS.to_vec()), 0..80),
            retries_max in 0u32..4,
        ) {
            let plan = Plan { stuck_retries_max: retries_max, ..plan(&[Stage::Scan, Stage::Extract, Stage::Embed]) };
            let mut file = confirmed(&plan).after;
            let mut done = Vec::new();
            for (now, act) in acts.into_iter().enumerate() {
                let now = now as i64 + 10;
                let stage = file.stage;
                let change = match act {
                    Act::Start => start(&file, stage.unwrap_or(Stage::Scan), &plan, now),
                    Act::Finish => finish(&file, &plan, now),
                    Act::Retry => retry(&file, "hiccup", &plan, now),
                    Act::Fail => fail(&file, "encrypted", &plan, now),
                    Act::Recover => recover(&file, "lost", &plan, now),
                    Act::RecoverOrGiveUp => recover_or_give_up(&file, "lost", &plan, now),
                    Act::Redrive => redrive(&file, LETTER, &plan, now),
                };
                let Ok(change) = change else { continue };
                let after = &change.after;
                prop_assert_eq!(after.version, file.version + 1);
                prop_assert!(after.next_check_at.is_some() || after.status.is_at_rest());
                prop_assert!(after.retry_count >= file.retry_count || matches!(act, Act::Redrive));
                match act {
                    Act::Finish => done.extend(stage),
                    Act::RecoverOrGiveUp => {
                        prop_assert_eq!(after.status == Status::Failed, file.retry_count >= retries_max);
                        prop_assert_eq!(after.stage, stage);
                    }
                    _ => prop_assert_eq!(after.stage, stage),
                }
                prop_assert!(after.status != Status::Queued || after.stage.is_some());
                file = change.after;
            }
            prop_assert_eq!(&done[..], &file.stages[..done.len()]);
            prop_assert_eq!(file.status == Status::Ready, done.len() == file.stages.len());
        }
    }

    #[test]
    fn a_failed_file_is_redriven_at_the_stage_that_stopped_it() {
        let plan = plan(&[Stage::Scan, Stage::Extract]);
        let file = confirmed(&plan).after;
        let file = start(&file, Stage::Scan, &plan, 2).expect("queued").after;
        let file = finish(&file, &plan, 3).expect("working").after;
        let file = start(&file, Stage::Extract, &plan, 4).expect("queued").after;
        assert!(start(&file, Stage::Scan, &plan, 4).is_err());
        let failed = fail(&file, "encrypted", &plan, 5).expect("working");
        assert_eq!(failed.notice, Some(Notice::Failed));
        assert_eq!(failed.after.next_check_at, Some(5 + 23 * 86_400_000));
        let tried = File { retry_count: 3, ..failed.after };
        let again = redrive(&tried, LETTER, &plan, 6).expect("failed").after;
        assert_eq!((again.retry_count, again.failed_at), (0, None));
        assert_eq!((again.status, again.stage, again.error), (Status::Queued, Some(Stage::Extract), None));
    }
}
