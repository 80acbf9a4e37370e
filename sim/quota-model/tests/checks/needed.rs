//! Each safeguard taken away alone, and what then breaks: the limit itself wherever it can.

use quota_model::claims::{DATABASE_EXACT, LIMIT_KEPT, REDIS_ENOUGH, REDIS_EXACT, REDIS_NOT_SET_BACK};
use quota_model::rules::{Fault, Safeguard, Scope};

use super::assert_breaks;

fn with_fault(kinds: &'static [Fault]) -> Scope {
    Scope { faults: 1, kinds, ..Scope::small() }
}

/// One to be refunded, and two to be let in on what was refunded too much.
fn three_of_which_one_fits() -> Scope {
    Scope { sizes: [1, 1, 1], rebuilds: 1, ..Scope::small() }
}

#[test]
fn insert_checks_the_epoch() {
    assert_breaks(&[Safeguard::InsertChecksEpoch], Scope::small(), LIMIT_KEPT);
}

#[test]
fn insert_is_locked() {
    assert_breaks(&[Safeguard::InsertLocked], Scope::small(), LIMIT_KEPT);
    assert_breaks(&[Safeguard::InsertLocked], Scope::small(), REDIS_ENOUGH);
    assert_breaks(&[Safeguard::InsertLocked], Scope { leaves: 1, ..Scope::small() }, DATABASE_EXACT);
}

/// The line is stamped with an epoch whose load was read before the delete: it is dropped, and never counted.
#[test]
fn delete_is_locked() {
    assert_breaks(&[Safeguard::DeleteLocked], Scope::small(), REDIS_EXACT);
    assert_breaks(&[Safeguard::DeleteLocked], Scope { leaves: 1, ..Scope::small() }, DATABASE_EXACT);
}

#[test]
fn sum_is_not_read_before_the_epoch_is_raised() {
    assert_breaks(&[Safeguard::SumNotBefore], Scope::small(), LIMIT_KEPT);
}

/// The load contains a delete whose line is stamped with the load's own epoch: it is refunded twice.
#[test]
fn sum_is_not_read_after_the_epoch_is_raised() {
    assert_breaks(&[Safeguard::SumNotAfter], three_of_which_one_fits(), LIMIT_KEPT);
}

#[test]
fn run_is_compared() {
    assert_breaks(&[Safeguard::RunCompared], with_fault(&[Fault::RestartOld]), LIMIT_KEPT);
}

#[test]
fn run_ends_with_the_reign() {
    assert_breaks(&[Safeguard::RunEndsWithReign], with_fault(&[Fault::FailBack]), LIMIT_KEPT);
}

#[test]
fn missing_keys_are_not_counted_from_zero() {
    assert_breaks(&[Safeguard::MissingKeysReload], with_fault(&[Fault::Evict]), LIMIT_KEPT);
}

#[test]
fn old_refunds_are_dropped() {
    assert_breaks(&[Safeguard::OldRefundsDropped], three_of_which_one_fits(), LIMIT_KEPT);
}

#[test]
fn new_refunds_wait() {
    assert_breaks(&[Safeguard::NewRefundsWait], Scope::small(), REDIS_EXACT);
}

#[test]
fn refund_counts_once() {
    assert_breaks(&[Safeguard::RefundOnce], three_of_which_one_fits(), LIMIT_KEPT);
}

#[test]
fn refunded_lines_are_kept_until_the_next_load() {
    assert_breaks(&[Safeguard::RefundedKept], three_of_which_one_fits(), LIMIT_KEPT);
}

#[test]
fn refund_is_stamped_by_the_delete() {
    assert_breaks(&[Safeguard::RefundStamped], three_of_which_one_fits(), LIMIT_KEPT);
}

#[test]
fn load_is_announced() {
    assert_breaks(&[Safeguard::LoadAnnounced], with_fault(&[Fault::Flush]), LIMIT_KEPT);
}

/// What was saved holds the announcement too.
#[test]
fn load_is_announced_to_this_run() {
    assert_breaks(&[Safeguard::AnnouncedToThisRun], with_fault(&[Fault::RestartOld]), LIMIT_KEPT);
}

/// The announcement and the load are both executed a second time, after Redis lost what came between.
#[test]
fn announcement_is_named_by_redis() {
    assert_breaks(&[Safeguard::AnnouncementMinted], with_fault(&[Fault::Flush]), LIMIT_KEPT);
    assert_breaks(&[Safeguard::AnnouncementMinted], with_fault(&[Fault::RestartEmpty]), LIMIT_KEPT);
}

/// The load is executed a second time, after a key was lost of what came between: the names are in another key.
#[test]
fn name_is_taken_once() {
    assert_breaks(&[Safeguard::NameTakenOnce], with_fault(&[Fault::Evict]), LIMIT_KEPT);
}

/// Two rebuilds race, and the load of the earlier epoch comes last. The limit is kept even so, see redundant.rs; but
/// Redis, which had caught up, is behind the catalog again: nothing is let in until yet another rebuild.
#[test]
fn newer_state_stays() {
    assert_breaks(&[Safeguard::NewerStateStays], Scope::small(), REDIS_NOT_SET_BACK);
}

/// Counts too much, never too little: room is lost, the limit is kept.
#[test]
fn reservation_counts_once() {
    assert_breaks(&[Safeguard::ReserveOnce], Scope { limit: 2, ..Scope::small() }, REDIS_EXACT);
}

#[test]
fn release_only_when_sure() {
    assert_breaks(&[Safeguard::ReleaseWhenSure], Scope::small(), LIMIT_KEPT);
}

/// The release of the first try is executed after the second try has reserved under the same id.
#[test]
fn released_id_is_not_used_again() {
    let scope = Scope { rebuilds: 0, ..Scope::small() };
    assert_breaks(&[Safeguard::FreshIdPerTry], scope, LIMIT_KEPT);
}

#[test]
fn change_of_the_limit_raises_the_epoch() {
    let scope = Scope { limit: 2, limit_changes: 1, other_limit: 1, rebuilds: 0, ..Scope::small() };
    assert_breaks(&[Safeguard::LimitRaisesEpoch], scope, LIMIT_KEPT);
}
