//! All properties hold. Without any one of the safeguards a property breaks. The hard cases are reached.

mod holds;
mod needed;
mod reached;
mod redundant;

use std::collections::BTreeSet;

use quota_model::model::Quota;
use quota_model::rules::{Rules, Safeguard, Scope};
use stateright::{Checker, HasDiscoveries, Model};

fn without(safeguards: &[Safeguard]) -> Rules {
    safeguards.iter().fold(Rules::all(), |rules, safeguard| rules.without(*safeguard))
}

/// Visits every state of the scope. Every property holds in each.
fn assert_holds(rules: Rules, scope: Scope) {
    let checker = Quota { rules, scope }.checker().threads(2).spawn_bfs().join();
    assert!(checker.is_done(), "not every state was visited");
    println!("{} states, depth {}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// The checker finds a path that breaks the property. `--nocapture` shows it step by step.
fn assert_breaks(safeguards: &[Safeguard], scope: Scope, property: &'static str) {
    let quota = Quota { rules: without(safeguards), scope };
    let when = HasDiscoveries::AllOf(BTreeSet::from([property]));
    let checker = quota.checker().threads(1).finish_when(when).spawn_bfs().join();
    let found = checker.discovery(property);
    println!("without {safeguards:?}: {property}: {} states", checker.unique_state_count());
    let path = found.unwrap_or_else(|| panic!("without {safeguards:?}, \"{property}\" still holds"));
    for (state, action) in path.into_vec() {
        println!("  {:?}, {:?}", state.catalog, state.redis.keys);
        println!("{}", action.map_or(String::from("  broken"), |action| format!("{action:?}")));
    }
}

/// Visits every state of the scope. Only this property breaks.
fn assert_breaks_nothing_but(safeguards: &[Safeguard], scope: Scope, property: &'static str) {
    let checker = Quota { rules: without(safeguards), scope }.checker().threads(2).spawn_bfs().join();
    assert!(checker.is_done(), "not every state was visited");
    println!("without {safeguards:?}: {} states", checker.unique_state_count());
    let broken: Vec<_> = checker.discoveries().into_keys().collect();
    assert_eq!(broken, [property], "without {safeguards:?}");
}
