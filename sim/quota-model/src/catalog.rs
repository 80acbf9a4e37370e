//! The catalog: one row for the tenant, one per file, the outbox; what a transaction does to them.

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
    /// A delete has read owner and epoch and not yet written. Only where deletes are not locked.
    Leaving {
        owner: QuotaOwner,
        epoch: u8,
    },
    /// Its charge is 0. Under the owner of Redis it left a line in the outbox, which `owed` says is still there;
    /// copies of the refund may be under way for ever.
    Deleted {
        line: Option<u8>,
        owed: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Catalog {
    pub epoch: u8,
    pub owner: QuotaOwner,
    /// Kept only while the database is the owner.
    pub used: i8,
    pub limit: i8,
    pub files: [File; IDS],
}

impl Catalog {
    pub fn new(limit: i8) -> Catalog {
        Catalog { epoch: 1, owner: QuotaOwner::Redis, used: 0, limit, files: [File::Absent; IDS] }
    }

    /// The truth.
    pub fn sum(&self, sizes: &[i8; IDS]) -> i8 {
        let charged = |file: &File| matches!(file, File::Charged | File::Leaving { .. });
        self.files.iter().zip(sizes).filter(|(file, _)| charged(file)).map(|(_, size)| size).sum()
    }

    pub fn owes(&self) -> bool {
        self.files.iter().any(|file| matches!(file, File::Deleted { owed: true, .. }))
    }

    /// Whether an insert with a reservation of this epoch may commit.
    pub fn admits(&self, rules: Rules, epoch: u8) -> bool {
        let owner = self.owner == QuotaOwner::Redis || !rules.has(Safeguard::InsertChecksGate);
        owner && (self.epoch == epoch || !rules.has(Safeguard::InsertChecksEpoch))
    }

    pub fn delete(&mut self, id: usize, size: i8, owner: QuotaOwner, epoch: u8) {
        self.files[id] = match owner {
            QuotaOwner::Database => {
                self.used -= size;
                File::Deleted { line: None, owed: false }
            }
            QuotaOwner::Redis => File::Deleted { line: Some(epoch), owed: true },
        };
    }

    /// The line is done with.
    pub fn forget_line(&mut self, id: usize) {
        if let File::Deleted { owed, .. } = &mut self.files[id] {
            *owed = false;
        }
    }

    /// `held` is the epoch that Redis counted under when it was asked: the new one is above both.
    pub fn rebuild(&mut self, sum: i8, held: Option<u8>) -> Load {
        self.epoch = self.epoch.max(held.unwrap_or(0)) + 1;
        self.owner = QuotaOwner::Redis;
        self.used = 0;
        Load { epoch: self.epoch, sum, limit: self.limit }
    }

    pub fn leave(&mut self, rules: Rules, sizes: &[i8; IDS]) {
        self.epoch += u8::from(rules.has(Safeguard::LeaveRaisesEpoch));
        self.owner = QuotaOwner::Database;
        self.used = self.sum(sizes);
    }

    pub fn set_limit(&mut self, rules: Rules, limit: i8) {
        self.limit = limit;
        self.epoch += u8::from(self.owner == QuotaOwner::Redis && rules.has(Safeguard::LimitRaisesEpoch));
    }
}
