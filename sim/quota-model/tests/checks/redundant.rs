//! Safeguards that the others make up for, as far as the limit goes: alone they can go, together with what makes up for
//! them they cannot. They stay in the protocol as the second of two locks.

use quota_model::claims::{LIMIT_KEPT, REDIS_NOT_SET_BACK};
use quota_model::rules::{Fault, Safeguard, Scope};

use super::{assert_breaks, assert_breaks_nothing_but, assert_holds, without};

/// The catalog is left and entered by transactions of which the second always raises the epoch, and while it is
/// left the owner is the other: either of epoch and owner is enough to stop a late insert.
#[test]
fn leaving_raises_the_epoch_or_inserts_check_the_gate() {
    let scope = Scope { leaves: 2, folded: true, ..Scope::small() };
    assert_holds(without(&[Safeguard::LeaveRaisesEpoch]), scope.clone());
    assert_holds(without(&[Safeguard::InsertChecksGate]), scope.clone());
    let both = [Safeguard::LeaveRaisesEpoch, Safeguard::InsertChecksGate];
    assert_breaks(&both, Scope { folded: false, ..scope }, LIMIT_KEPT);
}

/// An older load that replaces a newer one lets nothing in: its epoch is no longer the catalog's, and never will be
/// again. What breaks is that Redis is behind once more, see needed.rs. Nothing of the sort holds where one name
/// can be used twice: the second copy of a load has the catalog's own epoch, and numbers that are no longer true.
#[test]
fn newer_state_stays_or_each_name_is_taken_once() {
    let faulty = Scope { faults: 1, kinds: &Fault::ALL, folded: true, ..Scope::small() };
    assert_breaks_nothing_but(&[Safeguard::NewerStateStays], faulty, REDIS_NOT_SET_BACK);
    // Where nothing is ever lost, the epoch makes up for the name; needed.rs says what happens where it is.
    for name in [Safeguard::AnnouncementMinted, Safeguard::NameTakenOnce] {
        assert_holds(without(&[name]), Scope { folded: true, ..Scope::small() });
        assert_breaks(&[Safeguard::NewerStateStays, name], Scope::small(), LIMIT_KEPT);
    }
}
