//! Pairs of safeguards that protect the limit twice. Without one of a pair the limit holds; without both it breaks.
//! Both stay in the protocol.

use quota_model::properties::{LIMIT_HOLDS, REDIS_KEEPS_CURRENT_LOAD};
use quota_model::rules::{Fault, Safeguard, Scope};

use super::{assert_breaks, assert_breaks_nothing_but, assert_holds, without};

/// A move to the database and the move back are two transactions. The second always raises the epoch, and between them
/// the owner is the database. So either the epoch or the owner stops a late insert.
#[test]
fn leaving_redis_raises_the_epoch_or_inserts_check_the_owner() {
    let scope = Scope { leaves: 2, reduce_symmetry: true, ..Scope::small() };
    assert_holds(without(&[Safeguard::LeaveRaisesEpoch]), scope.clone());
    assert_holds(without(&[Safeguard::InsertChecksOwner]), scope.clone());
    let both = [Safeguard::LeaveRaisesEpoch, Safeguard::InsertChecksOwner];
    assert_breaks(&both, Scope { reduce_symmetry: false, ..scope }, LIMIT_HOLDS);
}

/// An older load that replaces a newer one admits nothing, because its epoch is never the catalog's again. Redis is
/// only outdated (see needed.rs). This is different if a name can be used twice: the second copy of a load has the
/// catalog's epoch and outdated counts.
#[test]
fn newer_state_stays_or_each_name_is_used_once() {
    let faulty = Scope { faults: 1, kinds: &Fault::ALL, reduce_symmetry: true, ..Scope::small() };
    assert_breaks_nothing_but(&[Safeguard::NewerStateStays], faulty, REDIS_KEEPS_CURRENT_LOAD);
    // Without faults, the epoch protects as well as the name. needed.rs tests it with faults.
    for name in [Safeguard::AnnouncementNamedByRedis, Safeguard::NameUsedOnce] {
        assert_holds(without(&[name]), Scope { reduce_symmetry: true, ..Scope::small() });
        assert_breaks(&[Safeguard::NewerStateStays, name], Scope::small(), LIMIT_HOLDS);
    }
}
