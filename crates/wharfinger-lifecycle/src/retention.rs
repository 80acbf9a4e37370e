//! How long failed and quarantined files are kept: until their retention is over and their owner got a warning in time.

use crate::UnixMs;
use crate::event::Event;
use crate::file::{Change, EndReason, File, FileNotification, UploadPolicy, defer, end};
use crate::processing::PipelinePlan;
use crate::state::Status;
use crate::transition::TransitionError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRetention {
    pub keep_ms: i64,
    pub warning_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionStep {
    /// Nothing to do before this time.
    KeepUntil(UnixMs),
    Warn,
    Delete,
}

impl FailureRetention {
    /// A file is deleted when its retention is over AND its warning was sent at least `warning_ms` ago. So a late warning
    /// delays the deletion.
    pub fn next_step(self, failed_at: UnixMs, warned_at: Option<UnixMs>, now: UnixMs) -> RetentionStep {
        let over_at = failed_at.saturating_add(self.keep_ms);
        match warned_at {
            None => {
                let warn_at = over_at.saturating_sub(self.warning_ms).max(failed_at);
                if now >= warn_at { RetentionStep::Warn } else { RetentionStep::KeepUntil(warn_at) }
            }
            Some(warned_at) => {
                let delete_at = over_at.max(warned_at.saturating_add(self.warning_ms));
                if now >= delete_at { RetentionStep::Delete } else { RetentionStep::KeepUntil(delete_at) }
            }
        }
    }

    /// When a file that failed at this time must be checked first.
    pub(crate) fn due_at(self, failed_at: UnixMs) -> UnixMs {
        match self.next_step(failed_at, None, failed_at) {
            RetentionStep::KeepUntil(at) => at,
            RetentionStep::Warn | RetentionStep::Delete => failed_at,
        }
    }

    /// When a file is deleted at the earliest.
    fn deletion_at(self, failed_at: UnixMs, warned_at: Option<UnixMs>) -> UnixMs {
        let warned_at = warned_at.unwrap_or_else(|| self.due_at(failed_at));
        failed_at.saturating_add(self.keep_ms).max(warned_at.saturating_add(self.warning_ms))
    }
}

/// How long this file is kept. `None`: it is neither failed nor quarantined, or quarantined files are never deleted.
fn retention_of(file: &File, plan: &PipelinePlan) -> Option<FailureRetention> {
    match file.status {
        Status::Failed => Some(plan.failures),
        Status::Quarantined => plan.quarantine,
        _ => None,
    }
}

/// When the file will be deleted for its age, at the earliest. A late warning delays it.
pub fn deletion_at(file: &File, plan: &PipelinePlan) -> Option<UnixMs> {
    let failed_at = file.failed_at.unwrap_or(file.updated_at);
    retention_of(file, plan).map(|retention| retention.deletion_at(failed_at, file.warned_at))
}

/// The result of checking a failed or quarantined file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureCheck {
    /// The file is no longer failed or quarantined, or its time has not come.
    Nothing,
    /// The time has moved: the retention setting changed, or the warning was late.
    Later(Box<Change>),
    Warn(Box<Change>),
    Delete(Box<Change>),
}

/// Warns the owner of a failed or quarantined file, and later deletes the file. It never deletes a file before its warning
/// (`the_owner_is_warned_before_the_deletion`).
pub fn check_failure(
    file: &File,
    plan: &PipelinePlan,
    policy: &UploadPolicy,
    now: UnixMs,
) -> Result<FailureCheck, TransitionError> {
    let Some(retention) = retention_of(file, plan) else { return Ok(FailureCheck::Nothing) };
    let failed_at = file.failed_at.unwrap_or(file.updated_at);
    match retention.next_step(failed_at, file.warned_at, now) {
        RetentionStep::KeepUntil(at) if file.next_check_at == Some(at) => Ok(FailureCheck::Nothing),
        RetentionStep::KeepUntil(at) => Ok(FailureCheck::Later(Box::new(defer(file, at, now)))),
        RetentionStep::Warn => {
            let mut change = Change::new(file, now);
            change.add_note("deletion warning sent to the owner");
            change.after.warned_at = Some(now);
            change.after.next_check_at = Some(match retention.next_step(failed_at, Some(now), now) {
                RetentionStep::KeepUntil(at) => at,
                RetentionStep::Warn | RetentionStep::Delete => now,
            });
            change.notification = Some(FileNotification::DeletionWarning);
            Ok(FailureCheck::Warn(Box::new(change)))
        }
        RetentionStep::Delete => {
            let why = format!("{}, and the retention period is over", file.status);
            let mut change = end(file, Event::Expired, EndReason::Reclaimed, &why, policy, now)?;
            change.notification = Some(FileNotification::CleanedUp);
            Ok(FailureCheck::Delete(Box::new(change)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000;
    const POLICY: FailureRetention = FailureRetention { keep_ms: 30 * DAY, warning_ms: 7 * DAY };

    #[test]
    fn the_owner_is_warned_before_the_deletion() {
        assert_eq!(POLICY.next_step(0, None, 22 * DAY), RetentionStep::KeepUntil(23 * DAY));
        assert_eq!(POLICY.next_step(0, None, 23 * DAY), RetentionStep::Warn);
        assert_eq!(POLICY.next_step(0, Some(23 * DAY), 29 * DAY), RetentionStep::KeepUntil(30 * DAY));
        assert_eq!(POLICY.next_step(0, Some(23 * DAY), 30 * DAY), RetentionStep::Delete);
    }

    #[test]
    fn a_late_warning_delays_the_deletion() {
        assert_eq!(POLICY.next_step(0, None, 60 * DAY), RetentionStep::Warn);
        assert_eq!(POLICY.next_step(0, Some(60 * DAY), 66 * DAY), RetentionStep::KeepUntil(67 * DAY));
        assert_eq!(POLICY.next_step(0, Some(60 * DAY), 67 * DAY), RetentionStep::Delete);
        assert_eq!(POLICY.deletion_at(0, Some(60 * DAY)), 67 * DAY);
    }

    /// What is shown as the date of the deletion is never after the deletion.
    #[test]
    fn the_date_of_the_deletion_is_that_of_the_earliest_possible_one() {
        for warning_ms in [0, 7 * DAY, 40 * DAY] {
            let retention = FailureRetention { warning_ms, ..POLICY };
            let warned_at = retention.due_at(5);
            let deletion_at = retention.deletion_at(5, None);
            assert_eq!(retention.deletion_at(5, Some(warned_at)), deletion_at);
            assert_eq!(retention.next_step(5, Some(warned_at), deletion_at), RetentionStep::Delete);
            assert_eq!(
                retention.next_step(5, Some(warned_at), deletion_at - 1),
                RetentionStep::KeepUntil(deletion_at)
            );
        }
    }
}
