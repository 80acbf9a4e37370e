//! All that is remembered between two steps, and the steps there are.

use crate::catalog::{Catalog, File, QuotaOwner};
use crate::redis::{Key, Keys, Load, Redis};
use crate::rules::{Fault, IDS, REBUILDS, Scope};

/// How far the one who uploads under an id has come. A crash is the end of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// Nothing is known. Reservations may be under way, and have been counted.
    Open,
    /// Redis answered OK under this epoch.
    Held { epoch: u8 },
    /// The insert has checked and not yet written. Only where inserts are not locked.
    Checked,
    /// The insert committed, and the answer came.
    Known,
    /// The insert committed, and the answer did not come.
    Unknown,
    /// Inserted while the database was the owner.
    Direct,
    /// The insert was surely rolled back. Where the outcomes are watched: because the epoch moved.
    Back { moved: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Upload {
    pub step: Step,
    /// A release was sent: it may be executed at any time from then on, any number of times.
    pub released: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rebuild {
    /// Not begun; or spared, which comes to the same: the name that it leaves behind is nobody's.
    Idle,
    /// Redis answered the announcement, and with it under which epoch it soundly counts.
    Announced { held: Option<u8> },
    /// The catalog's epoch was read, and is another. Only where rebuilds are triggered: elsewhere the next step may
    /// be taken without looking.
    Needed { held: Option<u8> },
    /// The sum was read and the epoch not yet raised. Only where the sum may come before.
    Read { sum: i8, held: Option<u8> },
    /// The epoch was raised and the sum not yet read. Only where the sum may come after.
    Raised(Load),
    /// The load was sent: it may be executed at any time from then on, any number of times.
    Sent(Load),
    /// The load was taken or refused, or its name lost: copies of it come to nothing.
    Over,
}

/// What the last step came to, where that is worth seeing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Plain,
    RefundContained,
    RefundAgain,
    LoadRefused,
    /// A load was taken though that of a rebuild announced after it had been taken before.
    RacingLoadTaken,
    RebuildSpared,
    EpochMoved,
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
    /// An insert went over the limit in force.
    pub over: bool,
    /// A load took from Redis what it counted under the catalog's own epoch.
    pub set_back: bool,
    /// Where rebuilds are triggered: how many found the need of one.
    pub wanted: u8,
    pub last: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Reserve { id: usize, answered: bool },
    CheckInsert { id: usize },
    Insert { id: usize, answered: bool },
    Withdraw { id: usize },
    InsertDirect { id: usize },
    Settle { id: usize },
    Release { id: usize },
    ReadDelete { id: usize },
    Delete { id: usize },
    Refund { line: usize, answered: bool },
    ForgetOldLine { line: usize },
    Announce { rebuild: usize, answered: bool },
    Compare { rebuild: usize },
    ReadSum { rebuild: usize },
    Raise { rebuild: usize },
    Load { rebuild: usize },
    Leave,
    SetLimit,
    Save,
    Suffer(Fault),
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
            over: false,
            set_back: false,
            wanted: 0,
            last: Outcome::Plain,
        }
    }

    /// Swaps two ids of the same size everywhere.
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

    /// One state for all that differ only in the order of ids of the same size.
    pub fn folded(mut self, sizes: &[i8; IDS]) -> State {
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
            File::Leaving { owner, epoch } => (2, epoch, owner == QuotaOwner::Redis),
            File::Deleted { line, owed } => (3, line.unwrap_or(0), owed),
        };
        let bits = |keys: &Keys| [keys.inflight >> id & 1, keys.refunded >> id & 1];
        let (now, saved) = (bits(&self.redis.keys), self.redis.saved.as_ref().map_or([0, 0], bits));
        (self.uploads[id], file, [now[0], now[1], saved[0], saved[1]])
    }
}
