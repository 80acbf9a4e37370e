//! Moves a confirmed file through its processing stages. Recovery resumes at the stage that stopped and keeps the
//! results of earlier stages.

use crate::UnixMs;
use crate::event::Event;
use crate::file::{Change, File, FileNotification, JobEffect, NewStageJob};
use crate::id::JobId;
use crate::limits::stored_reason;
use crate::retention::FailureRetention;
use crate::stage::{Stage, show_list};
use crate::stage_choice;
use crate::text_status::{TextStatus, UnsupportedRule};
use crate::transition::TransitionError;

/// The stages of confirmed files, and when a file counts as stuck or is deleted after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelinePlan {
    pub stages: Vec<Stage>,
    pub unsupported: UnsupportedRule,
    /// A file without progress for this long is stuck.
    pub stuck_after_ms: i64,
    /// How often a stuck file is recovered automatically.
    pub stuck_retries_max: u32,
    pub failures: FailureRetention,
    /// `None`: quarantined files are never deleted.
    pub quarantine: Option<FailureRetention>,
}

impl PipelinePlan {
    /// Confirmed files are ready immediately.
    pub fn without_stages() -> PipelinePlan {
        PipelinePlan {
            stages: Vec::new(),
            unsupported: UnsupportedRule::Ready,
            stuck_after_ms: 1_800_000,
            stuck_retries_max: 3,
            failures: FailureRetention { keep_ms: 30 * 86_400_000, warning_ms: 7 * 86_400_000 },
            quarantine: None,
        }
    }

    pub(crate) fn stuck_at(&self, now: UnixMs) -> UnixMs {
        now.saturating_add(self.stuck_after_ms)
    }
}

/// A file fails after this many lost workers in a row.
pub const LOST_WORKERS_MAX: i64 = 3;

/// How long a file waits after it lost its worker for the n-th time in a row. `None`: the file fails. The pauses grow, so
/// that workers which crash for a few minutes do not fail a healthy file.
pub fn lost_worker_pause_ms(lost: i64) -> Option<i64> {
    match lost {
        ..=0 => Some(0),
        1 => Some(60_000),
        2 => Some(15 * 60_000),
        LOST_WORKERS_MAX.. => None,
    }
}

/// How long a file waits when the store cannot read its object and it has already waited `waited_ms`. The total wait
/// doubles until one pause takes an hour. The first pauses take 30 seconds.
pub fn unreadable_object_pause_ms(waited_ms: i64) -> i64 {
    waited_ms.clamp(30_000, 3_600_000)
}

/// The reason of a file that failed because it lost too many workers.
pub fn lost_workers_message(lost: i64, stage: Option<Stage>) -> String {
    format!("{lost} workers in a row were lost during {}", stage.map_or("its stage", Stage::as_str))
}

/// A worker starts a stage of the file.
pub fn start(file: &File, stage: Stage, plan: &PipelinePlan, now: UnixMs) -> Result<Change, TransitionError> {
    if file.stage != Some(stage) {
        return Err(TransitionError::NotAllowed { from: file.status, event: Event::Started(stage) });
    }
    let mut change = Change::new(file, now);
    change.apply(Event::Started(stage), format!("{} started", stage.as_str()))?;
    change.after.next_check_at = Some(plan.stuck_at(now));
    Ok(change)
}

/// The stage succeeded: the next stage is queued, or the file is ready.
pub fn finish(file: &File, plan: &PipelinePlan, now: UnixMs) -> Result<Change, TransitionError> {
    advance(file, file.text_status, "", plan, now)
}

/// The extract stage found text.
pub fn finish_with_text(file: &File, plan: &PipelinePlan, now: UnixMs) -> Result<Change, TransitionError> {
    advance(file, Some(TextStatus::Extracted), "", plan, now)
}

