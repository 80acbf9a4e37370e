//! The steps: which are open in a state, and what each of them does.

use stateright::{Model, Property};

use crate::catalog::{File, QuotaOwner};
use crate::claims;
use crate::redis::{Key, Load, Loaded, Refunded, Reserved};
use crate::rules::{Fault, Rules, Safeguard, Scope};
use crate::state::{Action, Outcome, Rebuild, State, Step};

#[derive(Clone, Debug)]
pub struct Quota {
    pub rules: Rules,
    pub scope: Scope,
}

impl Model for Quota {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(&self.scope)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What comes after would only make the counterexample longer.
        if state.over {
            return;
        }
        for id in self.ids() {
            self.upload_actions(state, id, actions);
            self.delete_actions(state, id, actions);
        }
        for rebuild in 0..self.scope.rebuilds {
            self.rebuild_actions(state, rebuild, actions);
        }
        if state.leaves_left > 0 && state.catalog.owner == QuotaOwner::Redis {
            actions.push(Action::Leave);
        }
        if state.limits_left > 0 {
            actions.push(Action::SetLimit);
        }
        self.fault_actions(state, actions);
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = *before;
        state.last = Outcome::Plain;
        self.take(&mut state, action);
        if !self.scope.watched {
            state.last = Outcome::Plain;
        }
        self.tidy(&mut state);
        let state = if self.scope.folded { state.folded(&self.scope.sizes) } else { state };
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Quota>> {
        claims::all(&self.scope)
    }
}

impl Quota {
    /// Forgets what can make no difference any more: fewer states. Runs and the catalog's epoch only go up, so that a
    /// name of an earlier run opens nothing, and an earlier epoch of Redis is neither equal nor the higher of the two.
    fn tidy(&self, state: &mut State) {
        if self.rules.has(Safeguard::AnnouncedToThisRun) {
            state.redis.forget_names_of_earlier_runs();
        }
        // Names are new each time: a load without its name is never taken any more, whatever it brings.
        let named = self.rules.has(Safeguard::LoadAnnounced) && self.rules.has(Safeguard::AnnouncementMinted);
        if named && !self.scope.watched {
            for (rebuild, now) in state.rebuilds.iter_mut().enumerate() {
                if matches!(now, Rebuild::Sent(_)) && !state.redis.knows_name(rebuild) {
                    *now = Rebuild::Over;
                }
            }
        }
        if self.rules.has(Safeguard::SparedOnlyIfEqual) {
            let epoch = state.catalog.epoch;
            for rebuild in &mut state.rebuilds {
                if let Rebuild::Announced { held } | Rebuild::Needed { held } | Rebuild::Read { held, .. } =
                    rebuild
                {
                    *held = held.filter(|held| *held >= epoch);
                }
            }
        }
    }

