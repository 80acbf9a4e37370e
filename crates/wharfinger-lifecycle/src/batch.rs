//! A batch of uploads with one expiry time. Until a batch expires, its unconfirmed files are kept. When it expires or
//! is cancelled, their checks become due. Confirmed files stay.

use crate::UnixMs;
use crate::file::{File, UploadPolicy};
use crate::id::{BatchId, TenantId, UserId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchStatus {
    Active,
    /// All its files were confirmed.
    Completed,
    /// Its time ended before the client completed it.
    Expired,
    Cancelled,
}

impl BatchStatus {
    pub const ALL: [BatchStatus; 4] =
        [BatchStatus::Active, BatchStatus::Completed, BatchStatus::Expired, BatchStatus::Cancelled];

    pub fn as_str(self) -> &'static str {
        match self {
            BatchStatus::Active => "active",
            BatchStatus::Completed => "completed",
            BatchStatus::Expired => "expired",
            BatchStatus::Cancelled => "cancelled",
        }
    }

    pub fn parse(word: &str) -> Option<BatchStatus> {
        BatchStatus::ALL.into_iter().find(|status| status.as_str() == word)
    }

    /// Whether its unconfirmed files are removed.
    pub fn drops_unconfirmed(self) -> bool {
        match self {
            BatchStatus::Expired | BatchStatus::Cancelled => true,
            BatchStatus::Active | BatchStatus::Completed => false,
        }
    }
}

impl std::fmt::Display for BatchStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub id: BatchId,
    pub tenant: TenantId,
    pub user: UserId,
    pub status: BatchStatus,
    /// Every change raises it. Updates compare it (compare-and-set).
    pub version: i64,
    pub created_at: UnixMs,
    /// When it expires.
    pub expires_at: UnixMs,
    pub ended_at: Option<UnixMs>,
}

/// The batch is not in a state that allows the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    #[error("the batch is {0}")]
    Ended(BatchStatus),
    #[error("the batch has reached its expiry time")]
    PastExpiry,
    #[error("the batch has not expired yet")]
    NotExpired,
    #[error("{0} files of the batch are not confirmed")]
    Unconfirmed(u64),
}

pub fn open(id: BatchId, tenant: TenantId, user: UserId, timeout_ms: i64, now: UnixMs) -> Batch {
    Batch {
        id,
        tenant,
        user,
        status: BatchStatus::Active,
        version: 1,
        created_at: now,
        expires_at: now.saturating_add(timeout_ms),
        ended_at: None,
    }
}

impl Batch {
    /// Whether a file may be added to the batch now.
    pub fn check_open(&self, now: UnixMs) -> Result<(), BatchError> {
        match self.status {
            BatchStatus::Active if now < self.expires_at => Ok(()),
            BatchStatus::Active => Err(BatchError::PastExpiry),
            ended => Err(BatchError::Ended(ended)),
        }
    }

    /// Adds a registered file. Its next check moves to the end of the batch or later.
    pub fn add_file(&self, file: File, policy: &UploadPolicy) -> File {
        let ends_at = self.expires_at.saturating_add(policy.grace_for(file.size));
        let next_check_at = file.next_check_at.map(|at| at.max(ends_at));
        File { batch: Some(self.id), next_check_at, ..file }
    }

    /// `unconfirmed` counts the registered files, and the files that were reclaimed while the batch was active.
    pub fn complete(&self, unconfirmed: u64, now: UnixMs) -> Result<Batch, BatchError> {
        match (self.status, unconfirmed) {
            (BatchStatus::Active, 0) => Ok(self.ended(BatchStatus::Completed, now)),
            (BatchStatus::Active, unconfirmed) => Err(BatchError::Unconfirmed(unconfirmed)),
            (ended, _) => Err(BatchError::Ended(ended)),
        }
    }

    pub fn cancel(&self, now: UnixMs) -> Result<Batch, BatchError> {
        match self.status {
            BatchStatus::Active => Ok(self.ended(BatchStatus::Cancelled, now)),
            ended => Err(BatchError::Ended(ended)),
        }
    }

    /// A batch expires even if all its files are confirmed: until it is completed, the client may still add files.
    pub fn expire(&self, now: UnixMs) -> Result<Batch, BatchError> {
        match self.status {
            BatchStatus::Active if now >= self.expires_at => Ok(self.ended(BatchStatus::Expired, now)),
            BatchStatus::Active => Err(BatchError::NotExpired),
            ended => Err(BatchError::Ended(ended)),
        }
    }

