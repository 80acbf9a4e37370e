//! The hard cases are reached. A check that never reaches them proves nothing.

use quota_model::model::Quota;
use quota_model::properties::REACHED_CURRENT_AGAIN;
use quota_model::rules::{Rules, Safeguard, Scope};
use stateright::{Checker, Model};

use super::{assert_holds, without};

#[test]
fn every_hard_case_is_reached() {
    assert_holds(
        Rules::all(),
        Scope { leaves: 1, track_outcomes: true, reduce_symmetry: true, ..Scope::small() },
    );
}

/// The limit was changed, or a rebuild crashed before its load. Redis still answers OK with its old epoch, and every
/// insert finds a newer one. No count is wrong. But no upload succeeds, unless this finding starts a rebuild, and the
/// rebuild is not skipped because the state of Redis looks valid.
#[test]
fn an_outdated_redis_needs_a_requested_rebuild() {
    let scope = Scope { on_demand: true, limit_changes: 1, other_limit: 2, ..Scope::small() };
    assert_holds(Rules::all(), scope.clone());
    for safeguard in [Safeguard::EpochChangeRebuilds, Safeguard::SkippedOnlyIfEqual] {
        let quota = Quota { rules: without(&[safeguard]), scope: scope.clone() };
        let checker = quota.checker().threads(2).spawn_bfs().join();
        assert!(
            checker.discovery(REACHED_CURRENT_AGAIN).is_none(),
            "it becomes current without {safeguard:?}"
        );
    }
}
