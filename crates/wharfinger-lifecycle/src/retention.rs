//! How long what is over is kept: failures until their owner was warned in time, tombstones until no URL lives.

use crate::UnixMs;
use crate::event::Event;
use crate::file::{Change, EndReason, File, Notice, UploadPolicy, defer, end};
use crate::state::Status;
use crate::transition::Refusal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRetention {
    pub keep_ms: i64,
    pub warning_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionStep {
    /// Nothing yet; look again then.
    KeepUntil(UnixMs),
    Warn,
    Delete,
}

impl FailureRetention {
    /// Two dates, not one: a file is deleted when its retention is over AND its warning has been out for the
    /// whole warning time, so a late warning moves the deletion and never skips it.
    pub fn fate(self, failed_at: UnixMs, warned_at: Option<UnixMs>, now: UnixMs) -> RetentionStep {
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

/// What a look at a failed file comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureCheck {
    /// It is not failed any more, or its time has not come.
    Nothing,
    /// Its time was moved: by a retention that is longer now, or a warning that came late.
    Later(Box<Change>),
    Warn(Box<Change>),
    Delete(Box<Change>),
}

/// No other function deletes a failed file for its age, and this one does not without its warning.
pub fn check_failure(
    file: &File,
    retention: FailureRetention,
    policy: &UploadPolicy,
    now: UnixMs,
) -> Result<FailureCheck, Refusal> {
    if file.status != Status::Failed {
        return Ok(FailureCheck::Nothing);
    }
    let failed_at = file.failed_at.unwrap_or(file.updated_at);
    match retention.fate(failed_at, file.warned_at, now) {
        RetentionStep::KeepUntil(at) if file.next_check_at == Some(at) => Ok(FailureCheck::Nothing),
        RetentionStep::KeepUntil(at) => Ok(FailureCheck::Later(Box::new(defer(file, at, now)))),
        RetentionStep::Warn => {
            let mut change = Change::of(file, now);
            change.remark("its owner was warned that it will be deleted");
            change.after.warned_at = Some(now);
            change.after.next_check_at = Some(match retention.fate(failed_at, Some(now), now) {
                RetentionStep::KeepUntil(at) => at,
                RetentionStep::Warn | RetentionStep::Delete => now,
            });
            change.notice = Some(Notice::DeletionWarning);
            Ok(FailureCheck::Warn(Box::new(change)))
        }
        RetentionStep::Delete => {
            let why = "failed, and nobody sent it through again in its time";
            let mut change = end(file, Event::Expired, EndReason::Reclaimed, why, policy, now)?;
            change.notice = Some(Notice::CleanedUp);
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
    fn warned_then_deleted() {
        assert_eq!(POLICY.fate(0, None, 22 * DAY), RetentionStep::KeepUntil(23 * DAY));
        assert_eq!(POLICY.fate(0, None, 23 * DAY), RetentionStep::Warn);
        assert_eq!(POLICY.fate(0, Some(23 * DAY), 29 * DAY), RetentionStep::KeepUntil(30 * DAY));
        assert_eq!(POLICY.fate(0, Some(23 * DAY), 30 * DAY), RetentionStep::Delete);
    }

    #[test]
    fn a_late_warning_moves_the_deletion() {
        assert_eq!(POLICY.fate(0, None, 60 * DAY), RetentionStep::Warn);
        assert_eq!(POLICY.fate(0, Some(60 * DAY), 66 * DAY), RetentionStep::KeepUntil(67 * DAY));
        assert_eq!(POLICY.fate(0, Some(60 * DAY), 67 * DAY), RetentionStep::Delete);
    }
}
