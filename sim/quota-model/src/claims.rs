//! What must hold in every state, and what must be seen in some: a check that never meets the hard cases says
//! nothing.

use stateright::Property;

use crate::catalog::QuotaOwner;
use crate::model::Quota;
use crate::rules::Scope;
use crate::state::{Outcome, Rebuild, State, Step};

pub const LIMIT_KEPT: &str = "no insert goes over the limit";
pub const DATABASE_EXACT: &str = "the database's own count is the sum";
pub const REDIS_ENOUGH: &str = "Redis never counts less than the sum";
pub const REDIS_EXACT: &str = "Redis counts the sum where nothing is under way";
pub const REDIS_NOT_AHEAD: &str = "Redis never counts under an epoch that the catalog has not come to";
pub const REDIS_NOT_SET_BACK: &str = "no load takes from Redis what it counts under the catalog's epoch";

pub const SEEN_REBUILD_AMID_INSERTS: &str = "a rebuild while an insert is under way";
pub const SEEN_REFUND_CONTAINED: &str = "a refund dropped because the load contained it";
pub const SEEN_REFUND_AGAIN: &str = "a refund delivered twice that counts once";
pub const SEEN_LOAD_REFUSED: &str = "a late load that is refused";
pub const SEEN_RACING_LOAD: &str = "a load taken after that of a rebuild that began later";
pub const SEEN_SPARED: &str = "a rebuild spared because Redis counts under the catalog's epoch";
pub const SEEN_RESERVED_AGAIN: &str = "a reservation made again because the epoch moved";
pub const SEEN_LEFT_AND_BACK: &str = "Redis left and come back to";
pub const SEEN_STRAY: &str = "a late copy of a reservation that takes room until the next load";
pub const SEEN_CAUGHT_UP: &str = "Redis fallen behind the catalog, and caught up";

pub(crate) fn all(scope: &Scope) -> Vec<Property<Quota>> {
    let mut claims = vec![
        Property::always(LIMIT_KEPT, |_, state: &State| !state.over),
        Property::always(DATABASE_EXACT, |model: &Quota, state: &State| {
            state.catalog.owner != QuotaOwner::Database
                || state.catalog.used == state.catalog.sum(&model.scope.sizes)
        }),
        Property::always(REDIS_ENOUGH, |model: &Quota, state: &State| {
            !serves(model, state) || state.redis.keys.used >= state.catalog.sum(&model.scope.sizes)
        }),
        Property::always(REDIS_EXACT, |model: &Quota, state: &State| {
            let keys = &state.redis.keys;
            let quiet = keys.inflight == 0 && !state.catalog.owes() && !keys.stray;
            !serves(model, state) || !quiet || keys.used == state.catalog.sum(&model.scope.sizes)
        }),
        Property::always(REDIS_NOT_AHEAD, |_, state: &State| state.redis.keys.epoch <= state.catalog.epoch),
        Property::always(REDIS_NOT_SET_BACK, |_, state: &State| !state.set_back),
    ];
    if scope.watched {
        claims.extend(seen());
    }
    if scope.triggered {
        claims.push(Property::sometimes(SEEN_CAUGHT_UP, caught_up));
    }
    claims
}

/// Whether reservations made now can lead to an insert.
fn serves(model: &Quota, state: &State) -> bool {
    let of_this_epoch = state.redis.keys.epoch == state.catalog.epoch;
    state.catalog.owner == QuotaOwner::Redis && of_this_epoch && state.redis.believed(model.rules)
}

fn seen() -> [Property<Quota>; 9] {
    [
        Property::sometimes(SEEN_REBUILD_AMID_INSERTS, |_, state: &State| {
            let epoch = state.catalog.epoch;
            let behind = |step| matches!(step, Step::Held { epoch: held } if held < epoch);
            let loading = state.rebuilds.iter().any(|rebuild| matches!(rebuild, Rebuild::Sent(_)));
            loading
                && state.redis.keys.epoch < epoch
                && state.uploads.iter().any(|upload| behind(upload.step))
        }),
        Property::sometimes(SEEN_REFUND_CONTAINED, |_, state: &State| state.last == Outcome::RefundContained),
        Property::sometimes(SEEN_REFUND_AGAIN, |_, state: &State| state.last == Outcome::RefundAgain),
        Property::sometimes(SEEN_LOAD_REFUSED, |_, state: &State| state.last == Outcome::LoadRefused),
        Property::sometimes(SEEN_RACING_LOAD, |_, state: &State| state.last == Outcome::RacingLoadTaken),
        Property::sometimes(SEEN_SPARED, |_, state: &State| state.last == Outcome::RebuildSpared),
        Property::sometimes(SEEN_RESERVED_AGAIN, |model: &Quota, state: &State| {
            let moved = |step| step == Step::Back { moved: true };
            let again = |step| matches!(step, Step::Held { epoch } if epoch == state.catalog.epoch);
            let any = |is: &dyn Fn(Step) -> bool| state.uploads.iter().any(|upload| is(upload.step));
            serves(model, state) && any(&moved) && any(&again)
        }),
        Property::sometimes(SEEN_LEFT_AND_BACK, |model: &Quota, state: &State| {
            state.leaves_left < model.scope.leaves && serves(model, state)
        }),
        Property::sometimes(SEEN_STRAY, |_, state: &State| state.redis.keys.stray),
    ]
}

/// Where nothing befalls Redis it never answers RELOAD of itself: who rebuilt was one who found it behind.
fn caught_up(_: &Quota, state: &State) -> bool {
    state.catalog.epoch > 1 && state.redis.keys.epoch == state.catalog.epoch
}