    fn ids(&self) -> impl Iterator<Item = usize> + '_ {
        self.scope.sizes.iter().enumerate().filter(|(_, size)| **size > 0).map(|(id, _)| id)
    }

    fn upload_actions(&self, state: &State, id: usize, actions: &mut Vec<Action>) {
        let upload = state.uploads[id];
        let back = matches!(upload.step, Step::Back { .. });
        let again = back && !self.rules.has(Safeguard::FreshIdPerTry);
        let waits = upload.step == Step::Open || again;
        // Copies of a reservation may be executed at any time: whether it was sent makes no difference.
        actions.push(Action::Reserve { id, answered: false });
        if waits {
            actions.push(Action::Reserve { id, answered: true });
        }
        match upload.step {
            Step::Held { .. } => {
                if !self.rules.has(Safeguard::InsertLocked) {
                    actions.push(Action::CheckInsert { id });
                }
                actions.extend([true, false].map(|answered| Action::Insert { id, answered }));
                actions.push(Action::Withdraw { id });
            }
            Step::Checked => actions.push(Action::Insert { id, answered: false }),
            Step::Known => actions.push(Action::Settle { id }),
            Step::Unknown if !self.rules.has(Safeguard::ReleaseWhenSure) => {
                actions.push(Action::Release { id });
            }
            _ => {}
        }
        if upload.released {
            actions.push(Action::Release { id });
        }
        if (upload.step == Step::Open || back) && state.catalog.owner == QuotaOwner::Database {
            actions.push(Action::InsertDirect { id });
        }
    }

    fn delete_actions(&self, state: &State, id: usize, actions: &mut Vec<Action>) {
        match state.catalog.files[id] {
            File::Absent | File::Deleted { line: None, .. } => {}
            File::Charged if self.rules.has(Safeguard::DeleteLocked) => actions.push(Action::Delete { id }),
            File::Charged => actions.push(Action::ReadDelete { id }),
            File::Leaving { .. } => actions.push(Action::Delete { id }),
            File::Deleted { line: Some(epoch), owed } => {
                actions.push(Action::Refund { line: id, answered: false });
                if owed {
                    actions.push(Action::Refund { line: id, answered: true });
                }
                if owed && epoch < state.catalog.epoch && self.rules.has(Safeguard::RefundStamped) {
                    actions.push(Action::ForgetOldLine { line: id });
                }
            }
        }
    }

    fn rebuild_actions(&self, state: &State, rebuild: usize, actions: &mut Vec<Action>) {
        // They are alike: the second begins after the first.
        if rebuild > 0 && state.rebuilds[rebuild - 1] == Rebuild::Idle {
            return;
        }
        let now = state.rebuilds[rebuild];
        if let Rebuild::Announced { held } = now
            && (self.scope.triggered || self.spares(state, held))
        {
            actions.push(Action::Compare { rebuild });
        }
        match now {
            Rebuild::Idle if self.scope.triggered && state.wanted == 0 => return,
            Rebuild::Idle => actions.push(Action::Announce { rebuild, answered: true }),
            Rebuild::Announced { .. } if self.scope.triggered => {}
            Rebuild::Announced { .. } | Rebuild::Needed { .. }
                if !self.rules.has(Safeguard::SumNotBefore) =>
            {
                actions.push(Action::ReadSum { rebuild });
            }
            Rebuild::Announced { .. } | Rebuild::Needed { .. } | Rebuild::Read { .. } => {
                actions.push(Action::Raise { rebuild });
            }
            Rebuild::Raised(_) => actions.push(Action::ReadSum { rebuild }),
            Rebuild::Sent(_) => actions.push(Action::Load { rebuild }),
            Rebuild::Over => {}
        }
        // A late copy has a name of its own, which nobody hears: nothing comes of it.
        if !self.rules.has(Safeguard::AnnouncementMinted) {
            actions.push(Action::Announce { rebuild, answered: false });
        }
    }

    /// Whether a Redis that counts under this epoch needs no rebuild.
    fn spares(&self, state: &State, held: Option<u8>) -> bool {
        let equal = held == Some(state.catalog.epoch);
        equal || held.is_some() && !self.rules.has(Safeguard::SparedOnlyIfEqual)
    }

    fn fault_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.faults_left == 0 {
            return;
        }
        let kinds = self.scope.kinds;
        let reads_saved = |fault: &Fault| matches!(fault, Fault::RestartOld | Fault::FailBack);
        if state.redis.saved.is_none() && kinds.iter().any(reads_saved) {
            actions.push(Action::Save);
        }
        for fault in kinds {
            match fault {
                Fault::Evict if state.redis.keys.loaded => {
                    actions.extend([Key::Used, Key::Inflight, Key::Refunded].map(Action::Evict));
                }
                Fault::Evict => {}
                fault if reads_saved(fault) && state.redis.saved.is_none() => {}
                fault => actions.push(Action::Suffer(*fault)),
            }
        }
    }

    fn take(&self, state: &mut State, action: Action) {
        match action {
            Action::Reserve { id, answered } => self.reserve(state, id, answered),
            Action::CheckInsert { id } | Action::Insert { id, .. } | Action::Withdraw { id } => {
                self.insert(state, id, action);
            }
            Action::InsertDirect { id } => {
                let size = self.scope.sizes[id];
                if state.catalog.used + size <= state.catalog.limit {
                    state.catalog.used += size;
                    self.write_file(state, id, Step::Direct);
                }
            }
            Action::Settle { id } => state.redis.settle(self.rules, id),
            Action::Release { id } => state.redis.release(self.rules, id, self.scope.sizes[id]),
            Action::ReadDelete { id } => {
                let (owner, epoch) = (state.catalog.owner, state.catalog.epoch);
                state.catalog.files[id] = File::Leaving { owner, epoch };
            }
            Action::Delete { id } => {
                let (owner, epoch) = match state.catalog.files[id] {
                    File::Leaving { owner, epoch } => (owner, epoch),
                    _ => (state.catalog.owner, state.catalog.epoch),
                };
                state.catalog.delete(id, self.scope.sizes[id], owner, epoch);
            }
            Action::Refund { line, answered } => self.refund(state, line, answered),
            Action::ForgetOldLine { line } => state.catalog.forget_line(line),
            Action::Announce { .. }
            | Action::Compare { .. }
            | Action::ReadSum { .. }
            | Action::Raise { .. } => self.rebuild(state, action),
            Action::Load { rebuild } => self.load(state, rebuild),
            Action::Leave => {
                state.leaves_left -= 1;
                state.catalog.leave(self.rules, &self.scope.sizes);
            }
            Action::SetLimit => {
                state.limits_left -= 1;
                state.catalog.set_limit(self.rules, self.scope.other_limit);
            }
            Action::Save => state.redis.saved = Some(state.redis.keys),
            Action::Suffer(fault) => {
                state.redis.suffer(self.rules, fault);
                suffered(state);
            }
            Action::Evict(key) => {
                state.redis.evict(key);
                suffered(state);
            }
        }
    }

    fn reserve(&self, state: &mut State, id: usize, answered: bool) {
        match state.redis.reserve(self.rules, id, self.scope.sizes[id]) {
            Reserved::Ok { epoch, counted } => {
                let inserted = matches!(state.uploads[id].step, Step::Known | Step::Unknown);
                state.redis.keys.stray |= counted && inserted;
                if answered {
                    state.uploads[id].step = Step::Held { epoch };
                }
            }
            Reserved::Reload if answered => self.want(state),
            Reserved::Reload | Reserved::Refused => {}
        }
    }

    /// More than two who want the same thing are no more than two.
    fn want(&self, state: &mut State) {
        if self.scope.triggered {
            state.wanted = (state.wanted + 1).min(2);
        }
    }

    fn insert(&self, state: &mut State, id: usize, action: Action) {
        let rolled_back = match (action, state.uploads[id].step) {
            (Action::Withdraw { .. }, _) => true,
            (_, Step::Held { epoch }) => {
                let moved = !state.catalog.admits(self.rules, epoch);
                if moved {
                    state.last = Outcome::EpochMoved;
                    if self.rules.has(Safeguard::MovedRebuilds) {
                        self.want(state);
                    }
                }
                moved
            }
            _ => false,
        };
        match action {
            _ if rolled_back => {
                let moved = self.scope.watched && state.last == Outcome::EpochMoved;
                state.uploads[id].step = Step::Back { moved };
                state.uploads[id].released = true;
            }
            Action::CheckInsert { .. } => state.uploads[id].step = Step::Checked,
            Action::Insert { answered: true, .. } => self.write_file(state, id, Step::Known),
            _ => self.write_file(state, id, Step::Unknown),
        }
    }

    fn write_file(&self, state: &mut State, id: usize, step: Step) {
        state.uploads[id].step = step;
        state.catalog.files[id] = File::Charged;
        state.over |= state.catalog.sum(&self.scope.sizes) > state.catalog.limit;
    }

    fn refund(&self, state: &mut State, line: usize, answered: bool) {
        let File::Deleted { line: Some(stamp), .. } = state.catalog.files[line] else { return };
        let epoch = if self.rules.has(Safeguard::RefundStamped) { stamp } else { state.catalog.epoch };
        let outcome = state.redis.refund(self.rules, line, self.scope.sizes[line], epoch);
        state.last = match outcome {
            Refunded::Dropped => Outcome::RefundContained,
            Refunded::Done { again: true } => Outcome::RefundAgain,
            Refunded::Done { again: false } | Refunded::Later => Outcome::Plain,
        };
        // Nothing but the relay reads the line again, so that deleting it can be one step with the answer.
        if answered && outcome != Refunded::Later {
            state.catalog.forget_line(line);
            if !self.rules.has(Safeguard::RefundedKept) {
                state.redis.keys.refunded &= !(1 << line);
            }
        }
    }

    fn rebuild(&self, state: &mut State, action: Action) {
        let now = state.catalog.sum(&self.scope.sizes);
        match action {
            Action::Announce { rebuild, answered } => {
                state.redis.announce(rebuild);
                if answered {
                    let held = state.redis.sound_epoch(self.rules);
                    state.rebuilds[rebuild] = Rebuild::Announced { held };
                    state.wanted = state.wanted.saturating_sub(1);
                }
            }
            Action::Compare { rebuild } => {
                let Rebuild::Announced { held } = state.rebuilds[rebuild] else { return };
                state.rebuilds[rebuild] = Rebuild::Needed { held };
                if self.spares(state, held) {
                    state.rebuilds[rebuild] = Rebuild::Idle;
                    state.redis.forget_name(rebuild);
                    state.last = Outcome::RebuildSpared;
                }
            }
            Action::ReadSum { rebuild } => {
                state.rebuilds[rebuild] = match state.rebuilds[rebuild] {
                    Rebuild::Raised(load) => Rebuild::Sent(Load { sum: now, ..load }),
                    Rebuild::Announced { held } | Rebuild::Needed { held } => {
                        Rebuild::Read { sum: now, held }
                    }
                    other => other,
                };
            }
            Action::Raise { rebuild } => {
                let (sum, held) = match state.rebuilds[rebuild] {
                    Rebuild::Read { sum, held } => (sum, held),
                    Rebuild::Announced { held } | Rebuild::Needed { held } => (now, held),
                    _ => return,
                };
                let load = state.catalog.rebuild(sum, held);
                let whole = self.rules.has(Safeguard::SumNotAfter);
                state.rebuilds[rebuild] = if whole { Rebuild::Sent(load) } else { Rebuild::Raised(load) };
            }
            _ => {}
        }
    }

    fn load(&self, state: &mut State, rebuild: usize) {
        let Rebuild::Sent(load) = state.rebuilds[rebuild] else { return };
        let held = state.redis.sound_epoch(self.rules);
        let is_held = |other: &Rebuild| matches!(other, Rebuild::Sent(load) if held == Some(load.epoch));
        // They begin one after the other.
        let raced = state.rebuilds[rebuild + 1..].iter().any(is_held);
        match state.redis.load(self.rules, rebuild, load) {
            Loaded::Yes => {
                state.set_back |= held == Some(state.catalog.epoch) && load.epoch < state.catalog.epoch;
                if raced {
                    state.last = Outcome::RacingLoadTaken;
                }
            }
            Loaded::Unannounced | Loaded::Newer => state.last = Outcome::LoadRefused,
        }
    }
}

/// What was saved is of no more use once nothing can go wrong any more: fewer states.
fn suffered(state: &mut State) {
    state.faults_left -= 1;
    if state.faults_left == 0 {
        state.redis.saved = None;
    }
}
