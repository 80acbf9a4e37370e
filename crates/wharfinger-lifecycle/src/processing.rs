//! The way of a confirmed file through its stages. Recovery resumes at the stage that stopped: what earlier stages
//! made is kept.

use crate::UnixMs;
use crate::event::Event;
use crate::file::{Change, File, Notice};
use crate::limits::reason;
use crate::retention::{FailureFate, FailureRetention};
use crate::stage::Stage;
use crate::transition::Refusal;

/// What confirmed files go through, and when somebody looks after those that do not get on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub stages: Vec<Stage>,
    /// Without progress for so long, a file is stuck.
    pub stuck_after_ms: i64,
    pub failures: FailureRetention,
}

impl Plan {
    /// Confirmed files are ready at once.
    pub fn without_stages() -> Plan {
        Plan {
            stages: Vec::new(),
            stuck_after_ms: 1_800_000,
            failures: FailureRetention { keep_ms: 30 * 86_400_000, warning_ms: 7 * 86_400_000 },
        }
    }

    pub(crate) fn stuck_at(&self, now: UnixMs) -> UnixMs {
        now.saturating_add(self.stuck_after_ms)
    }

    fn failure_due_at(&self, failed_at: UnixMs) -> UnixMs {
        match self.failures.fate(failed_at, None, failed_at) {
            FailureFate::KeepUntil(at) => at,
            FailureFate::Warn | FailureFate::Delete => failed_at,
        }
    }
}

/// A worker took it.
pub fn start(file: &File, stage: Stage, plan: &Plan, now: UnixMs) -> Result<Change, Refusal> {
    if file.stage != Some(stage) {
        return Err(Refusal::NotFrom { from: file.status, event: Event::Started(stage) });
    }
    let mut change = Change::of(file, now);
    change.step(Event::Started(stage), format!("{} began", stage.as_str()))?;
    change.after.next_look_at = Some(plan.stuck_at(now));
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
            change.after.next_look_at = Some(plan.stuck_at(now));
            change.enqueues = Some(stage);
        }
        None => {
            change.step(Event::Completed, format!("{done} done"))?;
            change.after.ready_at = Some(now);
            change.after.next_look_at = None;
            change.notice = Some(Notice::Ready);
        }
    }
    Ok(change)
}

/// An attempt ended badly, and there will be another.
pub fn retry(file: &File, why: &str, plan: &Plan, now: UnixMs) -> Result<Change, Refusal> {
    let mut change = Change::of(file, now);
    change.step(Event::Retried, why)?;
    change.after.next_look_at = Some(plan.stuck_at(now));
    Ok(change)
}

/// There will be no other attempt, unless a person says so.
pub fn fail(file: &File, why: &str, plan: &Plan, now: UnixMs) -> Result<Change, Refusal> {
    let mut change = Change::of(file, now);
    change.step(Event::Failed, why)?;
    change.after.error = Some(reason(why));
    change.after.failed_at = Some(now);
    change.after.next_look_at = Some(plan.failure_due_at(now));
    change.notice = Some(Notice::Failed);
    Ok(change)
}

/// A person sends a failed file through again, from the stage that stopped it.
pub fn redrive(file: &File, plan: &Plan, now: UnixMs) -> Result<Change, Refusal> {
    let mut change = Change::of(file, now);
    change.step(Event::Redriven, "redriven")?;
    change.after.error = None;
    change.after.failed_at = None;
    change.after.warned_at = None;
    change.after.next_look_at = Some(plan.stuck_at(now));
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{Announcement, Pin, UploadPolicy, confirm, register};
    use crate::id::{TenantId, UserId};
    use crate::state::Status;

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
        assert_eq!((change.after.status, change.enqueues), (Status::Queued, Some(Stage::Extract)));
        let mut file = change.after;
        let mut seen = Vec::new();
        while let Some(stage) = file.stage {
            file = start(&file, stage, &plan, 2).expect("queued").after;
            seen.push(file.status);
            assert!(file.next_look_at.is_some());
            let change = finish(&file, &plan, 3).expect("working");
            assert_eq!(change.enqueues, change.after.stage);
            file = change.after;
        }
        assert_eq!(seen, [Status::Extracting, Status::Scanning]);
        assert_eq!((file.status, file.ready_at, file.next_look_at), (Status::Ready, Some(3), None));
    }

    #[test]
    fn stages_that_are_configured_later_do_not_concern_it() {
        let file = confirmed(&plan(&[Stage::Scan])).after;
        let later = plan(&[Stage::Scan, Stage::Extract]);
        let file = start(&file, Stage::Scan, &later, 2).expect("queued").after;
        assert_eq!(finish(&file, &later, 3).expect("working").after.status, Status::Ready);
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
        assert_eq!(failed.after.next_look_at, Some(5 + 23 * 86_400_000));
        let again = redrive(&failed.after, &plan, 6).expect("failed").after;
        assert_eq!((again.status, again.stage, again.error), (Status::Queued, Some(Stage::Extract), None));
    }
}