/// The extract stage found no text: the stages that need text are skipped in this one step. `why` is for the history.
pub fn finish_without_text(
    file: &File,
    why: &str,
    plan: &PipelinePlan,
    now: UnixMs,
) -> Result<Change, TransitionError> {
    advance(file, Some(TextStatus::None), &format!(": {why}"), plan, now)
}

fn advance(
    file: &File,
    text: Option<TextStatus>,
    why: &str,
    plan: &PipelinePlan,
    now: UnixMs,
) -> Result<Change, TransitionError> {
    let mut change = Change::new(file, now);
    let done = file.stage.map_or("processing", Stage::as_str);
    let place = file.stages().iter().position(|stage| Some(*stage) == file.stage);
    let rest = place.map_or(&[][..], |place| &file.stages()[place + 1..]);
    let next = stage_choice::next_stage(rest, text);
    let skipped: Vec<Stage> =
        rest.iter().copied().filter(|stage| stage_choice::is_skipped(*stage, text)).collect();
    let skipped = match (text == file.text_status, skipped.is_empty()) {
        (false, false) => format!("; skipped: {}", show_list(&skipped)),
        // The history already has it.
        _ => String::new(),
    };
    change.after.stage = next;
    change.after.text_status = text;
    change.after.error = None;
    match next {
        Some(stage) => {
            change.apply(
                Event::Finished,
                format!("{done} finished{why}{skipped}, {} queued", stage.as_str()),
            )?;
            change.after.next_check_at = Some(plan.stuck_at(now));
        }
        None => {
            change.apply(Event::Completed, format!("{done} finished{why}{skipped}"))?;
            make_ready(&mut change, now);
        }
    }
    Ok(change)
}

pub(crate) fn make_ready(change: &mut Change, now: UnixMs) {
    change.after.ready_at = Some(now);
    change.after.next_check_at = None;
    change.notification = Some(FileNotification::Ready);
}

/// An attempt failed, and another attempt follows.
pub fn retry(file: &File, why: &str, plan: &PipelinePlan, now: UnixMs) -> Result<Change, TransitionError> {
    let mut change = Change::new(file, now);
    change.apply(Event::Retried, why)?;
    change.after.next_check_at = Some(plan.stuck_at(now));
    Ok(change)
}

/// The file fails. Only a redrive starts another attempt.
pub fn fail(file: &File, why: &str, plan: &PipelinePlan, now: UnixMs) -> Result<Change, TransitionError> {
    let mut change = Change::new(file, now);
    change.apply(Event::Failed, why)?;
    change.after.error = Some(stored_reason(why));
    change.after.failed_at = Some(now);
    change.after.warned_at = None;
    change.after.next_check_at = Some(plan.failures.due_at(now));
    change.notification = Some(FileNotification::Failed);
    Ok(change)
}

/// Queues a stuck file again for the stage that stopped. [`crate::recovery`] decides what happens to its job.
pub fn recover(file: &File, why: &str, plan: &PipelinePlan, now: UnixMs) -> Result<Change, TransitionError> {
    let stage = stopped_at(file, plan);
    let mut change = Change::new(file, now);
    change.apply(Event::Recovered, format!("{why}; {} queued again", stage.as_str()))?;
    change.after.stage = Some(stage);
    change.after.retry_count = file.retry_count.saturating_add(1);
    change.after.next_check_at = Some(plan.stuck_at(now));
    Ok(change)
}

/// Like [`recover`], but fails the file after `stuck_retries_max` recoveries. Operators are then notified too.
pub fn recover_or_give_up(
    file: &File,
    why: &str,
    plan: &PipelinePlan,
    now: UnixMs,
) -> Result<Change, TransitionError> {
    if file.retry_count < plan.stuck_retries_max {
        return recover(file, why, plan, now);
    }
    let stage = stopped_at(file, plan);
    let tried = match file.retry_count {
        0 => String::new(),
        1 => " after 1 recovery".to_owned(),
        times => format!(" after {times} recoveries"),
    };
    let mut change = fail(file, &format!("{} did not finish{tried}", stage.as_str()), plan, now)?;
    // A redrive resumes at the stage that stopped.
    change.after.stage = Some(stage);
    change.notification = Some(FileNotification::GivenUp);
    Ok(change)
}

