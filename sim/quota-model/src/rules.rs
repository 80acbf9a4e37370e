//! The safeguards of the protocol, each of which can be removed, and the bounds of an exploration.

/// A rule of the protocol. The tests remove one at a time and see what breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Safeguard {
    /// An insert commits only under the epoch of its reservation.
    InsertChecksEpoch,
    /// An insert that has a reservation commits only while Redis is the owner.
    InsertChecksOwner,
    /// The check and the write of an insert are one transaction. A rebuild waits for it.
    InsertLocked,
    /// A delete reads owner and epoch and writes in one transaction. A rebuild waits for it.
    DeleteLocked,
    /// The rebuild does not read the sum before the transaction that raises the epoch.
    SumNotBefore,
    /// The rebuild does not read the sum after the transaction that raises the epoch.
    SumNotAfter,
    /// State that was loaded in another run of the server is not used.
    RunCompared,
    /// A run ends with every change of the primary, not only with the process.
    RunEndsWithFailover,
    /// If one key is missing, the whole state is treated as lost. A missing count is not zero.
    MissingKeysReload,
    /// A refund older than the load is dropped: the load contained it.
    OldRefundsDropped,
    /// A refund newer than the load waits for its load.
    NewRefundsWait,
    /// A refund counts once for each outbox line.
    RefundOnce,
    /// Redis remembers refunded lines until the next load, not only until the line is deleted.
    RefundedKept,
    /// A refund carries the epoch at the time of the delete, not at the time when it is sent.
    RefundStamped,
    /// A load is accepted only after its announcement.
    LoadAnnounced,
    /// The announcement must have been made in this run of the server.
    AnnouncedToThisRun,
    /// Redis creates the name of an announcement, a new one at every execution. The client does not choose it.
    AnnouncementNamedByRedis,
    /// A load removes its name, also if it is refused because it is not newer. All other names stay.
    NameUsedOnce,
    /// A load does not replace state of the same epoch or of a later one.
    NewerStateStays,
    /// A reservation counts once for each id.
    ReserveOnce,
    /// A release is sent only if the insert has certainly been rolled back.
    ReleaseWhenSure,
    /// A released id is never reserved again. Each attempt uses a new id.
    FreshIdPerTry,
    /// Leaving Redis raises the epoch.
    LeaveRaisesEpoch,
    /// Changing the limit raises the epoch.
    LimitRaisesEpoch,
    /// A client that finds a changed epoch starts a rebuild, although Redis answered OK.
    EpochChangeRebuilds,
    /// A rebuild is skipped only if Redis counts under the catalog's epoch, not under any epoch.
    SkippedOnlyIfEqual,
}

/// The protocol: all safeguards except the removed ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules(u32);

impl Rules {
    pub fn all() -> Rules {
        Rules(0)
    }

    pub fn without(self, safeguard: Safeguard) -> Rules {
        Rules(self.0 | 1 << safeguard as u32)
    }

    pub(crate) fn has(self, safeguard: Safeguard) -> bool {
        self.0 & (1 << safeguard as u32) == 0
    }
}

/// A fault of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Fault {
    /// The process ends, and another starts without data.
    RestartEmpty,
    /// The process ends, and another starts with the data that was saved or replicated earlier.
    RestartOld,
    /// A lagging replica becomes primary, then the first server again, with the replica's state. The process is the
    /// same, and its state is older.
    FailBack,
    /// All keys are deleted. The process continues.
    Flush,
    /// One key is deleted: evicted, or by hand.
    Evict,
}

impl Fault {
    pub const ALL: [Fault; 5] =
        [Fault::RestartEmpty, Fault::RestartOld, Fault::FailBack, Fault::Flush, Fault::Evict];
}

/// The maximum number of ids and rebuilds in a state.
pub const IDS: usize = 3;
pub const REBUILDS: usize = 3;

/// The bounds of one exploration: which steps are possible, and how often.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The size of each file. An id with size 0 is not used.
    pub sizes: [i8; IDS],
    pub limit: i8,
    /// The limit after a change. Not used if `limit_changes` is 0.
    pub other_limit: i8,
    pub limit_changes: u8,
    pub rebuilds: usize,
    pub leaves: u8,
    pub faults: u8,
    pub kinds: &'static [Fault],
    /// Stores the outcome of the last step, for the hard cases that must be reached.
    pub track_outcomes: bool,
    /// Only clients that found a reason start rebuilds, and every rebuild that can be skipped is skipped. Otherwise
    /// rebuilds start at any time, and skipping is optional.
    pub on_demand: bool,
    /// Treats states as equal if they differ only in the order of ids of the same size. This explores fewer states, but
    /// ids change between the steps of a counterexample.
    pub reduce_symmetry: bool,
}

impl Scope {
    /// Two files of which only one fits, and two rebuilds. Other scopes start from this one.
    pub fn small() -> Scope {
        Scope {
            sizes: [1, 1, 0],
            limit: 1,
            other_limit: 1,
            limit_changes: 0,
            rebuilds: 2,
            leaves: 0,
            faults: 0,
            kinds: &[],
            track_outcomes: false,
            on_demand: false,
            reduce_symmetry: false,
        }
    }
}
