//! How long what is over is kept: failures until their owner was warned in time, tombstones until no URL lives.

use crate::UnixMs;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRetention {
    pub keep_ms: i64,
    pub warning_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureFate {
    /// Nothing yet; look again then.
    KeepUntil(UnixMs),
    Warn,
    Delete,
}

impl FailureRetention {
    /// Two dates, not one: a file is deleted when its retention is over AND its warning has been out for the
    /// whole warning time, so a late warning moves the deletion and never skips it.
    pub fn fate(self, failed_at: UnixMs, warned_at: Option<UnixMs>, now: UnixMs) -> FailureFate {
        let over_at = failed_at.saturating_add(self.keep_ms);
        match warned_at {
            None => {
                let warn_at = over_at.saturating_sub(self.warning_ms).max(failed_at);
                if now >= warn_at { FailureFate::Warn } else { FailureFate::KeepUntil(warn_at) }
            }
            Some(warned_at) => {
                let delete_at = over_at.max(warned_at.saturating_add(self.warning_ms));
                if now >= delete_at { FailureFate::Delete } else { FailureFate::KeepUntil(delete_at) }
            }
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
        assert_eq!(POLICY.fate(0, None, 22 * DAY), FailureFate::KeepUntil(23 * DAY));
        assert_eq!(POLICY.fate(0, None, 23 * DAY), FailureFate::Warn);
        assert_eq!(POLICY.fate(0, Some(23 * DAY), 29 * DAY), FailureFate::KeepUntil(30 * DAY));
        assert_eq!(POLICY.fate(0, Some(23 * DAY), 30 * DAY), FailureFate::Delete);
    }

    #[test]
    fn a_late_warning_moves_the_deletion() {
        assert_eq!(POLICY.fate(0, None, 60 * DAY), FailureFate::Warn);
        assert_eq!(POLICY.fate(0, Some(60 * DAY), 66 * DAY), FailureFate::KeepUntil(67 * DAY));
        assert_eq!(POLICY.fate(0, Some(60 * DAY), 67 * DAY), FailureFate::Delete);
    }
}