/// The stage at which a file resumes: the one it waits for or is in. A working file has a stage. A row without one was
/// edited by hand: it resumes at the stage of its status, or at the first stage.
fn stopped_at(file: &File, plan: &PipelinePlan) -> Stage {
    let of_status = || Stage::ALL.into_iter().find(|stage| stage.status() == file.status);
    let first = || file.stages().first().or(plan.stages.first()).copied();
    file.stage.or_else(of_status).or_else(first).unwrap_or(Stage::ALL[0])
}

/// A person requests that a failed file is processed again, from the stage that failed, by those of its stages that are
/// still configured. Without any, it is ready.
pub fn redrive(
    file: &File,
    dead_job: JobId,
    plan: &PipelinePlan,
    now: UnixMs,
) -> Result<Change, TransitionError> {
    let mut change = Change::new(file, now);
    let failed = stopped_at(file, plan);
    let (stages, next) = stage_choice::at_redrive(file.stages(), failed, file.text_status, &plan.stages);
    change.after.stages = Some(stages);
    change.after.stage = next;
    change.after.error = None;
    change.after.failed_at = None;
    change.after.warned_at = None;
    // A redriven file gets all its recoveries again.
    change.after.retry_count = 0;
    let Some(next) = next else {
        change.apply(
            Event::NothingLeft,
            format!("{} is not configured any more, no stage is left", failed.as_str()),
        )?;
        change.job = JobEffect::Remove { job: dead_job };
        make_ready(&mut change, now);
        return Ok(change);
    };
    change.after.next_check_at = Some(plan.stuck_at(now));
    match next == failed {
        true => {
            change.apply(Event::Redriven, "processing restarted on request")?;
            change.job = JobEffect::Redrive { job: dead_job };
        }
        false => {
            let reason = format!(
                "{} is not configured any more, processing restarted at {}",
                failed.as_str(),
                next.as_str()
            );
            change.apply(Event::Redriven, reason)?;
            change.job = JobEffect::ReplaceAll(NewStageJob::new(next, now));
        }
    }
    Ok(change)
}

