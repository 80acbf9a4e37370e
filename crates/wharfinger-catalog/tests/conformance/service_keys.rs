//! Service keys: created, found, used, revoked, and removed after their end.

use wharfinger_catalog::{KeyUse, SERVICE_KEYS_MAX, ServiceKey};

use super::failing_catalog::FailingCatalog;
use super::sample::{HOUR, NOW, SECOND};
use super::test_db::TestDb;

pub(super) fn service_key(id: &str, at: i64) -> ServiceKey {
    ServiceKey {
        id: id.to_owned(),
        hash: "00".repeat(32),
        name: Some("nightly".into()),
        role: "user".into(),
        tenant: Some("harbour".into()),
        user: Some("ada".into()),
        created_at: at,
        expires_at: Some(at + HOUR),
        revoked_at: None,
        last_used_at: None,
    }
}

async fn created(db: &TestDb, key: &ServiceKey) {
    assert!(db.catalog.create_service_key(key.clone()).await.expect("answered"), "{key:?}");
}

async fn ids(db: &TestDb, before: Option<&str>, limit: usize) -> Vec<String> {
    let keys = db.catalog.service_keys(before, limit).await.expect("read");
    keys.into_iter().map(|key| key.id).collect()
}

pub(super) async fn a_service_key_is_read_as_it_was_written(db: &TestDb) {
    let full = service_key("01", NOW);
    let bare = ServiceKey {
        name: None,
        role: "metrics".into(),
        tenant: None,
        user: None,
        expires_at: None,
        ..service_key("02", NOW)
    };
    for key in [&full, &bare] {
        created(db, key).await;
        assert_eq!(db.catalog.service_key(&key.id).await.expect("read").as_ref(), Some(key));
    }
    assert_eq!(db.catalog.service_key("03").await.expect("read"), None);
    assert_eq!(db.catalog.service_keys(None, 10).await.expect("read"), [bare, full.clone()], "newest first");
    assert_eq!(ids(db, None, 1).await, ["02"]);
    assert_eq!(ids(db, Some("02"), 10).await, ["01"]);
    // The primary key refuses a second key with an id.
    assert!(db.catalog.create_service_key(full.clone()).await.is_err());
    let unknown = ServiceKey { role: "root".into(), ..service_key("04", NOW) };
    assert!(db.catalog.create_service_key(unknown).await.is_err());
}

pub(super) async fn a_key_is_revoked_once(db: &TestDb) {
    created(db, &service_key("01", NOW)).await;
    for at in [NOW + 1, NOW + 2] {
        let revoked = db.catalog.revoke_service_key("01", at).await.expect("answered").expect("a key");
        assert_eq!(revoked.revoked_at, Some(NOW + 1), "the first time is kept");
    }
    assert_eq!(db.catalog.revoke_service_key("02", NOW).await.expect("answered"), None);
}

pub(super) async fn uses_of_a_key_are_written_only_now_and_then(db: &TestDb) {
    const MANY: usize = 600;
    for n in 0..MANY {
        created(db, &service_key(&format!("{n:04}"), NOW)).await;
    }
    let last_used = async |id: &str| {
        db.catalog.service_key(id).await.expect("read").expect("a key").last_used_at.map(|at| at - NOW)
    };
    let minute = 60 * SECOND;
    let use_at = async |at: i64| {
        let uses = vec![KeyUse { id: "0000".into(), at }, KeyUse { id: "gone".into(), at }];
        db.catalog.record_key_uses(uses, at - minute).await.expect("written");
    };
    use_at(NOW + 5).await;
    assert_eq!(last_used("0000").await, Some(5));
    // What another process wrote less than a minute before stays.
    use_at(NOW + minute).await;
    assert_eq!(last_used("0000").await, Some(5));
    use_at(NOW + 5 + minute).await;
    assert_eq!(last_used("0000").await, Some(5 + minute));
    // A late line of another process does not set the time back.
    let late = vec![KeyUse { id: "0000".into(), at: NOW + 6 }];
    db.catalog.record_key_uses(late, NOW + 10 * minute).await.expect("written");
    assert_eq!(last_used("0000").await, Some(5 + minute));
    // More than one statement holds.
    let all = (0..MANY).map(|n| KeyUse { id: format!("{n:04}"), at: NOW + HOUR }).collect();
    db.catalog.record_key_uses(all, NOW + HOUR - minute).await.expect("written");
    for id in ["0000", "0024", "0025", "0499", "0500", "0599"] {
        assert_eq!(last_used(id).await, Some(HOUR), "{id}");
    }
}

