//! A batch: uploads that begin and end together. While it is active its files are waited for; however it ends,
//! what was confirmed stays, and what was not goes.

use crate::UnixMs;
use crate::file::{File, UploadPolicy};
use crate::id::{BatchId, TenantId, UserId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchStatus {
    Active,
    /// Every file of it was confirmed.
    Completed,
    /// Its time was over first.
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

    /// Its unconfirmed files are not waited for any more.
    pub fn is_called_off(self) -> bool {
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
    /// Raised by every change: what a compare-and-set compares.
    pub version: i64,
    pub created_at: UnixMs,
    /// When it ends by itself.
    pub expires_at: UnixMs,
    pub ended_at: Option<UnixMs>,
}

/// It is not in the state for this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the batch is {0}")]
    Ended(BatchStatus),
    #[error("the time of the batch is over")]
    TimeOver,
    #[error("the batch has time until its end")]
    NotYet,
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
    /// Whether a file may be added to it now.
    pub fn may_grow(&self, now: UnixMs) -> Result<(), Refusal> {
        match self.status {
            BatchStatus::Active if now < self.expires_at => Ok(()),
            BatchStatus::Active => Err(Refusal::TimeOver),
            ended => Err(Refusal::Ended(ended)),
        }
    }

    /// Makes a registered file one of the batch: it is waited for as long as the batch is.
    pub fn adopt(&self, file: File, policy: &UploadPolicy) -> File {
        let ends_at = self.expires_at.saturating_add(policy.grace_for(file.size));
        let next_check_at = file.next_check_at.map(|at| at.max(ends_at));
        File { batch: Some(self.id), next_check_at, ..file }
    }

    /// `unconfirmed` counts the files that still wait, and those that were reclaimed while it was active.
    pub fn complete(&self, unconfirmed: u64, now: UnixMs) -> Result<Batch, Refusal> {
        match (self.status, unconfirmed) {
            (BatchStatus::Active, 0) => Ok(self.ended(BatchStatus::Completed, now)),
            (BatchStatus::Active, some) => Err(Refusal::Unconfirmed(some)),
            (ended, _) => Err(Refusal::Ended(ended)),
        }
    }

    pub fn cancel(&self, now: UnixMs) -> Result<Batch, Refusal> {
        match self.status {
            BatchStatus::Active => Ok(self.ended(BatchStatus::Cancelled, now)),
            ended => Err(Refusal::Ended(ended)),
        }
    }

    /// Also where every file was confirmed: nobody has said that there are no more to come.
    pub fn expire(&self, now: UnixMs) -> Result<Batch, Refusal> {
        match self.status {
            BatchStatus::Active if now >= self.expires_at => Ok(self.ended(BatchStatus::Expired, now)),
            BatchStatus::Active => Err(Refusal::NotYet),
            ended => Err(Refusal::Ended(ended)),
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
    use crate::file::{Announcement, Check, Pin, check, confirm, register, reissue};
    use crate::processing::Plan;

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
        let announced = Announcement {
            name: "a".into(),
            size,
            content_type: None,
            checksum_sha256: None,
            metadata: None,
        };
        let id = "018f4e6e-7f3a-7000-8000-000000000001".parse().expect("a fixed id");
        let file = register(id, batch.tenant.clone(), batch.user.clone(), announced, &POLICY, now);
        batch.adopt(file, &POLICY)
    }

    #[test]
    fn every_word_comes_back() {
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
        assert_eq!(check(&file, &POLICY, DAY_MS + 59_999), Check::NotYet);
        assert_eq!(check(&file, &POLICY, DAY_MS + 60_000), Check::Unconfirmed);
        // One that came late still has the whole life of its URL.
        let late = file_in(&batch, 10, DAY_MS - 1_000);
        assert_eq!(late.next_check_at, Some(POLICY.silent_at(&late)));
        assert!(late.next_check_at > Some(DAY_MS + 60_000));
    }

    #[test]
    fn an_ended_batch_takes_nothing_and_ends_no_other_way() {
        let open = batch(0);
        assert_eq!(open.may_grow(DAY_MS - 1), Ok(()));
        assert_eq!(open.may_grow(DAY_MS), Err(Refusal::TimeOver));
        assert_eq!(open.expire(DAY_MS - 1), Err(Refusal::NotYet));
        assert_eq!(open.complete(2, 5), Err(Refusal::Unconfirmed(2)));
        let ends = [open.complete(0, 5), open.cancel(5), open.expire(DAY_MS)];
        for ended in ends.map(|ended| ended.expect("it was active")) {
            let refused = Refusal::Ended(ended.status);
            assert_eq!(ended.version, 2);
            assert!(ended.ended_at.is_some());
            assert_eq!(ended.may_grow(6), Err(refused));
            assert_eq!(ended.complete(0, 6), Err(refused));
            assert_eq!(ended.cancel(6), Err(refused));
            assert_eq!(ended.expire(i64::MAX), Err(refused));
        }
    }

    proptest! {
        /// However often its URL is made anew, a file of an active batch is waited for to the batch's end, and as long
        /// as any of its URLs lives.
        #[test]
        fn fresh_urls_never_bring_the_look_forward(
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
                prop_assert!(file.next_check_at >= Some(POLICY.silent_at(&file)));
                prop_assert_eq!(file.batch, Some(batch.id));
            }
            let pin = Pin { etag: "e".into(), version_id: None };
            let confirmed = confirm(&file, pin, None, "confirmed", &Plan::without_stages(), now);
            prop_assert_eq!(confirmed.expect("confirmable").after.next_check_at, None);
        }
    }
}