/// Discards the dead letter of a failed file: the file stays failed and has no stage to resume at. The rest of its stages is
/// removed from the list, except a scan that has not ended. So the last one tells [`crate::download`] whether the scan has.
pub fn discard(file: &File, dead_job: JobId, now: UnixMs) -> Change {
    let mut change = Change::new(file, now);
    change.add_note("dead letter discarded");
    if let Some(failed_at) = file.stages().iter().position(|stage| Some(*stage) == file.stage) {
        let scan = file.stages().iter().position(|stage| *stage == Stage::Scan).unwrap_or(0);
        change.after.stages = Some(file.stages()[..=failed_at.max(scan)].to_vec());
    }
    change.after.stage = None;
    change.job = JobEffect::Remove { job: dead_job };
    change
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::file::{Pin, UploadPolicy, UploadRequest, confirm, register};
    use crate::id::{TenantId, UserId};
    use crate::state::Status;

    const DEAD_JOB: JobId = JobId(uuid::Uuid::from_u128(7));

    fn plan(stages: &[Stage]) -> PipelinePlan {
        PipelinePlan { stages: stages.to_vec(), ..PipelinePlan::without_stages() }
    }

    fn confirmed(plan: &PipelinePlan) -> Change {
        let request = UploadRequest {
            name: "a".into(),
            size: 1,
            content_type: None,
            checksum_sha256: None,
            metadata: None,
            stages: None,
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
            request,
            &policy,
            0,
        );
        let pin = Pin { etag: "e".into(), version_id: None };
        confirm(&file, pin, None, "confirmed", plan, 1).expect("confirmable")
    }

    #[test]
    fn a_file_passes_its_stages_in_order_and_is_ready() {
        let plan = plan(&[Stage::Extract, Stage::Scan]);
        let change = confirmed(&plan);
        let job = JobEffect::ReplaceAll(NewStageJob::new(Stage::Extract, 1));
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
    fn stages_configured_after_the_confirm_do_not_apply() {
        let file = confirmed(&plan(&[Stage::Scan])).after;
        let later = plan(&[Stage::Scan, Stage::Extract]);
        let file = start(&file, Stage::Scan, &later, 2).expect("queued").after;
        assert_eq!(finish(&file, &later, 3).expect("working").after.status, Status::Ready);
    }

    #[test]
    fn a_stuck_file_resumes_where_it_stopped_up_to_the_retry_limit() {
        let plan = PipelinePlan { stuck_retries_max: 2, ..plan(&[Stage::Scan, Stage::Extract]) };
        let file = confirmed(&plan).after;
        let file = start(&file, Stage::Scan, &plan, 2).expect("queued").after;
        let file = finish(&file, &plan, 3).expect("working").after;
        let mut file = start(&file, Stage::Extract, &plan, 4).expect("queued").after;
        for retry in 1..=2 {
            let change = recover_or_give_up(&file, "its job was missing", &plan, 5).expect("working");
            assert_eq!((change.after.stage, change.notification), (Some(Stage::Extract), None));
            assert_eq!(change.history[0].reason, "its job was missing; extract queued again");
            file = change.after;
            assert_eq!(
                (file.status, file.stage, file.retry_count),
                (Status::Queued, Some(Stage::Extract), retry)
            );
            assert_eq!(file.next_check_at, Some(5 + plan.stuck_after_ms));
        }
        let change = recover_or_give_up(&file, "its job was missing", &plan, 6).expect("working");
        assert_eq!((change.after.status, change.after.retry_count), (Status::Failed, 2));
        assert_eq!(change.notification, Some(FileNotification::GivenUp));
        let expected = "extract did not finish after 2 recoveries";
        assert_eq!(change.after.error.as_deref(), Some(expected));
        // A manual recovery ignores the limit.
        let asked = recover(&file, "requested", &plan, 6).expect("working").after;
        assert_eq!((asked.status, asked.retry_count), (Status::Queued, 3));
    }

    #[test]
    fn a_retry_limit_of_zero_fails_the_file_immediately() {
        let plan = PipelinePlan { stuck_retries_max: 0, ..plan(&[Stage::Scan]) };
        let change =
            recover_or_give_up(&confirmed(&plan).after, "its job was missing", &plan, 5).expect("queued");
        assert_eq!(change.after.status, Status::Failed);
        assert_eq!(change.after.error.as_deref(), Some("scan did not finish"));
    }

    #[test]
    fn a_row_without_a_stage_resumes_at_its_status_or_at_the_first_stage() {
        let plan = plan(&[Stage::Extract, Stage::Chunk]);
        let queued = confirmed(&plan).after;
        let resumed = |status: Status, stages: &[Stage], plan: &PipelinePlan| {
            let file = File { status, stage: None, stages: Some(stages.to_vec()), ..queued.clone() };
            recover(&file, "its job was missing", plan, 5).expect("working").after.stage
        };
        assert_eq!(resumed(Status::Embedding, &[Stage::Scan], &plan), Some(Stage::Embed));
        assert_eq!(resumed(Status::Uploaded, &[Stage::Chunk], &plan), Some(Stage::Chunk));
        assert_eq!(resumed(Status::Queued, &[], &plan), Some(Stage::Extract));
        assert_eq!(resumed(Status::Queued, &[], &PipelinePlan::without_stages()), Some(Stage::Scan));
    }

    #[test]
    fn only_files_in_the_pipeline_are_recovered() {
        let plan = plan(&[Stage::Scan]);
        let queued = confirmed(&plan).after;
        for status in Status::ALL {
            let file = File { status, ..queued.clone() };
            let recovered = recover(&file, "its job was missing", &plan, 5);
            assert_eq!(recovered.is_ok(), status.is_working(), "{status}");
            let given_up = PipelinePlan { stuck_retries_max: 0, ..plan.clone() };
            let failed = recover_or_give_up(&file, "its job was missing", &given_up, 5);
            assert_eq!(failed.is_ok(), status.is_working(), "{status}");
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Start,
        Finish,
        Retry,
        Fail,
        Recover,
        RecoverOrGiveUp,
        Redrive,
    }

    const OPS: [Op; 7] =
        [Op::Start, Op::Finish, Op::Retry, Op::Fail, Op::Recover, Op::RecoverOrGiveUp, Op::Redrive];

    proptest! {
        /// No stage is skipped or done twice, the retry limit holds, and every unfinished file has a next check.
        #[test]
        fn random_operations_follow_the_stages(
            ops in prop::collection::vec(prop::sample::select(OPS.to_vec()), 0..80),
            retries_max in 0u32..4,
        ) {
            let plan = PipelinePlan { stuck_retries_max: retries_max, ..plan(&[Stage::Scan, Stage::Extract, Stage::Embed]) };
            let mut file = confirmed(&plan).after;
            let mut done = Vec::new();
            for (now, op) in ops.into_iter().enumerate() {
                let now = now as i64 + 10;
                let stage = file.stage;
                let change = match op {
                    Op::Start => start(&file, stage.unwrap_or(Stage::Scan), &plan, now),
                    Op::Finish => finish(&file, &plan, now),
                    Op::Retry => retry(&file, "hiccup", &plan, now),
                    Op::Fail => fail(&file, "encrypted", &plan, now),
                    Op::Recover => recover(&file, "lost", &plan, now),
                    Op::RecoverOrGiveUp => recover_or_give_up(&file, "lost", &plan, now),
                    Op::Redrive => redrive(&file, DEAD_JOB, &plan, now),
                };
                let Ok(change) = change else { continue };
                let after = &change.after;
                prop_assert_eq!(after.version, file.version + 1);
                prop_assert!(after.next_check_at.is_some() || after.status.needs_no_check());
                prop_assert!(after.retry_count >= file.retry_count || matches!(op, Op::Redrive));
                match op {
                    Op::Finish => done.extend(stage),
                    Op::RecoverOrGiveUp => {
                        prop_assert_eq!(after.status == Status::Failed, file.retry_count >= retries_max);
                        prop_assert_eq!(after.stage, stage);
                    }
                    _ => prop_assert_eq!(after.stage, stage),
                }
                prop_assert!(after.status != Status::Queued || after.stage.is_some());
                file = change.after;
            }
            prop_assert_eq!(&done[..], &file.stages()[..done.len()]);
            prop_assert_eq!(file.status == Status::Ready, done.len() == file.stages().len());
        }
    }

    #[test]
    fn a_file_without_text_skips_the_stages_that_need_text() {
        let plan = plan(&Stage::ALL);
        let extracting = |plan: &PipelinePlan| {
            let file = confirmed(plan).after;
            let file = start(&file, Stage::Scan, plan, 2).expect("queued").after;
            let file = finish(&file, plan, 3).expect("working").after;
            start(&file, Stage::Extract, plan, 4).expect("queued").after
        };
        let file = extracting(&plan);
        assert_eq!(file.text_status, None);
        let change = finish_without_text(&file, "a picture", &plan, 5).expect("working");
        assert_eq!(change.history[0].reason, "extract finished: a picture; skipped: chunk,embed");
        assert_eq!((change.history.len(), change.notification), (1, Some(FileNotification::Ready)));
        let ready = change.after;
        assert_eq!((ready.status, ready.text_status), (Status::Ready, Some(TextStatus::None)));
        assert_eq!((ready.stage, ready.ready_at, ready.next_check_at), (None, Some(5), None));
        let file = finish_with_text(&file, &plan, 5).expect("working").after;
        assert_eq!((file.stage, file.text_status), (Some(Stage::Chunk), Some(TextStatus::Extracted)));

        // A stage that needs no text is not skipped, also after it was retried and redriven.
        let late = PipelinePlan { stages: vec![Stage::Extract, Stage::Scan, Stage::Chunk], ..plan };
        let file = start(&confirmed(&late).after, Stage::Extract, &late, 4).expect("queued").after;
        let file = finish_without_text(&file, "a picture", &late, 5).expect("working").after;
        assert_eq!((file.status, file.stage), (Status::Queued, Some(Stage::Scan)));
        let file = start(&file, Stage::Scan, &late, 6).expect("queued").after;
        let file = fail(&file, "too large", &late, 7).expect("working").after;
        let file = redrive(&file, DEAD_JOB, &late, 8).expect("failed").after;
        let file = start(&file, Stage::Scan, &late, 9).expect("queued").after;
        let change = finish(&file, &late, 10).expect("working");
        assert_eq!((change.after.status, change.after.text_status), (Status::Ready, Some(TextStatus::None)));
        assert_eq!(change.history[0].reason, "scan finished");
    }

    #[test]
    fn a_redrive_runs_the_stages_that_are_still_configured() {
        let before = plan(&Stage::ALL);
        let file = confirmed(&before).after;
        let file = start(&file, Stage::Scan, &before, 2).expect("queued").after;
        let failed = fail(&file, "too large", &before, 3).expect("working").after;
        let redriven = |stages: &[Stage]| redrive(&failed, DEAD_JOB, &plan(stages), 9).expect("failed");

        let change = redriven(&[Stage::Scan, Stage::Extract]);
        assert_eq!(change.job, JobEffect::Redrive { job: DEAD_JOB });
        assert_eq!(change.after.stages(), [Stage::Scan, Stage::Extract]);
        let change = redriven(&[Stage::Extract]);
        assert_eq!(change.job, JobEffect::ReplaceAll(NewStageJob::new(Stage::Extract, 9)));
        assert_eq!((change.after.status, change.after.stage), (Status::Queued, Some(Stage::Extract)));
        assert_eq!(
            change.history[0].reason,
            "scan is not configured any more, processing restarted at extract"
        );
        let change = redriven(&[]);
        assert_eq!(change.job, JobEffect::Remove { job: DEAD_JOB });
        let ready = &change.after;
        assert_eq!((ready.status, ready.stage, ready.error.clone()), (Status::Ready, None, None));
        assert_eq!((ready.ready_at, ready.failed_at, ready.next_check_at), (Some(9), None, None));
        assert_eq!(change.notification, Some(FileNotification::Ready));
    }

    #[test]
    fn a_failed_file_is_redriven_at_the_stage_that_failed() {
        let plan = plan(&[Stage::Scan, Stage::Extract]);
        let file = confirmed(&plan).after;
        let file = start(&file, Stage::Scan, &plan, 2).expect("queued").after;
        let file = finish(&file, &plan, 3).expect("working").after;
        let file = start(&file, Stage::Extract, &plan, 4).expect("queued").after;
        assert!(start(&file, Stage::Scan, &plan, 4).is_err());
        let failed = fail(&file, "encrypted", &plan, 5).expect("working");
        assert_eq!(failed.notification, Some(FileNotification::Failed));
        assert_eq!(failed.after.next_check_at, Some(5 + 23 * 86_400_000));
        let tried = File { retry_count: 3, ..failed.after };
        let again = redrive(&tried, DEAD_JOB, &plan, 6).expect("failed").after;
        assert_eq!((again.retry_count, again.failed_at), (0, None));
        assert_eq!((again.status, again.stage, again.error), (Status::Queued, Some(Stage::Extract), None));
    }
}
