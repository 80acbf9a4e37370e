//! The safeguards of the protocol, each of which can be taken away, and the bounds of what is explored.

/// A rule of the protocol. The tests take away one at a time and see what breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Safeguard {
    /// An insert commits only under the epoch that its reservation was made under.
    InsertChecksEpoch,
    /// An insert that has a reservation commits only while Redis is the owner.
    InsertChecksGate,
    /// The insert's check and its write are one transaction that a rebuild waits for.
    InsertLocked,
    /// The delete's reading of owner and epoch and its write are one transaction that a rebuild waits for.
    DeleteLocked,
    /// The rebuild does not read the sum before the transaction that raises the epoch.
    SumNotBefore,
    /// The rebuild does not read the sum after the transaction that raises the epoch.
    SumNotAfter,
    /// State that was loaded under another run of the server is not believed.
    RunCompared,
    /// A run ends with every change of the primary, not only when the process ends.
    RunEndsWithReign,
    /// Where a key is missing all of the state is: nothing is counted from zero.
    MissingKeysReload,
    /// A refund older than the load is dropped: the load contained it.
    OldRefundsDropped,
    /// A refund newer than the load waits for the load it belongs to.
    NewRefundsWait,
    /// A refund counts once per outbox line.
    RefundOnce,
    /// The lines that were refunded are known until the next load, not only until the line is deleted.
    RefundedKept,
    /// A refund carries the epoch of the delete, not that of the moment it is sent.
    RefundStamped,
    /// A load is taken only after its announcement.
    LoadAnnounced,
    /// The announcement must have been made to this run of the server.
    AnnouncedToThisRun,
    /// Redis names the announcement, anew at every execution, rather than the one who announces.
    AnnouncementMinted,
    /// A load takes its name away, whether it is taken or refused as not newer; all other names stay.
    NameTakenOnce,
    /// A load does not replace state of its own epoch or of a later one.
    NewerStateStays,
    /// A reservation counts once per id.
    ReserveOnce,
    /// A release is sent only when the insert has surely been rolled back.
    ReleaseWhenSure,
    /// An id that was released is never reserved again: who starts over takes a new one.
    FreshIdPerTry,
    /// Leaving Redis raises the epoch.
    LeaveRaisesEpoch,
    /// Changing the limit raises the epoch.
    LimitRaisesEpoch,
    /// Who finds that the epoch moved sets about a rebuild, though Redis said nothing is wrong.
    MovedRebuilds,
    /// A rebuild is spared only where Redis counts under the catalog's epoch, not wherever it counts.
    SparedOnlyIfEqual,
}

/// The protocol: all safeguards but those taken away.
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

/// What Redis can suffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Fault {
    /// The process ends, and another begins with nothing.
    RestartEmpty,
    /// The process ends, and another begins with what was saved, or replicated, at an earlier moment.
    RestartOld,
    /// A replica that lags becomes primary, and then the first one again, with the replica's state: the
    /// process is the same as before, its state is older.
    FailBack,
    /// All keys go; the process stays.
    Flush,
    /// One key goes: evicted, or deleted by hand.
    Evict,
}

impl Fault {
    pub const ALL: [Fault; 5] =
        [Fault::RestartEmpty, Fault::RestartOld, Fault::FailBack, Fault::Flush, Fault::Evict];
}

/// How many ids and rebuilds there is room for in the state.
pub const IDS: usize = 3;
pub const REBUILDS: usize = 3;

/// The bounds of one exploration: what may happen, and how often.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The size of each id; one that is 0 is not used.
    pub sizes: [i8; IDS],
    pub limit: i8,
    /// The limit that a change sets; never set while `limit_changes` is 0.
    pub other_limit: i8,
    pub limit_changes: u8,
    pub rebuilds: usize,
    pub leaves: u8,
    pub faults: u8,
    pub kinds: &'static [Fault],
    /// Remembers the outcome of the last step, for the claims about what must be seen.
    pub watched: bool,
    /// Rebuilds are begun only by those who found a need, and spared wherever they can be, rather than begun at any
    /// time and spared or not.
    pub triggered: bool,
    /// Takes states for one that differ only in which id of the same size is which. Smaller, but the ids of a
    /// counterexample change from step to step.
    pub folded: bool,
}

impl Scope {
    /// Two files of which only one fits, two rebuilds, nothing else: the others are made from it.
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
            watched: false,
            triggered: false,
            folded: false,
        }
    }
}
