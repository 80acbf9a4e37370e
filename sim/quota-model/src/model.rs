//! The steps: which are possible in a state, and what each does.

use stateright::{Model, Property};

use crate::catalog::{File, QuotaOwner};
use crate::properties;
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
        // Further steps would only make the counterexample longer.
        if state.over_limit {
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
            actions.push(Action::LeaveRedis);
        }
        if state.limits_left > 0 {
            actions.push(Action::SetLimit);
        }
        self.fault_actions(state, actions);
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = *before;
        state.last = Outcome::Plain;
        self.apply(&mut state, action);
        if !self.scope.track_outcomes {
            state.last = Outcome::Plain;
        }
        self.remove_irrelevant(&mut state);
        let state = if self.scope.reduce_symmetry { state.canonical(&self.scope.sizes) } else { state };
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Quota>> {
        properties::all(&self.scope)
    }
}

impl Quota {
    /// Removes state that can have no effect any more, for fewer states. Run numbers and the catalog's epoch only
    /// increase. So a name of an earlier run is useless, and an earlier epoch of Redis is neither equal to the
    /// catalog's nor above it.
    fn remove_irrelevant(&self, state: &mut State) {
        if self.rules.has(Safeguard::AnnouncedToThisRun) {
            state.redis.remove_names_of_earlier_runs();
        }
        // Each name is new, so a load whose name is removed is never accepted.
        let named =
            self.rules.has(Safeguard::LoadAnnounced) && self.rules.has(Safeguard::AnnouncementNamedByRedis);
        if named && !self.scope.track_outcomes {
            for (rebuild, now) in state.rebuilds.iter_mut().enumerate() {
                if matches!(now, Rebuild::Sent(_)) && !state.redis.has_name(rebuild) {
                    *now = Rebuild::Done;
                }
            }
        }
        if self.rules.has(Safeguard::SkippedOnlyIfEqual) {
            let epoch = state.catalog.epoch;
            for rebuild in &mut state.rebuilds {
                if let Rebuild::Announced { redis_epoch }
                | Rebuild::Needed { redis_epoch }
                | Rebuild::Read { redis_epoch, .. } = rebuild
                {
                    *redis_epoch = redis_epoch.filter(|redis_epoch| *redis_epoch >= epoch);
                }
            }
        }
    }

