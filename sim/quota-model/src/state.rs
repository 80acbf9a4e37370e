//! The state between two steps, and the list of steps.

use crate::catalog::{Catalog, File, QuotaOwner};
use crate::redis::{Key, Keys, Load, Redis};
use crate::rules::{Fault, IDS, REBUILDS, Scope};

/// The progress of the upload with an id. A crash means that it takes no further step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// The client knows nothing. Its reservations may already be counted.
    Open,
    /// Redis answered OK with this epoch.
    Reserved { epoch: u8 },
    /// The insert has checked and has not written yet. Only if inserts are not locked.
    Checked,
    /// The insert committed, and the client got the answer.
    InsertKnown,
    /// The insert committed, and the answer was lost.
    InsertUnknown,
    /// Inserted while the database was the owner.
    InsertedByDatabase,
    /// The insert was certainly rolled back. `epoch_changed` is set only if the scope tracks outcomes.
    RolledBack { epoch_changed: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Upload {
    pub step: Step,
    /// A release was sent. It may be executed at any later time, any number of times.
    pub released: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rebuild {
    /// Not started, or skipped. A skipped rebuild leaves a name that no client uses.
    Idle,
    /// Redis answered the announcement with the epoch of its state, if that is valid.
    Announced { redis_epoch: Option<u8> },
    /// The catalog's epoch was read and differs. Only if rebuilds are on demand; otherwise the next step needs no
    /// comparison.
    Needed { redis_epoch: Option<u8> },
    /// The sum was read, and the epoch is not raised yet. Only without `SumNotBefore`.
    Read { sum: i8, redis_epoch: Option<u8> },
    /// The epoch was raised, and the sum is not read yet. Only without `SumNotAfter`.
    Raised(Load),
    /// The load was sent. It may be executed at any later time, any number of times.
    Sent(Load),
    /// The load was accepted or refused, or its name was lost. Copies of it have no effect.
    Done,
}

/// The outcome of the last step, if a hard case needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Plain,
    RefundContained,
    RefundAgain,
    LoadRefused,
    /// A load was accepted after the load of a later rebuild.
    RacingLoadAccepted,
    RebuildSkipped,
    EpochChanged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub catalog: Catalog,
    pub redis: Redis,
    pub uploads: [Upload; IDS],
    pub rebuilds: [Rebuild; REBUILDS],
    pub faults_left: u8,
    pub leaves_left: u8,
    pub limits_left: u8,
    /// An insert exceeded the limit.
    pub over_limit: bool,
    /// An older load replaced a count under the catalog's epoch.
    pub current_load_replaced: bool,
    /// If rebuilds are on demand: how many clients found a reason for one.
    pub rebuilds_wanted: u8,
    pub last: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Reserve { id: usize, answered: bool },
    CheckInsert { id: usize },
    Insert { id: usize, answered: bool },
    RollBack { id: usize },
    InsertDirect { id: usize },
    Settle { id: usize },
    Release { id: usize },
    StartDelete { id: usize },
    Delete { id: usize },
    Refund { line: usize, answered: bool },
    RemoveOldLine { line: usize },
    Announce { rebuild: usize, answered: bool },
    Compare { rebuild: usize },
    ReadSum { rebuild: usize },
    Raise { rebuild: usize },
    Load { rebuild: usize },
    LeaveRedis,
    SetLimit,
    Save,
    Fault(Fault),
    Evict(Key),
}

impl State {
    pub fn first(scope: &Scope) -> State {
        let load = Load { epoch: 1, sum: 0, limit: scope.limit };
        State {
            catalog: Catalog::new(scope.limit),
            redis: Redis::loaded(load),
            uploads: [Upload { step: Step::Open, released: false }; IDS],
            rebuilds: [Rebuild::Idle; REBUILDS],
            faults_left: scope.faults,
            leaves_left: scope.leaves,
            limits_left: scope.limit_changes,
            over_limit: false,
            current_load_replaced: false,
            rebuilds_wanted: 0,
            last: Outcome::Plain,
        }
    }

    /// Swaps two ids of the same size.
    fn swap(&mut self, a: usize, b: usize) {
        self.uploads.swap(a, b);
        self.catalog.files.swap(a, b);
        let swapped = |bits: u8| {
            let (of_a, of_b) = (bits >> a & 1, bits >> b & 1);
            bits & !(1 << a | 1 << b) | of_a << b | of_b << a
        };
        let swap_keys = |keys: &mut Keys| {
            keys.inflight = swapped(keys.inflight);
            keys.refunded = swapped(keys.refunded);
        };
        swap_keys(&mut self.redis.keys);
        if let Some(saved) = &mut self.redis.saved {
            swap_keys(saved);
        }
    }

    /// The same state for all states that differ only in the order of ids of the same size.
    pub fn canonical(mut self, sizes: &[i8; IDS]) -> State {
        for last in (1..IDS).rev() {
            for id in 0..last {
                if sizes[id] == sizes[id + 1] && self.rank(id) > self.rank(id + 1) {
                    self.swap(id, id + 1);
                }
            }
        }
        self
    }

    fn rank(&self, id: usize) -> (Upload, (u8, u8, bool), [u8; 4]) {
        let file = match self.catalog.files[id] {
            File::Absent => (0, 0, false),
            File::Charged => (1, 0, false),
            File::DeleteStarted { owner, epoch } => (2, epoch, owner == QuotaOwner::Redis),
            File::Deleted { line, pending } => (3, line.unwrap_or(0), pending),
        };
        let bits = |keys: &Keys| [keys.inflight >> id & 1, keys.refunded >> id & 1];
        let (now, saved) = (bits(&self.redis.keys), self.redis.saved.as_ref().map_or([0, 0], bits));
        (self.uploads[id], file, [now[0], now[1], saved[0], saved[1]])
    }
}
