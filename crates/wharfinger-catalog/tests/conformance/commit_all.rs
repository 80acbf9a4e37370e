//! Many changes in one commit: each file ends as it would alone, and files that have changed meanwhile are skipped.

use std::collections::BTreeSet;

use wharfinger_catalog::Scope;
use wharfinger_lifecycle::file::{self, Change, CheckAction, File};
use wharfinger_lifecycle::id::FileId;

use super::sample::{
    POLICY, REFUSING, URL_DEAD_AT, committed, confirm, confirmed, deleted, registered, tenant,
};
use super::test_db::{TestDb, all_at_once};

const OWNERS: [(&str, &str); 3] = [("harbour", "ada"), ("harbour", "bob"), ("quay", "ada")];
const ACTOR: &str = "a sweep";

/// `of_each` files of each owner, each of ten bytes.
async fn unconfirmed(db: &TestDb, of_each: usize) -> Vec<File> {
    let mut files = Vec::new();
    for owner in OWNERS {
        for _ in 0..of_each {
            files.push(registered(&db.catalog, owner, 10).await);
        }
    }
    files
}

fn reclaimed(file: &File) -> Change {
    file::reclaim(file, "not confirmed", &POLICY, URL_DEAD_AT).expect("reclaimable")
}

async fn assert_audit_passes(db: &TestDb) {
    assert_eq!(db.catalog.audit().await.expect("audited"), Vec::<String>::new());
}

pub(super) async fn only_unchanged_files_are_reclaimed(db: &TestDb) {
    let files = unconfirmed(db, 30).await;
    let changes: Vec<Change> = files.iter().map(reclaimed).collect();
    let mut taken = BTreeSet::new();
    for file in files.iter().step_by(9) {
        committed(&db.catalog, confirm(file)).await;
        taken.insert(file.id);
    }
    let ended = db.catalog.commit_all(changes.clone(), ACTOR).await.expect("ended");
    let expected: BTreeSet<FileId> =
        files.iter().map(|file| file.id).filter(|id| !taken.contains(id)).collect();
    assert_eq!(ended.into_iter().collect::<BTreeSet<_>>(), expected);
    assert_audit_passes(db).await;
    for change in changes.iter().filter(|change| expected.contains(&change.after.id)) {
        let now = db.catalog.file(change.after.id).await.expect("read").expect("a tombstone");
        assert_eq!(now, change.after, "the same as in a commit of one change");
        let history = db.catalog.history(now.id).await.expect("read");
        let last = history.last().expect("a line");
        assert_eq!((last.actor.as_str(), last.reason.as_str()), (ACTOR, "not confirmed"));
    }
    let cleanups = db.catalog.cleanup_counts(&Scope::All).await.expect("counted");
    assert_eq!(cleanups.pending, expected.len() as u64);
    for name in ["harbour", "quay"] {
        let kept = files.iter().filter(|file| file.tenant == tenant(name) && taken.contains(&file.id));
        let quota = db.catalog.quota(&tenant(name), 0).await.expect("read");
        assert_eq!(quota.used_bytes, kept.count() as u64 * 10, "{name}");
    }
    let before = db.dump().await;
    assert_eq!(db.catalog.commit_all(changes, ACTOR).await.expect("nothing left"), Vec::new());
    assert_eq!(db.dump().await, before);
}

pub(super) async fn concurrent_reclaims_end_each_file_once(db: &TestDb) {
    let changes: Vec<Change> = unconfirmed(db, 20).await.iter().map(reclaimed).collect();
    let enders = (0..8).map(|n| {
        let (catalog, mut changes) = (db.catalog.clone(), changes.clone());
        changes.rotate_left(n * 7);
        async move { catalog.commit_all(changes, ACTOR).await.expect("ended") }
    });
    let ended: Vec<FileId> = all_at_once(enders).await.concat();
    assert_eq!(ended.len(), 60, "each file ends once");
    assert_audit_passes(db).await;
}

pub(super) async fn due_refunds_are_committed_together(db: &TestDb) {
    let mut changes = Vec::new();
    for owner in OWNERS {
        for _ in 0..5 {
            let file = deleted(&db.catalog, owner, 10, &POLICY).await;
            let CheckAction::Refund(refund) = file::check(&file, &POLICY, URL_DEAD_AT) else {
                panic!("a refund is due")
            };
            changes.push(*refund);
        }
    }
    assert_eq!(db.catalog.quota(&tenant("harbour"), 0).await.expect("read").used_bytes, 100);
    assert_eq!(db.catalog.commit_all(changes, ACTOR).await.expect("refunded").len(), 15);
    assert_eq!(db.catalog.quota(&tenant("harbour"), 0).await.expect("read").used_bytes, 0);
    assert_audit_passes(db).await;
}

pub(super) async fn changes_of_every_kind_are_committed_together(db: &TestDb) {
    let [reclaimable, confirmable, lost] = [(); 3].map(|()| registered(&db.catalog, OWNERS[0], 10));
    let (reclaimable, confirmable, lost) = (reclaimable.await, confirmable.await, lost.await);
    let removable = confirmed(&db.catalog, OWNERS[1], 20).await;
    let stale = confirm(&lost);
    committed(&db.catalog, confirm(&lost)).await;
    let delete = file::delete(&removable, &REFUSING, URL_DEAD_AT).expect("deletable");
    let changes = vec![stale, delete, reclaimed(&reclaimable), confirm(&confirmable)];
    let changed = db.catalog.commit_all(changes, ACTOR).await.expect("answered");
    let mut expected = vec![reclaimable.id, confirmable.id, removable.id];
    expected.sort();
    assert_eq!(changed, expected, "all but the file that changed since it was read");
    for (id, status) in [(reclaimable.id, "deleted"), (removable.id, "deleted"), (confirmable.id, "ready")] {
        let file = db.catalog.file(id).await.expect("read").expect("it is there");
        assert_eq!(file.status.as_str(), status);
    }
    assert_audit_passes(db).await;
}

pub(super) async fn tombstones_are_purged_together_after_their_cleanups(db: &TestDb) {
    let mut tombstones = Vec::new();
    for owner in OWNERS {
        for _ in 0..20 {
            tombstones.push(deleted(&db.catalog, owner, 10, &REFUSING).await);
        }
    }
    let living = registered(&db.catalog, OWNERS[0], 10).await;
    // All cleanups but the first are done.
    db.sql(&format!("DELETE FROM pending_cleanups WHERE document_id <> '{}'", tombstones[0].id)).await;
    let mut all = tombstones.clone();
    all.push(living.clone());
    let gone = db.catalog.purge_tombstones(all.clone()).await.expect("purged");
    assert_eq!(gone.len(), 59);
    assert!(!gone.contains(&living.id) && !gone.contains(&tombstones[0].id));
    let left = db.catalog.files_by_id(&all.iter().map(|file| file.id).collect::<Vec<_>>()).await;
    let left: BTreeSet<FileId> = left.expect("read").iter().map(|file| file.id).collect();
    assert_eq!(left, BTreeSet::from([living.id, tombstones[0].id]));
    assert_audit_passes(db).await;
    assert_eq!(db.catalog.purge_tombstones(all).await.expect("nothing left"), Vec::new());
}
