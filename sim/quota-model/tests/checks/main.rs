//! The protocol holds; without any one of its safeguards it does not; and the hard cases are met on the way.

mod holds;
mod needed;
mod redundant;
mod seen;

use std::collections::BTreeSet;

use quota_model::model::Quota;
use quota_model::rules::{Rules, Safeguard, Scope};
use stateright::{Checker, HasDiscoveries, Model};

fn without(safeguards: &[Safeguard]) -> Rules {
    safeguards.iter().fold(Rules::all(), |rules, safeguard| rules.without(*safeguard))
}

/// Every state of the scope is visited, and every claim holds in it.
fn assert_holds(rules: Rules, scope: Scope) {
    let checker = Quota { rules, scope }.checker().threads(2).spawn_bfs().join();
    assert!(checker.is_done(), "all of it was explored");
    println!("{} states, depth {}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// The checker finds a way to break the claim. The way is printed, step by step, for `--nocapture`.
fn assert_breaks(safeguards: &[Safeguard], scope: Scope, claim: &'static str) {
    let quota = Quota { rules: without(safeguards), scope };
    let when = HasDiscoveries::AllOf(BTreeSet::from([claim]));
    let checker = quota.checker().threads(1).finish_when(when).spawn_bfs().join();
    let found = checker.discovery(claim);
    println!("without {safeguards:?}: {claim}: {} states", checker.unique_state_count());
    let path = found.unwrap_or_else(|| panic!("without {safeguards:?} nothing breaks \"{claim}\""));
    for (state, action) in path.into_vec() {
        println!("  {:?}, {:?}", state.catalog, state.redis.keys);
        println!("{}", action.map_or(String::from("  broken"), |action| format!("{action:?}")));
    }
}

/// Every state of the scope is visited; this claim breaks, and no other does.
fn assert_breaks_nothing_but(safeguards: &[Safeguard], scope: Scope, claim: &'static str) {
    let checker = Quota { rules: without(safeguards), scope }.checker().threads(2).spawn_bfs().join();
    assert!(checker.is_done(), "all of it was explored");
    println!("without {safeguards:?}: {} states", checker.unique_state_count());
    let broken: Vec<_> = checker.discoveries().into_keys().collect();
    assert_eq!(broken, [claim], "without {safeguards:?}");
}
