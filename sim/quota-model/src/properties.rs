//! The properties of every state, and the hard cases that must be reached in some state. A check that never reaches
//! them proves nothing.

use stateright::Property;

use crate::catalog::QuotaOwner;
use crate::model::Quota;
use crate::rules::Scope;
use crate::state::{Outcome, Rebuild, State, Step};

pub const LIMIT_HOLDS: &str = "no insert exceeds the limit";
pub const DATABASE_EXACT: &str = "the database's count is the sum";
pub const REDIS_ENOUGH: &str = "Redis never counts less than the sum";
pub const REDIS_EXACT: &str = "Redis counts the sum if nothing is in progress";
pub const REDIS_NOT_AHEAD: &str = "Redis never has an epoch above the catalog's";
pub const REDIS_KEEPS_CURRENT_LOAD: &str = "no older load replaces a count under the catalog's epoch";

pub const REACHED_REBUILD_DURING_INSERT: &str = "a rebuild during an insert";
pub const REACHED_REFUND_CONTAINED: &str = "a refund dropped because the load contained it";
pub const REACHED_REFUND_AGAIN: &str = "a refund delivered twice and counted once";
pub const REACHED_LOAD_REFUSED: &str = "a late load is refused";
pub const REACHED_RACING_LOAD: &str = "a load accepted after the load of a later rebuild";
pub const REACHED_SKIPPED: &str = "a rebuild skipped because Redis counts under the catalog's epoch";
pub const REACHED_RESERVED_AGAIN: &str = "a reservation repeated because the epoch changed";
pub const REACHED_DATABASE_AND_BACK: &str = "a move to the database and back to Redis";
pub const REACHED_LATE_COPY: &str = "a late copy of a reservation is counted until the next load";
pub const REACHED_CURRENT_AGAIN: &str = "an outdated Redis becomes current again";

pub(crate) fn all(scope: &Scope) -> Vec<Property<Quota>> {
    let mut properties = vec![
        Property::always(LIMIT_HOLDS, |_, state: &State| !state.over_limit),
        Property::always(DATABASE_EXACT, |model: &Quota, state: &State| {
            state.catalog.owner != QuotaOwner::Database
                || state.catalog.used == state.catalog.sum(&model.scope.sizes)
        }),
        Property::always(REDIS_ENOUGH, |model: &Quota, state: &State| {
            !serves(model, state) || state.redis.keys.used >= state.catalog.sum(&model.scope.sizes)
        }),
        Property::always(REDIS_EXACT, |model: &Quota, state: &State| {
            let keys = &state.redis.keys;
            let quiet = keys.inflight == 0 && !state.catalog.has_pending_refund() && !keys.late_copy;
            !serves(model, state) || !quiet || keys.used == state.catalog.sum(&model.scope.sizes)
        }),
        Property::always(REDIS_NOT_AHEAD, |_, state: &State| state.redis.keys.epoch <= state.catalog.epoch),
        Property::always(REDIS_KEEPS_CURRENT_LOAD, |_, state: &State| !state.current_load_replaced),
    ];
    if scope.track_outcomes {
        properties.extend(hard_cases());
    }
    if scope.on_demand {
        properties.push(Property::sometimes(REACHED_CURRENT_AGAIN, is_current_again));
    }
    properties
}

/// Whether a reservation made now can lead to an insert.
fn serves(model: &Quota, state: &State) -> bool {
    let of_this_epoch = state.redis.keys.epoch == state.catalog.epoch;
    state.catalog.owner == QuotaOwner::Redis && of_this_epoch && state.redis.is_valid(model.rules)
}

fn hard_cases() -> [Property<Quota>; 9] {
    [
        Property::sometimes(REACHED_REBUILD_DURING_INSERT, |_, state: &State| {
            let epoch = state.catalog.epoch;
            let behind = |step| matches!(step, Step::Reserved { epoch: redis_epoch } if redis_epoch < epoch);
            let loading = state.rebuilds.iter().any(|rebuild| matches!(rebuild, Rebuild::Sent(_)));
            loading
                && state.redis.keys.epoch < epoch
                && state.uploads.iter().any(|upload| behind(upload.step))
        }),
        Property::sometimes(REACHED_REFUND_CONTAINED, |_, state: &State| {
            state.last == Outcome::RefundContained
        }),
        Property::sometimes(REACHED_REFUND_AGAIN, |_, state: &State| state.last == Outcome::RefundAgain),
        Property::sometimes(REACHED_LOAD_REFUSED, |_, state: &State| state.last == Outcome::LoadRefused),
        Property::sometimes(REACHED_RACING_LOAD, |_, state: &State| {
            state.last == Outcome::RacingLoadAccepted
        }),
        Property::sometimes(REACHED_SKIPPED, |_, state: &State| state.last == Outcome::RebuildSkipped),
        Property::sometimes(REACHED_RESERVED_AGAIN, |model: &Quota, state: &State| {
            let epoch_changed = |step| step == Step::RolledBack { epoch_changed: true };
            let again = |step| matches!(step, Step::Reserved { epoch } if epoch == state.catalog.epoch);
            let any = |is: &dyn Fn(Step) -> bool| state.uploads.iter().any(|upload| is(upload.step));
            serves(model, state) && any(&epoch_changed) && any(&again)
        }),
        Property::sometimes(REACHED_DATABASE_AND_BACK, |model: &Quota, state: &State| {
            state.leaves_left < model.scope.leaves && serves(model, state)
        }),
        Property::sometimes(REACHED_LATE_COPY, |_, state: &State| state.redis.keys.late_copy),
    ]
}

/// Without faults Redis never answers RELOAD. So a rebuild was started by a client that found Redis outdated.
fn is_current_again(_: &Quota, state: &State) -> bool {
    state.catalog.epoch > 1 && state.redis.keys.epoch == state.catalog.epoch
}