pub(super) async fn ended_keys_are_purged_in_bounded_batches(db: &TestDb) {
    let without_end = |id: &str| ServiceKey { expires_at: None, ..service_key(id, NOW) };
    for key in [
        service_key("expired", NOW - 2 * HOUR),
        service_key("expiring", NOW),
        without_end("revoked"),
        without_end("used"),
    ] {
        created(db, &key).await;
    }
    db.catalog.revoke_service_key("revoked", NOW - 1).await.expect("answered");
    let purge = async |before: i64, limit: usize| {
        db.catalog.purge_service_keys(before, limit).await.expect("answered")
    };
    assert_eq!(purge(NOW - HOUR, 10).await, 0);
    assert_eq!(purge(NOW, 1).await, 1, "at most the limit");
    assert_eq!(ids(db, None, 10).await, ["used", "revoked", "expiring"], "the oldest end first");
    assert_eq!(purge(NOW, 10).await, 1);
    assert_eq!(purge(NOW + 1_000 * HOUR, 10).await, 1);
    assert_eq!(ids(db, None, 10).await, ["used"]);
}

pub(super) async fn the_number_of_keys_is_bounded(db: &TestDb) {
    let numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)";
    db.sql(&format!(
        "{numbers} INSERT INTO service_keys (id, hash, role, created_at) SELECT CAST(i AS TEXT), 'x', 'metrics', 1 FROM n"
    ))
    .await;
    created(db, &service_key("the last", NOW)).await;
    let one_more = service_key("one more", NOW);
    assert!(!db.catalog.create_service_key(one_more).await.expect("answered"));
    assert_eq!(ids(db, None, SERVICE_KEYS_MAX + 1).await.len(), SERVICE_KEYS_MAX);
}

pub(super) async fn an_unreadable_key_does_not_hide_the_others(db: &TestDb) {
    created(db, &service_key("01", NOW)).await;
    created(db, &service_key("02", NOW)).await;
    let damage = match db.is_postgres() {
        // A text column of PostgreSQL holds only text.
        true => {
            "ALTER TABLE service_keys ALTER COLUMN hash DROP NOT NULL; UPDATE service_keys SET hash = NULL WHERE id = '02'"
        }
        false => "UPDATE service_keys SET hash = x'ff' WHERE id = '02'",
    };
    db.sql(damage).await;
    assert_eq!(ids(db, None, 10).await, ["01"]);
    assert_eq!(db.catalog.service_key("02").await.expect("read"), None);
    assert_eq!(db.catalog.count_unreadable().await.expect("read"), [("service_keys".to_owned(), 1)].into());
    db.sql("UPDATE service_keys SET hash = 'x' WHERE id = '02'").await;
    assert_eq!(db.catalog.recheck_unreadable().await.expect("checked"), 0);
    assert_eq!(ids(db, None, 10).await, ["02", "01"]);
}

/// Each write fails at each of its calls, and then changes nothing.
pub(super) async fn fail_writes(failing: &mut FailingCatalog<'_>) {
    let key = service_key("01", NOW);
    assert!(failing.fail_each_call(async |catalog| catalog.create_service_key(key.clone()).await).await);
    let uses = vec![KeyUse { id: key.id.clone(), at: NOW }];
    failing.fail_each_call(async |catalog| catalog.record_key_uses(uses.clone(), NOW).await).await;
    let revoked =
        failing.fail_each_call(async |catalog| catalog.revoke_service_key("01", NOW + HOUR).await).await;
    assert_eq!(revoked.and_then(|key| key.revoked_at), Some(NOW + HOUR));
    let late = NOW + 24_000 * HOUR;
    assert_eq!(failing.fail_each_call(async |catalog| catalog.purge_service_keys(late, 10).await).await, 1);
}
