//! Idempotency keys: one key has one answer until it expires.

use wharfinger_catalog::{RegisterOutcome, Registration};
use wharfinger_lifecycle::file::{self, File};

use super::sample::{
    HOUR, LIMIT, NOW, REFUSING, SECOND, committed, file_of, registration, registration_at, tenant, with_key,
};
use super::test_db::{TestDb, all_at_once};

const ADA: (&str, &str) = ("harbour", "ada");

async fn created(db: &TestDb, registration: Registration) -> File {
    let file = file_of(&registration).clone();
    assert_eq!(db.catalog.register(registration).await.expect("answered"), RegisterOutcome::Created);
    file
}

pub(super) async fn a_key_creates_one_file(db: &TestDb) {
    let file = created(db, with_key(registration(ADA, 10), "key", "body")).await;
    let before = db.dump().await;

    let again = with_key(registration(ADA, 10), "key", "body");
    assert_eq!(db.catalog.register(again).await.expect("answered"), RegisterOutcome::Repeated(file.id.0));
    let other_body = with_key(registration(ADA, 10), "key", "another body");
    assert_eq!(db.catalog.register(other_body).await.expect("answered"), RegisterOutcome::KeyMismatch);
    assert_eq!(db.dump().await, before);
}

pub(super) async fn a_key_belongs_to_its_user_and_route(db: &TestDb) {
    created(db, with_key(registration(ADA, 10), "key", "body")).await;
    created(db, with_key(registration(("harbour", "ben"), 10), "key", "another body")).await;
    created(db, with_key(registration(("wharf", "ada"), 10), "key", "another body")).await;
    created(db, with_key(registration(ADA, 10), "KEY", "another body")).await;
    let mut other_route = with_key(registration(ADA, 10), "key", "another body");
    other_route.idempotency_key.as_mut().expect("it has a key").route = "POST /batches";
    created(db, other_route).await;
}

pub(super) async fn a_key_answers_after_its_file_is_deleted(db: &TestDb) {
    let file = created(db, with_key(registration(ADA, 10), "key", "body")).await;
    committed(&db.catalog, file::delete(&file, &REFUSING, NOW + SECOND).expect("deletable")).await;
    let again = with_key(registration(ADA, 10), "key", "body");
    assert_eq!(db.catalog.register(again).await.expect("answered"), RegisterOutcome::Repeated(file.id.0));
}

pub(super) async fn an_expired_key_can_be_used_again(db: &TestDb) {
    let day = 24 * HOUR;
    let first = created(db, with_key(registration(ADA, 10), "key", "body")).await;
    let just_before = with_key(registration_at(ADA, 10, NOW + day - 1), "key", "body");
    assert_eq!(
        db.catalog.register(just_before).await.expect("answered"),
        RegisterOutcome::Repeated(first.id.0)
    );

    let second = created(db, with_key(registration_at(ADA, 10, NOW + day), "key", "another body")).await;
    let again = with_key(registration_at(ADA, 10, NOW + day + 1), "key", "another body");
    assert_eq!(db.catalog.register(again).await.expect("answered"), RegisterOutcome::Repeated(second.id.0));
    let as_before = with_key(registration_at(ADA, 10, NOW + 2 * day - 1), "key", "body");
    assert_eq!(db.catalog.register(as_before).await.expect("answered"), RegisterOutcome::KeyMismatch);
}

pub(super) async fn expired_keys_are_purged_in_bounded_batches(db: &TestDb) {
    for n in 0..5 {
        created(db, with_key(registration_at(ADA, 1, NOW + n * HOUR), &format!("key-{n}"), "body")).await;
    }
    let kept = || db.texts("SELECT key FROM idempotency_keys ORDER BY key");
    let day = 24 * HOUR;
    assert_eq!(db.catalog.purge_expired_keys(NOW + day - 1, 10).await.expect("done"), 0);
    let at = NOW + day + 3 * HOUR;
    assert_eq!(db.catalog.purge_expired_keys(at, 2).await.expect("done"), 2);
    assert_eq!(kept().await, ["key-2", "key-3", "key-4"], "the oldest are purged first");
    assert_eq!(db.catalog.purge_expired_keys(at, 10).await.expect("done"), 2);
    assert_eq!(kept().await, ["key-4"]);
    assert_eq!(db.catalog.purge_expired_keys(at, 10).await.expect("done"), 0);
}

pub(super) async fn concurrent_requests_with_one_key_create_one_file(db: &TestDb) {
    let another = db.another_handle().await;
    for round in 0..5 {
        let key = format!("key-{round}");
        let answers = all_at_once((0..12).map(|n| {
            let catalog = if n % 2 == 0 { db.catalog.clone() } else { another.clone() };
            let wanted = with_key(registration(ADA, 10), &key, "body");
            async move { (file_of(&wanted).id, catalog.register(wanted).await.expect("answered")) }
        }))
        .await;
        let created: Vec<_> =
            answers.iter().filter(|(_, answer)| *answer == RegisterOutcome::Created).collect();
        assert_eq!(created.len(), 1);
        let first = created[0].0;
        let repeated =
            answers.iter().filter(|(_, answer)| *answer == RegisterOutcome::Repeated(first.0)).count();
        assert_eq!(repeated, 11);
    }
    assert_eq!(db.catalog.quota(&tenant("harbour"), LIMIT).await.expect("read").used_bytes, 50);
}