    fn ids(&self) -> impl Iterator<Item = usize> + '_ {
        self.scope.sizes.iter().enumerate().filter(|(_, size)| **size > 0).map(|(id, _)| id)
    }

    fn upload_actions(&self, state: &State, id: usize, actions: &mut Vec<Action>) {
        let upload = state.uploads[id];
        let back = matches!(upload.step, Step::RolledBack { .. });
        let again = back && !self.rules.has(Safeguard::FreshIdPerTry);
        let waits = upload.step == Step::Open || again;
        // Copies of a reservation may be executed at any time, so the model does not track whether it was sent.
        actions.push(Action::Reserve { id, answered: false });
        if waits {
            actions.push(Action::Reserve { id, answered: true });
        }
        match upload.step {
            Step::Reserved { .. } => {
                if !self.rules.has(Safeguard::InsertLocked) {
                    actions.push(Action::CheckInsert { id });
                }
                actions.extend([true, false].map(|answered| Action::Insert { id, answered }));
                actions.push(Action::RollBack { id });
            }
            Step::Checked => actions.push(Action::Insert { id, answered: false }),
            Step::InsertKnown => actions.push(Action::Settle { id }),
            Step::InsertUnknown if !self.rules.has(Safeguard::ReleaseWhenSure) => {
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
            File::Charged => actions.push(Action::StartDelete { id }),
            File::DeleteStarted { .. } => actions.push(Action::Delete { id }),
            File::Deleted { line: Some(epoch), pending } => {
                actions.push(Action::Refund { line: id, answered: false });
                if pending {
                    actions.push(Action::Refund { line: id, answered: true });
                }
                if pending && epoch < state.catalog.epoch && self.rules.has(Safeguard::RefundStamped) {
                    actions.push(Action::RemoveOldLine { line: id });
                }
            }
        }
    }

    fn rebuild_actions(&self, state: &State, rebuild: usize, actions: &mut Vec<Action>) {
        // Rebuilds are interchangeable, so the second starts after the first.
        if rebuild > 0 && state.rebuilds[rebuild - 1] == Rebuild::Idle {
            return;
        }
        let now = state.rebuilds[rebuild];
        if let Rebuild::Announced { redis_epoch } = now
            && (self.scope.on_demand || self.can_skip(state, redis_epoch))
        {
            actions.push(Action::Compare { rebuild });
        }
        match now {
            Rebuild::Idle if self.scope.on_demand && state.rebuilds_wanted == 0 => return,
            Rebuild::Idle => actions.push(Action::Announce { rebuild, answered: true }),
            Rebuild::Announced { .. } if self.scope.on_demand => {}
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
            Rebuild::Done => {}
        }
        // A late copy gets a separate name that no client receives, so it has no effect.
        if !self.rules.has(Safeguard::AnnouncementNamedByRedis) {
            actions.push(Action::Announce { rebuild, answered: false });
        }
    }

    /// Whether Redis with this epoch needs no rebuild.
    fn can_skip(&self, state: &State, redis_epoch: Option<u8>) -> bool {
        let equal = redis_epoch == Some(state.catalog.epoch);
        equal || redis_epoch.is_some() && !self.rules.has(Safeguard::SkippedOnlyIfEqual)
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
                fault => actions.push(Action::Fault(*fault)),
            }
        }
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Reserve { id, answered } => self.reserve(state, id, answered),
            Action::CheckInsert { id } | Action::Insert { id, .. } | Action::RollBack { id } => {
                self.insert(state, id, action);
            }
            Action::InsertDirect { id } => {
                let size = self.scope.sizes[id];
                if state.catalog.used + size <= state.catalog.limit {
                    state.catalog.used += size;
                    self.write_file(state, id, Step::InsertedByDatabase);
                }
            }
            Action::Settle { id } => state.redis.settle(self.rules, id),
            Action::Release { id } => state.redis.release(self.rules, id, self.scope.sizes[id]),
            Action::StartDelete { id } => {
                let (owner, epoch) = (state.catalog.owner, state.catalog.epoch);
                state.catalog.files[id] = File::DeleteStarted { owner, epoch };
            }
            Action::Delete { id } => {
                let (owner, epoch) = match state.catalog.files[id] {
                    File::DeleteStarted { owner, epoch } => (owner, epoch),
                    _ => (state.catalog.owner, state.catalog.epoch),
                };
                state.catalog.delete(id, self.scope.sizes[id], owner, epoch);
            }
            Action::Refund { line, answered } => self.refund(state, line, answered),
            Action::RemoveOldLine { line } => state.catalog.remove_line(line),
            Action::Announce { .. }
            | Action::Compare { .. }
            | Action::ReadSum { .. }
            | Action::Raise { .. } => self.rebuild(state, action),
            Action::Load { rebuild } => self.load(state, rebuild),
            Action::LeaveRedis => {
                state.leaves_left -= 1;
                state.catalog.leave_redis(self.rules, &self.scope.sizes);
            }
            Action::SetLimit => {
                state.limits_left -= 1;
                state.catalog.set_limit(self.rules, self.scope.other_limit);
            }
            Action::Save => state.redis.saved = Some(state.redis.keys),
            Action::Fault(fault) => {
                state.redis.apply_fault(self.rules, fault);
                count_fault(state);
            }
            Action::Evict(key) => {
                state.redis.evict(key);
                count_fault(state);
            }
        }
    }

    fn reserve(&self, state: &mut State, id: usize, answered: bool) {
        match state.redis.reserve(self.rules, id, self.scope.sizes[id]) {
            Reserved::Ok { epoch, counted } => {
                let inserted = matches!(state.uploads[id].step, Step::InsertKnown | Step::InsertUnknown);
                state.redis.keys.late_copy |= counted && inserted;
                if answered {
                    state.uploads[id].step = Step::Reserved { epoch };
                }
            }
            Reserved::Reload if answered => self.request_rebuild(state),
            Reserved::Reload | Reserved::Refused => {}
        }
    }

    /// At most two are counted, because more have the same effect.
    fn request_rebuild(&self, state: &mut State) {
        if self.scope.on_demand {
            state.rebuilds_wanted = (state.rebuilds_wanted + 1).min(2);
        }
    }

    fn insert(&self, state: &mut State, id: usize, action: Action) {
        let rolled_back = match (action, state.uploads[id].step) {
            (Action::RollBack { .. }, _) => true,
            (_, Step::Reserved { epoch }) => {
                let epoch_changed = !state.catalog.admits(self.rules, epoch);
                if epoch_changed {
                    state.last = Outcome::EpochChanged;
                    if self.rules.has(Safeguard::EpochChangeRebuilds) {
                        self.request_rebuild(state);
                    }
                }
                epoch_changed
            }
            _ => false,
        };
        match action {
            _ if rolled_back => {
                let epoch_changed = self.scope.track_outcomes && state.last == Outcome::EpochChanged;
                state.uploads[id].step = Step::RolledBack { epoch_changed };
                state.uploads[id].released = true;
            }
            Action::CheckInsert { .. } => state.uploads[id].step = Step::Checked,
            Action::Insert { answered: true, .. } => self.write_file(state, id, Step::InsertKnown),
            _ => self.write_file(state, id, Step::InsertUnknown),
        }
    }

    fn write_file(&self, state: &mut State, id: usize, step: Step) {
        state.uploads[id].step = step;
        state.catalog.files[id] = File::Charged;
        state.over_limit |= state.catalog.sum(&self.scope.sizes) > state.catalog.limit;
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
        // Only the relay reads the line, so its delete and the answer can be one step.
        if answered && outcome != Refunded::Later {
            state.catalog.remove_line(line);
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
                    let redis_epoch = state.redis.valid_epoch(self.rules);
                    state.rebuilds[rebuild] = Rebuild::Announced { redis_epoch };
                    state.rebuilds_wanted = state.rebuilds_wanted.saturating_sub(1);
                }
            }
            Action::Compare { rebuild } => {
                let Rebuild::Announced { redis_epoch } = state.rebuilds[rebuild] else { return };
                state.rebuilds[rebuild] = Rebuild::Needed { redis_epoch };
                if self.can_skip(state, redis_epoch) {
                    state.rebuilds[rebuild] = Rebuild::Idle;
                    state.redis.remove_name(rebuild);
                    state.last = Outcome::RebuildSkipped;
                }
            }
            Action::ReadSum { rebuild } => {
                state.rebuilds[rebuild] = match state.rebuilds[rebuild] {
                    Rebuild::Raised(load) => Rebuild::Sent(Load { sum: now, ..load }),
                    Rebuild::Announced { redis_epoch } | Rebuild::Needed { redis_epoch } => {
                        Rebuild::Read { sum: now, redis_epoch }
                    }
                    other => other,
                };
            }
            Action::Raise { rebuild } => {
                let (sum, redis_epoch) = match state.rebuilds[rebuild] {
                    Rebuild::Read { sum, redis_epoch } => (sum, redis_epoch),
                    Rebuild::Announced { redis_epoch } | Rebuild::Needed { redis_epoch } => {
                        (now, redis_epoch)
                    }
                    _ => return,
                };
                let load = state.catalog.rebuild(sum, redis_epoch);
                let whole = self.rules.has(Safeguard::SumNotAfter);
                state.rebuilds[rebuild] = if whole { Rebuild::Sent(load) } else { Rebuild::Raised(load) };
            }
            _ => {}
        }
    }

    fn load(&self, state: &mut State, rebuild: usize) {
        let Rebuild::Sent(load) = state.rebuilds[rebuild] else { return };
        let redis_epoch = state.redis.valid_epoch(self.rules);
        let is_held =
            |other: &Rebuild| matches!(other, Rebuild::Sent(load) if redis_epoch == Some(load.epoch));
        // Rebuilds with a higher index start later.
        let raced = state.rebuilds[rebuild + 1..].iter().any(is_held);
        match state.redis.load(self.rules, rebuild, load) {
            Loaded::Yes => {
                state.current_load_replaced |=
                    redis_epoch == Some(state.catalog.epoch) && load.epoch < state.catalog.epoch;
                if raced {
                    state.last = Outcome::RacingLoadAccepted;
                }
            }
            Loaded::Unannounced | Loaded::Newer => state.last = Outcome::LoadRefused,
        }
    }
}

/// Saved state has no effect when no fault is left. Removing it gives fewer states.
fn count_fault(state: &mut State) {
    state.faults_left -= 1;
    if state.faults_left == 0 {
        state.redis.saved = None;
    }
}
