//! With all safeguards, every property holds in every state of several scopes.

use quota_model::rules::{Fault, Rules, Scope};

use super::assert_holds;

fn faulty() -> Scope {
    Scope { faults: 1, kinds: &Fault::ALL, reduce_symmetry: true, ..Scope::small() }
}

#[test]
fn three_files_of_which_two_fit() {
    assert_holds(Rules::all(), Scope { sizes: [1, 1, 1], limit: 2, reduce_symmetry: true, ..Scope::small() });
}

#[test]
fn files_of_two_sizes_and_a_fault() {
    assert_holds(Rules::all(), Scope { sizes: [1, 2, 0], limit: 2, ..faulty() });
}

#[test]
#[ignore = "long: cargo xtask prove"]
fn three_rebuilds_and_a_fault() {
    assert_holds(Rules::all(), Scope { rebuilds: 3, ..faulty() });
}

#[test]
#[ignore = "long: cargo xtask prove"]
fn two_moves_to_the_database_and_a_fault() {
    assert_holds(Rules::all(), Scope { leaves: 2, ..faulty() });
}

/// In the other scopes, rebuilds start at any time and may skip the comparison of epochs.
#[test]
fn rebuilds_on_demand_and_a_fault() {
    assert_holds(Rules::all(), Scope { on_demand: true, limit_changes: 1, other_limit: 2, ..faulty() });
}

#[test]
fn two_faults() {
    assert_holds(Rules::all(), Scope { faults: 2, ..faulty() });
}

#[test]
fn a_move_to_the_database_and_back_and_a_fault() {
    assert_holds(Rules::all(), Scope { leaves: 1, ..faulty() });
}

#[test]
fn two_moves_to_the_database() {
    assert_holds(Rules::all(), Scope { leaves: 2, reduce_symmetry: true, ..Scope::small() });
}

#[test]
fn the_limit_is_raised() {
    let scope = Scope { sizes: [1, 1, 1], limit_changes: 1, other_limit: 2, rebuilds: 1, ..Scope::small() };
    assert_holds(Rules::all(), Scope { reduce_symmetry: true, ..scope });
}

#[test]
fn the_limit_is_lowered_during_a_move_to_the_database_and_back() {
    let scope = Scope { limit: 2, limit_changes: 1, other_limit: 1, leaves: 1, ..Scope::small() };
    assert_holds(Rules::all(), Scope { reduce_symmetry: true, ..scope });
}
