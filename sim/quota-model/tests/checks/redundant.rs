//! Safeguards that the others make up for: alone they can go, together with what makes up for them they cannot.
//! They stay in the protocol as the second of two locks.

use quota_model::claims::LIMIT_KEPT;
use quota_model::rules::{Fault, Safeguard, Scope};

use super::{assert_breaks, assert_holds, without};

/// The catalog is left and entered by transactions of which the second always raises the epoch, and while it is
/// left the gate is the other: either of epoch and gate is enough to stop a late insert.
#[test]
fn leaving_raises_the_epoch_or_inserts_check_the_gate() {
    let scope = Scope { leaves: 2, folded: true, ..Scope::small() };
    assert_holds(without(&[Safeguard::LeaveRaisesEpoch]), scope.clone());
    assert_holds(without(&[Safeguard::InsertChecksGate]), scope.clone());
    let both = [Safeguard::LeaveRaisesEpoch, Safeguard::InsertChecksGate];
    assert_breaks(&both, Scope { folded: false, ..scope }, LIMIT_KEPT);
}

/// A name that Redis mints is taken once, and only if nothing was loaded since: whatever is there is older.
#[test]
fn newer_state_stays_or_announcements_are_minted() {
    let faulty = Scope { faults: 1, kinds: &Fault::ALL, folded: true, ..Scope::small() };
    assert_holds(without(&[Safeguard::NewerStateStays]), faulty);
    // Where nothing is ever lost, the epoch makes up for the name; needed.rs says what happens where it is.
    assert_holds(without(&[Safeguard::AnnouncementMinted]), Scope::small());
    let both = [Safeguard::NewerStateStays, Safeguard::AnnouncementMinted];
    assert_breaks(&both, Scope::small(), LIMIT_KEPT);
}
