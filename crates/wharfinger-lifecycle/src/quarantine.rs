//! Quarantined files: why a file is quarantined, and how an operator releases it after a false alarm.

use crate::UnixMs;
use crate::event::Event;
use crate::file::{Change, File, FileNotification, JobEffect, NewStageJob, Pin};
use crate::limits::stored_reason;
use crate::processing::{self, PipelinePlan};
use crate::stage::Stage;
use crate::stage_choice;
use crate::state::Status;
use crate::transition::TransitionError;

/// Why a file is quarantined. This decides what a release needs, and where the file continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuarantineCause {
    /// The scan found something.
    Infected,
    /// The object in the store does not have the confirmed bytes.
    Changed,
}

impl QuarantineCause {
    pub const ALL: [QuarantineCause; 2] = [QuarantineCause::Infected, QuarantineCause::Changed];

    pub fn as_str(self) -> &'static str {
        match self {
            QuarantineCause::Infected => "infected",
            QuarantineCause::Changed => "changed",
        }
    }

    pub fn parse(word: &str) -> Option<QuarantineCause> {
        QuarantineCause::ALL.into_iter().find(|cause| cause.as_str() == word)
    }
}

/// Quarantines a file. It keeps its stage: a release continues from there.
pub fn quarantine(
    file: &File,
    cause: QuarantineCause,
    why: &str,
    plan: &PipelinePlan,
    now: UnixMs,
) -> Result<Change, TransitionError> {
    let mut change = Change::new(file, now);
    change.apply(Event::Quarantined, why)?;
    change.after.quarantine = Some(cause);
    change.after.error = Some(stored_reason(why));
    change.after.failed_at = Some(now);
    change.after.warned_at = None;
    change.after.next_check_at = plan.quarantine.map(|retention| retention.due_at(now));
    change.job = JobEffect::RemoveAll;
    change.notification = Some(FileNotification::Quarantined);
    Ok(change)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseRefusal {
    #[error("the file is {0}, not quarantined")]
    NotQuarantined(Status),
    /// Other bytes than the confirmed ones must never be served or processed.
    #[error("the object was changed after it was confirmed")]
    Unproven,
}

/// Releases a quarantined file. An infected one continues after its scan. A changed one needs `proven`, the pin of bytes
/// in the store that are the confirmed ones. It continues at the stage where it stopped, or is ready again. Stages that
/// are not configured any more are left out. Without a stage the file is ready.
pub fn release(
    file: &File,
    reason: &str,
    proven: Option<Pin>,
    plan: &PipelinePlan,
    now: UnixMs,
) -> Result<Change, ReleaseRefusal> {
    let refused = |_| ReleaseRefusal::NotQuarantined(file.status);
    let Some(cause) = file.quarantine.filter(|_| file.status == Status::Quarantined) else {
        return Err(ReleaseRefusal::NotQuarantined(file.status));
    };
    let mut change = Change::new(file, now);
    if cause == QuarantineCause::Changed {
        change.after.pin = Some(proven.ok_or(ReleaseRefusal::Unproven)?);
    }
    let (stages, next) = match (cause, stopped_at(file)) {
        (QuarantineCause::Infected, _) => {
            stage_choice::after_scan(file.stages(), file.text_status, &plan.stages)
        }
        (QuarantineCause::Changed, Some(stage)) => {
            stage_choice::at_redrive(file.stages(), stage, file.text_status, &plan.stages)
        }
        (QuarantineCause::Changed, None) => (file.stages().to_vec(), None),
    };
    change.after.stages = Some(stages);
    change.after.stage = next;
    change.after.quarantine = None;
    change.after.error = None;
    change.after.failed_at = None;
    change.after.warned_at = None;
    // Like a redriven file, it gets all its recoveries again.
    change.after.retry_count = 0;
    match next {
        Some(stage) => {
            let text = format!("released: {reason}; {} queued", stage.as_str());
            change.apply(Event::Released, text).map_err(refused)?;
            change.after.next_check_at = Some(plan.stuck_at(now));
            change.job = JobEffect::ReplaceAll(NewStageJob::new(stage, now));
        }
        None => {
            change.apply(Event::NothingLeft, format!("released: {reason}")).map_err(refused)?;
            processing::make_ready(&mut change, now);
        }
    }
    Ok(change)
}

/// The stage at which a changed file stopped. `None`: it was ready. A failed file whose dead letter was discarded has no
/// stage either, but was never ready. It starts with its first stage: another scan is better than none.
fn stopped_at(file: &File) -> Option<Stage> {
    file.stage.or_else(|| file.stages().first().copied().filter(|_| file.ready_at.is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{UploadPolicy, UploadRequest, confirm, register};
    use crate::id::{JobId, TenantId, UserId};
    use crate::processing::{discard, fail, finish, start};
    use crate::retention::FailureRetention;
    use Stage::{Chunk, Embed, Extract, Scan};

    const DAY: i64 = 86_400_000;
    const RETENTION: FailureRetention = FailureRetention { keep_ms: 90 * DAY, warning_ms: 7 * DAY };

    fn plan(stages: &[Stage]) -> PipelinePlan {
        PipelinePlan {
            stages: stages.to_vec(),
            quarantine: Some(RETENTION),
            ..PipelinePlan::without_stages()
        }
    }

    fn pin(etag: &str) -> Pin {
        Pin { etag: etag.into(), version_id: None }
    }

    fn confirmed(plan: &PipelinePlan) -> File {
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
        confirm(&file, pin("e"), None, "confirmed", plan, 1).expect("confirmable").after
    }

    /// In the middle of this stage.
    fn in_stage(stage: Stage, plan: &PipelinePlan) -> File {
        let mut file = confirmed(plan);
        while file.stage != Some(stage) {
            let working = start(&file, file.stage.expect("a stage"), plan, 2).expect("queued").after;
            file = finish(&working, plan, 3).expect("working").after;
        }
        start(&file, stage, plan, 4).expect("queued").after
    }

    fn quarantined(file: &File, cause: QuarantineCause, plan: &PipelinePlan) -> File {
        let change = quarantine(file, cause, "a reason", plan, 10).expect("quarantinable");
        assert_eq!((change.job, change.after.error.as_deref()), (JobEffect::RemoveAll, Some("a reason")));
        assert_eq!(change.after.failed_at, Some(10));
        assert_eq!(change.after.next_check_at, plan.quarantine.map(|_| 10 + 83 * DAY));
        change.after
    }

    #[test]
    fn an_infected_file_continues_after_its_scan() {
        let all = [Scan, Extract, Chunk, Embed];
        for (stages, configured, next) in [
            (&all[..], &all[..], Some(Extract)),
            (&[Scan], &[Scan], None),
            (&[Extract, Scan, Chunk], &[Extract, Scan, Chunk], Some(Chunk)),
            // Stages that were removed since are left out.
            (&all, &[Scan], None),
            (&all, &[Chunk, Embed], Some(Chunk)),
        ] {
            let of_confirm = plan(stages);
            let file = quarantined(&in_stage(Scan, &of_confirm), QuarantineCause::Infected, &of_confirm);
            let change = release(&file, "a false alarm", None, &plan(configured), 20).expect("releasable");
            let after = &change.after;
            assert_eq!(after.stage, next, "{stages:?} of {configured:?}");
            assert_eq!((after.quarantine, &after.error, after.failed_at), (None, &None, None));
            assert_eq!((&after.pin, after.version), (&file.pin, file.version + 1));
            let entry = &change.history[0];
            assert_eq!(entry.from, Some(Status::Quarantined));
            match next {
                Some(stage) => {
                    assert_eq!(after.status, Status::Queued);
                    assert_eq!(change.job, JobEffect::ReplaceAll(NewStageJob::new(stage, 20)));
                    assert_eq!(entry.reason, format!("released: a false alarm; {} queued", stage.as_str()));
                    assert!(after.next_check_at.is_some());
                }
                None => {
                    assert_eq!((after.status, after.ready_at), (Status::Ready, Some(20)));
                    assert_eq!(change.notification, Some(FileNotification::Ready));
                    assert_eq!(entry.reason, "released: a false alarm");
                    assert_eq!(after.next_check_at, None);
                }
            }
        }
    }

    #[test]
    fn a_changed_file_is_released_only_with_proven_bytes() {
        let plan = plan(&[Scan, Extract]);
        // Before or in its scan, it is scanned: nothing was found, but nothing was searched either.
        let in_scan = quarantined(&in_stage(Scan, &plan), QuarantineCause::Changed, &plan);
        assert_eq!(release(&in_scan, "restored", None, &plan, 20), Err(ReleaseRefusal::Unproven));
        let released = release(&in_scan, "restored", Some(pin("f")), &plan, 20).expect("proven").after;
        assert_eq!((released.stage, released.pin), (Some(Scan), Some(pin("f"))));
        let in_extract = quarantined(&in_stage(Extract, &plan), QuarantineCause::Changed, &plan);
        let released = release(&in_extract, "restored", Some(pin("e")), &plan, 20).expect("proven").after;
        assert_eq!((released.status, released.stage), (Status::Queued, Some(Extract)));
        let ready = finish(&in_stage(Extract, &plan), &plan, 5).expect("working").after;
        let released = release(
            &quarantined(&ready, QuarantineCause::Changed, &plan),
            "restored",
            Some(pin("e")),
            &plan,
            20,
        );
        assert_eq!(released.expect("proven").after.status, Status::Ready);
    }

    /// A failed file whose dead letter was discarded has no stage. It must not become ready without a scan.
    #[test]
    fn a_changed_file_that_was_never_ready_is_scanned_again() {
        let plan = plan(&[Scan, Extract]);
        let failed = fail(&in_stage(Scan, &plan), "corrupted", &plan, 5).expect("working").after;
        let discarded = discard(&failed, JobId(uuid::Uuid::from_u128(7)), 6).after;
        assert_eq!(discarded.stage, None);
        let file = quarantined(&discarded, QuarantineCause::Changed, &plan);
        let released = release(&file, "restored", Some(pin("e")), &plan, 20).expect("proven").after;
        assert_eq!((released.status, released.stage), (Status::Queued, Some(Scan)));
    }

    #[test]
    fn only_a_quarantined_file_can_be_released() {
        let plan = plan(&[Scan]);
        let file = quarantined(&in_stage(Scan, &plan), QuarantineCause::Infected, &plan);
        let released = release(&file, "a false alarm", None, &plan, 20).expect("releasable").after;
        for (file, status) in [(&released, Status::Ready), (&confirmed(&plan), Status::Queued)] {
            let again = release(file, "again", Some(pin("e")), &plan, 30);
            assert_eq!(again, Err(ReleaseRefusal::NotQuarantined(status)));
        }
    }
}
