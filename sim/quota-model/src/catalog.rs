//! The catalog: a row for the tenant, a row for each file, the outbox, and the transactions on them.

use crate::redis::Load;
use crate::rules::{IDS, Rules, Safeguard};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuotaOwner {
    Database,
    Redis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum File {
    Absent,
    Charged,
    /// A delete has read owner and epoch, and has not written yet. Only if deletes are not locked.
    DeleteStarted {
        owner: QuotaOwner,
        epoch: u8,
    },
    /// Its charge is 0. If Redis was the owner, the delete wrote an outbox line. `pending`: the line still exists.
    /// Copies of the refund may be executed at any later time.
    Deleted {
        line: Option<u8>,
        pending: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Catalog {
    pub epoch: u8,
    pub owner: QuotaOwner,
    /// Valid only while the database is the owner.
    pub used: i8,
    pub limit: i8,
    pub files: [File; IDS],
}

impl Catalog {
    pub fn new(limit: i8) -> Catalog {
        Catalog { epoch: 1, owner: QuotaOwner::Redis, used: 0, limit, files: [File::Absent; IDS] }
    }

    /// The sum of all charges, which `used` must match.
    pub fn sum(&self, sizes: &[i8; IDS]) -> i8 {
        let charged = |file: &File| matches!(file, File::Charged | File::DeleteStarted { .. });
        self.files.iter().zip(sizes).filter(|(file, _)| charged(file)).map(|(_, size)| size).sum()
    }

    pub fn has_pending_refund(&self) -> bool {
        self.files.iter().any(|file| matches!(file, File::Deleted { pending: true, .. }))
    }

    /// Whether an insert with a reservation of this epoch may commit.
    pub fn admits(&self, rules: Rules, epoch: u8) -> bool {
        let owner = self.owner == QuotaOwner::Redis || !rules.has(Safeguard::InsertChecksOwner);
        owner && (self.epoch == epoch || !rules.has(Safeguard::InsertChecksEpoch))
    }

    pub fn delete(&mut self, id: usize, size: i8, owner: QuotaOwner, epoch: u8) {
        self.files[id] = match owner {
            QuotaOwner::Database => {
                self.used -= size;
                File::Deleted { line: None, pending: false }
            }
            QuotaOwner::Redis => File::Deleted { line: Some(epoch), pending: true },
        };
    }

    /// Removes the outbox line.
    pub fn remove_line(&mut self, id: usize) {
        if let File::Deleted { pending, .. } = &mut self.files[id] {
            *pending = false;
        }
    }

    /// `redis_epoch` is the epoch that Redis answered. The new epoch is above it and above the catalog's.
    pub fn rebuild(&mut self, sum: i8, redis_epoch: Option<u8>) -> Load {
        self.epoch = self.epoch.max(redis_epoch.unwrap_or(0)) + 1;
        self.owner = QuotaOwner::Redis;
        self.used = 0;
        Load { epoch: self.epoch, sum, limit: self.limit }
    }

    pub fn leave_redis(&mut self, rules: Rules, sizes: &[i8; IDS]) {
        self.epoch += u8::from(rules.has(Safeguard::LeaveRaisesEpoch));
        self.owner = QuotaOwner::Database;
        self.used = self.sum(sizes);
    }

    pub fn set_limit(&mut self, rules: Rules, limit: i8) {
        self.limit = limit;
        self.epoch += u8::from(self.owner == QuotaOwner::Redis && rules.has(Safeguard::LimitRaisesEpoch));
    }
}
