//! How long failed files are kept: until their retention is over and their owner got a warning in time.

use crate::UnixMs;
use crate::event::Event;
use crate::file::{Change, EndReason, File, FileNotification, UploadPolicy, defer, end};
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
}

/// The result of checking a failed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureCheck {
    /// The file is no longer failed, or its time has not come.
    Nothing,
    /// The time has moved: the retention setting changed, or the warning was late.
    Later(Box<Change>),
    Warn(Box<Change>),
    Delete(Box<Change>),
}

/// Warns the owner of a failed file, and later deletes the file. It never deletes a file before its warning
/// (`the_owner_is_warned_before_the_deletion`).
pub fn check_failure(
    file: &File,
    retention: FailureRetention,
    policy: &UploadPolicy,
    now: UnixMs,
) -> Result<FailureCheck, TransitionError> {
    if file.status != Status::Failed {
        return Ok(FailureCheck::Nothing);
    }
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
            let why = "failed, and the retention period is over";
            let mut change = end(file, Event::Expired, EndReason::Reclaimed, why, policy, now)?;
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
    }
}
