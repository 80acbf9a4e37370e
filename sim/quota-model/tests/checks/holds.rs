//! With all safeguards every claim holds, in every state of several scopes: each is wide in its own direction.

use quota_model::rules::{Fault, Rules, Scope};

use super::assert_holds;

fn faulty() -> Scope {
    Scope { faults: 1, kinds: &Fault::ALL, folded: true, ..Scope::small() }
}

#[test]
fn three_files_of_which_two_fit() {
    assert_holds(Rules::all(), Scope { sizes: [1, 1, 1], limit: 2, folded: true, ..Scope::small() });
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
fn leaving_twice_amid_a_fault() {
    assert_holds(Rules::all(), Scope { leaves: 2, ..faulty() });
}

/// Elsewhere they begin at any time, and look at the epochs or not.
#[test]
fn rebuilds_where_there_is_need_and_a_fault() {
    assert_holds(Rules::all(), Scope { triggered: true, limit_changes: 1, other_limit: 2, ..faulty() });
}

#[test]
fn two_faults_in_a_row() {
    assert_holds(Rules::all(), Scope { faults: 2, ..faulty() });
}

#[test]
fn leaving_and_coming_back_amid_a_fault() {
    assert_holds(Rules::all(), Scope { leaves: 1, ..faulty() });
}

#[test]
fn leaving_twice() {
    assert_holds(Rules::all(), Scope { leaves: 2, folded: true, ..Scope::small() });
}

#[test]
fn the_limit_is_raised() {
    let scope = Scope { sizes: [1, 1, 1], limit_changes: 1, other_limit: 2, rebuilds: 1, ..Scope::small() };
    assert_holds(Rules::all(), Scope { folded: true, ..scope });
}

#[test]
fn the_limit_is_lowered_while_tenants_leave_and_come_back() {
    let scope = Scope { limit: 2, limit_changes: 1, other_limit: 1, leaves: 1, ..Scope::small() };
    assert_holds(Rules::all(), Scope { folded: true, ..scope });
}