    fn ended(&self, status: BatchStatus, now: UnixMs) -> Batch {
        Batch { status, version: self.version + 1, ended_at: Some(now), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::file::{CheckAction, Pin, UploadRequest, check, confirm, register, reissue};
    use crate::processing::PipelinePlan;

    const DAY_MS: i64 = 86_400_000;
    const POLICY: UploadPolicy = UploadPolicy {
        charge_bytes_min: 0,
        window_ms: 3_600_000,
        grace_ms: 60_000,
        min_rate_bytes: 262_144,
        tombstone_ms: 30 * DAY_MS,
        store_refuses_ended: false,
    };

    fn batch(now: UnixMs) -> Batch {
        let id = "018f4e6e-7f3a-7000-8000-00000000000b".parse().expect("a fixed id");
        let tenant = TenantId::new("t").expect("a fixed name");
        open(id, tenant, UserId::new("u").expect("a fixed name"), DAY_MS, now)
    }

    fn file_in(batch: &Batch, size: u64, now: UnixMs) -> File {
        let request = UploadRequest {
            name: "a".into(),
            size,
            content_type: None,
            checksum_sha256: None,
            metadata: None,
            stages: None,
        };
        let id = "018f4e6e-7f3a-7000-8000-000000000001".parse().expect("a fixed id");
        let file = register(id, batch.tenant.clone(), batch.user.clone(), request, &POLICY, now);
        batch.add_file(file, &POLICY)
    }

    #[test]
    fn every_status_parses_from_its_text() {
        for status in BatchStatus::ALL {
            assert_eq!(BatchStatus::parse(status.as_str()), Some(status));
        }
        assert_eq!(BatchStatus::parse("done"), None);
    }

    #[test]
    fn a_file_is_due_when_its_batch_ends_and_not_before() {
        let batch = batch(0);
        let file = file_in(&batch, 10, 5_000);
        assert_eq!(file.next_check_at, Some(DAY_MS + 60_000));
        assert_eq!(check(&file, &POLICY, DAY_MS + 59_999), CheckAction::NotDue);
        assert_eq!(check(&file, &POLICY, DAY_MS + 60_000), CheckAction::Unconfirmed);
        // A file that was added late is still checked only after its URL expired.
        let late = file_in(&batch, 10, DAY_MS - 1_000);
        assert_eq!(late.next_check_at, Some(POLICY.last_write_at(&late)));
        assert!(late.next_check_at > Some(DAY_MS + 60_000));
    }

    #[test]
    fn an_ended_batch_accepts_no_file_and_no_other_end() {
        let open = batch(0);
        assert_eq!(open.check_open(DAY_MS - 1), Ok(()));
        assert_eq!(open.check_open(DAY_MS), Err(BatchError::PastExpiry));
        assert_eq!(open.expire(DAY_MS - 1), Err(BatchError::NotExpired));
        assert_eq!(open.complete(2, 5), Err(BatchError::Unconfirmed(2)));
        let ends = [open.complete(0, 5), open.cancel(5), open.expire(DAY_MS)];
        for ended in ends.map(|ended| ended.expect("it was active")) {
            let refused = BatchError::Ended(ended.status);
            assert_eq!(ended.version, 2);
            assert!(ended.ended_at.is_some());
            assert_eq!(ended.check_open(6), Err(refused));
            assert_eq!(ended.complete(0, 6), Err(refused));
            assert_eq!(ended.cancel(6), Err(refused));
            assert_eq!(ended.expire(i64::MAX), Err(refused));
        }
    }

    proptest! {
        /// Fresh URLs never move the check of a file before the end of its batch, or before the last URL expires.
        #[test]
        fn fresh_urls_never_move_the_check_forward(
            size in 0u64..1 << 40,
            laters in prop::collection::vec(0i64..20_000_000, 0..12),
        ) {
            let batch = batch(0);
            let mut file = file_in(&batch, size, 0);
            let mut now = 0;
            for later in laters {
                now += later;
                file = reissue(&file, &POLICY, now).expect("still registered").after;
                prop_assert!(file.next_check_at >= Some(batch.expires_at + POLICY.grace_for(size)));
                prop_assert!(file.next_check_at >= Some(POLICY.last_write_at(&file)));
                prop_assert_eq!(file.batch, Some(batch.id));
            }
            let pin = Pin { etag: "e".into(), version_id: None };
            let confirmed = confirm(&file, pin, None, "confirmed", &PipelinePlan::without_stages(), now);
            prop_assert_eq!(confirmed.expect("confirmable").after.next_check_at, None);
        }
    }
}
