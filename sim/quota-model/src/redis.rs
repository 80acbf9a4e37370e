//! Redis: its keys for a tenant, its atomic scripts, and its faults.

use crate::rules::{Fault, REBUILDS, Rules, Safeguard};

/// The keys of a tenant. Some or all of them can be lost, or go back to older values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keys {
    pub loaded: bool,
    pub used: i8,
    pub limit: i8,
    pub epoch: u8,
    pub run: u8,
    /// A bit for each id.
    pub inflight: u8,
    /// A bit for each outbox line. A line has the id of its file.
    pub refunded: u8,
    /// A bit for each evicted key.
    pub lost: u8,
    /// The announcements. For each rebuild whose name exists: the run in which Redis created it. Only its own load
    /// removes it. Names that no client received are left out, because they have no effect.
    pub loading: [Option<u8>; REBUILDS],
    /// Not a key of Redis. A late copy of a reservation was counted after its file was inserted and settled. No client
    /// will release it, and only a load corrects the count.
    pub late_copy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Redis {
    /// Identifies the process and its time as primary. The real id also names the catalog; the model has only one.
    pub run: u8,
    pub keys: Keys,
    /// The keys that were saved or replicated at some time.
    pub saved: Option<Keys>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    Reload,
    Refused,
    Ok { epoch: u8, counted: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refunded {
    Later,
    Dropped,
    Done { again: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    Yes,
    Unannounced,
    Newer,
}

/// The data of a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Load {
    pub epoch: u8,
    pub sum: i8,
    pub limit: i8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Used,
    Inflight,
    Refunded,
}

impl Keys {
    pub const NONE: Keys = Keys {
        loaded: false,
        used: 0,
        limit: 0,
        epoch: 0,
        run: 0,
        inflight: 0,
        refunded: 0,
        lost: 0,
        loading: [None; REBUILDS],
        late_copy: false,
    };

    fn of(load: Load, run: u8) -> Keys {
        Keys { loaded: true, used: load.sum, limit: load.limit, epoch: load.epoch, run, ..Keys::NONE }
    }
}

impl Redis {
    pub fn loaded(load: Load) -> Redis {
        Redis { run: 0, keys: Keys::of(load, 0), saved: None }
    }

    /// Whether the scripts use this state. Otherwise they answer RELOAD.
    pub fn is_valid(&self, rules: Rules) -> bool {
        let keys = &self.keys;
        let of_this_run = keys.run == self.run || !rules.has(Safeguard::RunCompared);
        let complete = keys.lost == 0 || !rules.has(Safeguard::MissingKeysReload);
        keys.loaded && of_this_run && complete
    }

    pub fn reserve(&mut self, rules: Rules, id: usize, size: i8) -> Reserved {
        if !self.is_valid(rules) {
            return Reserved::Reload;
        }
        let keys = &mut self.keys;
        let epoch = keys.epoch;
        if keys.inflight & (1 << id) != 0 && rules.has(Safeguard::ReserveOnce) {
            return Reserved::Ok { epoch, counted: false };
        }
        if keys.used + size > keys.limit {
            return Reserved::Refused;
        }
        keys.used += size;
        keys.inflight |= 1 << id;
        Reserved::Ok { epoch, counted: true }
    }

    pub fn settle(&mut self, rules: Rules, id: usize) {
        if self.is_valid(rules) {
            self.keys.inflight &= !(1 << id);
        }
    }

    pub fn release(&mut self, rules: Rules, id: usize, size: i8) {
        if self.is_valid(rules) && self.keys.inflight & (1 << id) != 0 {
            self.keys.used -= size;
            self.keys.inflight &= !(1 << id);
        }
    }

    pub fn refund(&mut self, rules: Rules, line: usize, size: i8, epoch: u8) -> Refunded {
        if !self.is_valid(rules) {
            return Refunded::Later;
        }
        let keys = &mut self.keys;
        if epoch > keys.epoch {
            return if rules.has(Safeguard::NewRefundsWait) { Refunded::Later } else { Refunded::Dropped };
        }
        if epoch < keys.epoch && rules.has(Safeguard::OldRefundsDropped) {
            return Refunded::Dropped;
        }
        if keys.refunded & (1 << line) != 0 && rules.has(Safeguard::RefundOnce) {
            return Refunded::Done { again: true };
        }
        keys.used -= size;
        keys.refunded |= 1 << line;
        Refunded::Done { again: false }
    }

    /// The epoch of Redis, if its state is valid.
    pub fn valid_epoch(&self, rules: Rules) -> Option<u8> {
        self.is_valid(rules).then_some(self.keys.epoch)
    }

    pub fn announce(&mut self, rebuild: usize) {
        self.keys.loading[rebuild] = Some(self.run);
    }

    /// Removes the name, also from the saved state, because no client will load under it.
    pub fn remove_name(&mut self, rebuild: usize) {
        self.keys.loading[rebuild] = None;
        if let Some(saved) = &mut self.saved {
            saved.loading[rebuild] = None;
        }
    }

    /// Whether the name exists, also in the saved state.
    pub fn has_name(&self, rebuild: usize) -> bool {
        [Some(&self.keys), self.saved.as_ref()]
            .into_iter()
            .flatten()
            .any(|keys| keys.loading[rebuild].is_some())
    }

    pub fn remove_names_of_earlier_runs(&mut self) {
        let run = self.run;
        for keys in [Some(&mut self.keys), self.saved.as_mut()].into_iter().flatten() {
            keys.loading = keys.loading.map(|made_to| made_to.filter(|made_to| *made_to == run));
        }
    }

    pub fn load(&mut self, rules: Rules, rebuild: usize, load: Load) -> Loaded {
        let announced = match self.keys.loading[rebuild] {
            _ if !rules.has(Safeguard::LoadAnnounced) => true,
            None => false,
            Some(run) => run == self.run || !rules.has(Safeguard::AnnouncedToThisRun),
        };
        if !announced {
            return Loaded::Unannounced;
        }
        if rules.has(Safeguard::NameUsedOnce) {
            self.keys.loading[rebuild] = None;
        }
        let newer_is_there = self.valid_epoch(rules).is_some_and(|redis_epoch| redis_epoch >= load.epoch);
        if newer_is_there && rules.has(Safeguard::NewerStateStays) {
            return Loaded::Newer;
        }
        self.keys = Keys { loading: self.keys.loading, ..Keys::of(load, self.run) };
        Loaded::Yes
    }

    pub fn apply_fault(&mut self, rules: Rules, fault: Fault) {
        match fault {
            Fault::RestartEmpty => {
                self.run += 1;
                self.keys = Keys::NONE;
            }
            Fault::RestartOld => {
                self.run += 1;
                self.keys = self.saved.unwrap_or(Keys::NONE);
            }
            Fault::FailBack => {
                self.run += u8::from(rules.has(Safeguard::RunEndsWithFailover));
                self.keys = self.saved.unwrap_or(Keys::NONE);
            }
            Fault::Flush => self.keys = Keys::NONE,
            Fault::Evict => {}
        }
    }

    pub fn evict(&mut self, key: Key) {
        match key {
            Key::Used => self.keys.used = 0,
            Key::Inflight => self.keys.inflight = 0,
            Key::Refunded => self.keys.refunded = 0,
        }
        self.keys.lost |= 1 << key as u8;
    }
}
