//! Redis: what it holds for a tenant, the scripts, each of which is atomic, and what befalls it.

use crate::rules::{Fault, Rules, Safeguard};

/// The keys of a tenant. All of it can be lost, in part or as a whole, or become what it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keys {
    pub loaded: bool,
    pub used: i8,
    pub limit: i8,
    pub epoch: u8,
    pub run: u8,
    /// Bit per id.
    pub inflight: u8,
    /// Bit per outbox line; a line has the id of its file.
    pub refunded: u8,
    /// Bit per key that was evicted: its value reads as nothing.
    pub lost: u8,
    pub loading: Option<Announcement>,
    /// Not in Redis: a late copy of a reservation was counted after its file had been inserted and settled, so
    /// that nobody will ever take it back. Only a load mends that.
    pub stray: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Announcement {
    pub rebuild: u8,
    pub run: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Redis {
    pub run: u8,
    pub keys: Keys,
    /// The keys as they were saved or replicated at some moment.
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

/// What a rebuild brings.
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
        loading: None,
        stray: false,
    };

    fn of(load: Load, run: u8) -> Keys {
        Keys { loaded: true, used: load.sum, limit: load.limit, epoch: load.epoch, run, ..Keys::NONE }
    }
}

impl Redis {
    pub fn loaded(load: Load) -> Redis {
        Redis { run: 0, keys: Keys::of(load, 0), saved: None }
    }

    /// Whether the scripts count with this state rather than answer RELOAD.
    pub fn believed(&self, rules: Rules) -> bool {
        let keys = &self.keys;
        let of_this_run = keys.run == self.run || !rules.has(Safeguard::RunCompared);
        let complete = keys.lost == 0 || !rules.has(Safeguard::MissingKeysReload);
        keys.loaded && of_this_run && complete
    }

    pub fn reserve(&mut self, rules: Rules, id: usize, size: i8) -> Reserved {
        if !self.believed(rules) {
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
        if self.believed(rules) {
            self.keys.inflight &= !(1 << id);
        }
    }

    pub fn release(&mut self, rules: Rules, id: usize, size: i8) {
        if self.believed(rules) && self.keys.inflight & (1 << id) != 0 {
            self.keys.used -= size;
            self.keys.inflight &= !(1 << id);
        }
    }

    pub fn refund(&mut self, rules: Rules, line: usize, size: i8, epoch: u8) -> Refunded {
        if !self.believed(rules) {
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

    pub fn announce(&mut self, rebuild: usize) {
        self.keys.loading = Some(Announcement { rebuild: rebuild as u8, run: self.run });
    }

    /// False: refused.
    pub fn load(&mut self, rules: Rules, rebuild: usize, load: Load) -> bool {
        let announced = match self.keys.loading {
            _ if !rules.has(Safeguard::LoadAnnounced) => true,
            None => false,
            Some(loading) => {
                let here = loading.run == self.run || !rules.has(Safeguard::AnnouncedToThisRun);
                usize::from(loading.rebuild) == rebuild && here
            }
        };
        let newer_is_there = self.believed(rules) && self.keys.epoch >= load.epoch;
        if !announced || newer_is_there && rules.has(Safeguard::NewerStateStays) {
            return false;
        }
        self.keys = Keys::of(load, self.run);
        true
    }

    pub fn suffer(&mut self, rules: Rules, fault: Fault) {
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
                self.run += u8::from(rules.has(Safeguard::RunEndsWithReign));
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
