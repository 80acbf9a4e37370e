//! Without each single safeguard, a property breaks: the limit itself, if possible.

use quota_model::properties::{
    DATABASE_EXACT, LIMIT_HOLDS, REDIS_ENOUGH, REDIS_EXACT, REDIS_KEEPS_CURRENT_LOAD,
};
use quota_model::rules::{Fault, Safeguard, Scope};

use super::assert_breaks;

fn with_fault(kinds: &'static [Fault]) -> Scope {
    Scope { faults: 1, kinds, ..Scope::small() }
}

/// One file is refunded twice, and two others are then admitted.
fn three_files_of_which_one_fits() -> Scope {
    Scope { sizes: [1, 1, 1], rebuilds: 1, ..Scope::small() }
}

#[test]
fn an_insert_checks_the_epoch() {
    assert_breaks(&[Safeguard::InsertChecksEpoch], Scope::small(), LIMIT_HOLDS);
}

#[test]
fn an_insert_is_locked() {
    assert_breaks(&[Safeguard::InsertLocked], Scope::small(), LIMIT_HOLDS);
    assert_breaks(&[Safeguard::InsertLocked], Scope::small(), REDIS_ENOUGH);
    assert_breaks(&[Safeguard::InsertLocked], Scope { leaves: 1, ..Scope::small() }, DATABASE_EXACT);
}

/// The line has an epoch whose load was read before the delete. It is dropped and never counted.
#[test]
fn a_delete_is_locked() {
    assert_breaks(&[Safeguard::DeleteLocked], Scope::small(), REDIS_EXACT);
    assert_breaks(&[Safeguard::DeleteLocked], Scope { leaves: 1, ..Scope::small() }, DATABASE_EXACT);
}

#[test]
fn the_sum_is_not_read_before_the_epoch_is_raised() {
    assert_breaks(&[Safeguard::SumNotBefore], Scope::small(), LIMIT_HOLDS);
}

/// The load contains a delete whose line has the load's epoch. It is refunded twice.
#[test]
fn the_sum_is_not_read_after_the_epoch_is_raised() {
    assert_breaks(&[Safeguard::SumNotAfter], three_files_of_which_one_fits(), LIMIT_HOLDS);
}

#[test]
fn the_run_is_compared() {
    assert_breaks(&[Safeguard::RunCompared], with_fault(&[Fault::RestartOld]), LIMIT_HOLDS);
}

#[test]
fn a_run_ends_with_a_failover() {
    assert_breaks(&[Safeguard::RunEndsWithFailover], with_fault(&[Fault::FailBack]), LIMIT_HOLDS);
}

#[test]
fn a_missing_key_is_not_zero() {
    assert_breaks(&[Safeguard::MissingKeysReload], with_fault(&[Fault::Evict]), LIMIT_HOLDS);
}

#[test]
fn old_refunds_are_dropped() {
    assert_breaks(&[Safeguard::OldRefundsDropped], three_files_of_which_one_fits(), LIMIT_HOLDS);
}

#[test]
fn new_refunds_wait() {
    assert_breaks(&[Safeguard::NewRefundsWait], Scope::small(), REDIS_EXACT);
}

#[test]
fn a_refund_counts_once() {
    assert_breaks(&[Safeguard::RefundOnce], three_files_of_which_one_fits(), LIMIT_HOLDS);
}

#[test]
fn refunded_lines_are_remembered_until_the_next_load() {
    assert_breaks(&[Safeguard::RefundedKept], three_files_of_which_one_fits(), LIMIT_HOLDS);
}

#[test]
fn a_refund_has_the_epoch_of_its_delete() {
    assert_breaks(&[Safeguard::RefundStamped], three_files_of_which_one_fits(), LIMIT_HOLDS);
}

#[test]
fn a_load_is_announced() {
    assert_breaks(&[Safeguard::LoadAnnounced], with_fault(&[Fault::Flush]), LIMIT_HOLDS);
}

/// The saved state contains the announcement too.
#[test]
fn a_load_is_announced_in_this_run() {
    assert_breaks(&[Safeguard::AnnouncedToThisRun], with_fault(&[Fault::RestartOld]), LIMIT_HOLDS);
}

/// The announcement and the load are both executed a second time, after Redis lost the changes in between.
#[test]
fn redis_names_the_announcement() {
    assert_breaks(&[Safeguard::AnnouncementNamedByRedis], with_fault(&[Fault::Flush]), LIMIT_HOLDS);
    assert_breaks(&[Safeguard::AnnouncementNamedByRedis], with_fault(&[Fault::RestartEmpty]), LIMIT_HOLDS);
}

/// The load is executed a second time, after a key with later changes was lost. The names are in another key.
#[test]
fn a_name_is_used_once() {
    assert_breaks(&[Safeguard::NameUsedOnce], with_fault(&[Fault::Evict]), LIMIT_HOLDS);
}

/// Two rebuilds race, and the load of the earlier epoch comes last. The limit still holds (see redundant.rs). But Redis
/// is outdated again, and no upload is admitted until another rebuild.
#[test]
fn a_load_does_not_replace_newer_state() {
    assert_breaks(&[Safeguard::NewerStateStays], Scope::small(), REDIS_KEEPS_CURRENT_LOAD);
}

/// Redis counts too much, never too little: space is wasted, and the limit holds.
#[test]
fn a_reservation_counts_once() {
    assert_breaks(&[Safeguard::ReserveOnce], Scope { limit: 2, ..Scope::small() }, REDIS_EXACT);
}

#[test]
fn a_release_is_sent_only_after_a_certain_rollback() {
    assert_breaks(&[Safeguard::ReleaseWhenSure], Scope::small(), LIMIT_HOLDS);
}

/// The release of the first attempt is executed after the second attempt has reserved the same id.
#[test]
fn a_released_id_is_not_used_again() {
    let scope = Scope { rebuilds: 0, ..Scope::small() };
    assert_breaks(&[Safeguard::FreshIdPerTry], scope, LIMIT_HOLDS);
}

#[test]
fn a_change_of_the_limit_raises_the_epoch() {
    let scope = Scope { limit: 2, limit_changes: 1, other_limit: 1, rebuilds: 0, ..Scope::small() };
    assert_breaks(&[Safeguard::LimitRaisesEpoch], scope, LIMIT_HOLDS);
}
