//! The hard cases are met: a check that never comes to them would hold for nothing.

use quota_model::claims::SEEN_CAUGHT_UP;
use quota_model::model::Quota;
use quota_model::rules::{Rules, Safeguard, Scope};
use stateright::{Checker, Model};

use super::{assert_holds, without};

#[test]
fn every_hard_case_is_met() {
    assert_holds(Rules::all(), Scope { leaves: 1, watched: true, folded: true, ..Scope::small() });
}

/// The limit was changed, or who rebuilt died before its load: Redis goes on to answer OK under its old epoch, and
/// every insert finds that it moved. Nothing wrong is ever counted, and nothing ever uploaded again, unless finding
/// that leads to a rebuild, and the rebuild is not spared because Redis looks sound.
#[test]
fn redis_that_fell_behind_catches_up_only_when_told() {
    let scope = Scope { triggered: true, limit_changes: 1, other_limit: 2, ..Scope::small() };
    assert_holds(Rules::all(), scope.clone());
    for safeguard in [Safeguard::MovedRebuilds, Safeguard::SparedOnlyIfEqual] {
        let quota = Quota { rules: without(&[safeguard]), scope: scope.clone() };
        let checker = quota.checker().threads(2).spawn_bfs().join();
        assert!(checker.discovery(SEEN_CAUGHT_UP).is_none(), "it catches up without {safeguard:?}");
    }
}
