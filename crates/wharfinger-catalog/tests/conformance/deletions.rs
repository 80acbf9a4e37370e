//! The deletion log: what it says about each deleted object, and who sees it.

use wharfinger_catalog::{CleanupOutcome, Deletion, DeletionCursor, Scope};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file;

use super::sample::{HOUR, NOW, POLICY, REFUSING, SECOND, URL_DEAD_AT, deleted, registered, tenant, user};
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");
const BEN: (&str, &str) = ("quay", "ben");

/// Deletes the objects of all due cleanups.
async fn reap(db: &TestDb, now: UnixMs) {
    let claims = db.catalog.claim_cleanups(&Scope::All, now, 100, HOUR).await.expect("claimed");
    let outcomes = claims.into_iter().map(|claim| (claim, CleanupOutcome::Deleted)).collect();
    db.catalog.record_cleanup_outcomes(outcomes, now).await.expect("recorded");
}

async fn listed(db: &TestDb, scope: &Scope, since: UnixMs) -> Vec<Deletion> {
    db.catalog.deletions(scope, since, None, 1_000).await.expect("read")
}

pub(super) async fn a_delete_is_logged_with_what_ordered_it(db: &TestDb) {
    let by_owner = deleted(&db.catalog, ADA, 10, &REFUSING).await;
    reap(db, NOW + SECOND).await;
    let late = registered(&db.catalog, BEN, 20).await;
    let reclaim = file::reclaim(&late, "not confirmed", &POLICY, URL_DEAD_AT).expect("reclaimable");
    db.catalog.commit(reclaim, "upload-window").await.expect("committed");
    assert_eq!(listed(db, &Scope::All, 0).await.len(), 1, "its bytes are not deleted yet");
    reap(db, URL_DEAD_AT).await;
    let log = listed(db, &Scope::All, 0).await;
    let line = |deletion: &Deletion| {
        let Deletion { key, size, reason, ordered_by, tenant, file, .. } = deletion.clone();
        (key, size, reason, ordered_by, tenant, file, deletion.cursor.deleted_at)
    };
    let expected = [
        (late, 20, "reclaimed", "upload-window", "quay", URL_DEAD_AT),
        (by_owner, 10, "deleted", "clerk", "harbour", NOW + SECOND),
    ];
    let expected = expected.map(|(file, size, reason, by, tenant, at)| {
        let (key, id) = (file.key.to_string(), file.id.to_string());
        (key, size, reason.to_owned(), Some(by.to_owned()), tenant.to_owned(), id, at)
    });
    assert_eq!(log.iter().map(line).collect::<Vec<_>>(), expected);
    assert!(log.iter().all(|one| one.objects == 1));
}

/// Outputs of failed attempts are deleted before the file is. Its line has the last reason.
pub(super) async fn derived_objects_share_one_line(db: &TestDb) {
    let file = deleted(&db.catalog, ADA, 10, &REFUSING).await;
    db.sql("DELETE FROM pending_cleanups").await;
    for (n, reason, by) in [(1, "superseded", "worker:wim"), (2, "deleted", "user:ada")] {
        db.sql(&format!(
            "INSERT INTO pending_cleanups (id, file_path, storage_type, reason, ordered_by, tenant_id, document_id, size, \
             attempts, max_attempts, created_at, next_attempt_at, finish_at, exhausted, lease_token, lease_until) \
             VALUES ('018f4e6e-7f3a-7000-8000-00000000000{n}', 'derived/harbour/ada/{id}/{id}-{n}/text-00000', 'disk', \
             '{reason}', '{by}', 'harbour', '{id}', 5, 0, 5, 0, {NOW}, {NOW}, 0, 0, 0)",
            id = file.id
        ))
        .await;
        reap(db, NOW + n * HOUR).await;
    }
    let log = listed(db, &Scope::All, 0).await;
    assert_eq!(log.len(), 1, "{log:?}");
    let line = &log[0];
    assert_eq!(line.key, format!("derived/harbour/ada/{}/", file.id));
    assert_eq!((line.objects, line.size, line.cursor.deleted_at), (2, 10, NOW + 2 * HOUR));
    assert_eq!((line.reason.as_str(), line.ordered_by.as_deref()), ("deleted", Some("user:ada")));
    db.sql("UPDATE files SET next_check_at = 0").await;
}

pub(super) async fn deletions_are_listed_by_scope_newest_first(db: &TestDb) {
    for n in 0..5 {
        deleted(&db.catalog, ADA, 10 + n, &REFUSING).await;
        deleted(&db.catalog, BEN, 20 + n, &REFUSING).await;
        // Two lines have the same time.
        reap(db, NOW + HOUR + (n as i64) / 2 * SECOND).await;
    }
    let sizes = async |scope: &Scope, since| {
        let log = listed(db, scope, since).await;
        assert!(log.is_sorted_by(|one, next| {
            (one.cursor.deleted_at, &one.cursor.id) > (next.cursor.deleted_at, &next.cursor.id)
        }));
        let mut sizes: Vec<u64> = log.iter().map(|one| one.size).collect();
        sizes.sort_unstable();
        sizes
    };
    assert_eq!(sizes(&Scope::All, 0).await, [10, 11, 12, 13, 14, 20, 21, 22, 23, 24]);
    let harbour = Scope::Tenant(tenant("harbour"));
    assert_eq!(sizes(&harbour, 0).await, [10, 11, 12, 13, 14]);
    assert_eq!(sizes(&harbour, NOW + HOUR + SECOND).await, [12, 13, 14], "since a time, that time included");
    assert!(sizes(&harbour, NOW + HOUR + 2 * SECOND + 1).await.is_empty());
    assert!(sizes(&Scope::Tenant(tenant("none")), 0).await.is_empty());
    let whole = listed(db, &Scope::All, NOW + HOUR + SECOND).await;
    let mut pages = Vec::new();
    let mut before = None;
    loop {
        let page = db.catalog.deletions(&Scope::All, NOW + HOUR + SECOND, before, 4).await.expect("read");
        let Some(last) = page.last() else { break };
        before = Some(last.cursor.to_string().parse().expect("a cursor"));
        pages.extend(page);
    }
    assert_eq!((pages.len(), &pages), (6, &whole), "pages have no gaps");
    // Cleanups have no user, so a user's scope is that of the tenant. The API refuses users.
    let ada = Scope::User(tenant("harbour"), user("ada"));
    assert_eq!(sizes(&ada, 0).await.len(), 5);
}

pub(super) async fn a_cursor_of_another_list_is_refused(_db: &TestDb) {
    for text in ["", "1", "x.y", "1.", "1.a b", "1.%27", &format!("1.{}", "a".repeat(65))] {
        assert!(text.parse::<DeletionCursor>().is_err(), "{text}");
    }
}
