//! Deletes that the store refuses are retried, shown to operators, and never lost.

use std::path::Path;

use serde_json::{Value, json};

use super::object_of;
use crate::oracle;
use crate::test_app::{Client, Database, TestApp, TestEnv, on_each_database};
use wharfinger::core::Role;

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;
const TRIGGER: &str = "/api/v1/maintenance/cleanup/trigger";
const STATUS: &str = "/api/v1/maintenance/cleanup/status";
const PENDING: &str = "/api/v1/maintenance/cleanup/pending";

/// Replaces the object by a folder with a file, which cannot be removed like a file.
fn block_delete(object: &Path) {
    std::fs::remove_file(object).expect("the object was there");
    std::fs::create_dir(object).expect("a folder in its place");
    std::fs::write(object.join("in the way"), b"x").expect("a file in the folder");
}

fn unblock_delete(object: &Path) {
    std::fs::remove_dir_all(object).expect("the folder was there");
}

fn admin<'a>(server: &'a TestApp, tenant: &str) -> Client<'a> {
    server.as_user(tenant, "boss", Role::Admin)
}

async fn pending(owner: &Client<'_>) -> Vec<Value> {
    owner.get(PENDING).await.expect(200)["cleanups"].as_array().expect("a list").clone()
}

async fn counts(owner: &Client<'_>) -> (u64, u64) {
    let status = owner.get(STATUS).await.expect(200);
    (status["pending"].as_u64().expect("a number"), status["exhausted"].as_u64().expect("a number"))
}

async fn attempts(owner: &Client<'_>) -> Vec<u64> {
    pending(owner).await.iter().map(|cleanup| cleanup["attempts"].as_u64().expect("a number")).collect()
}

async fn a_failed_delete_is_shown_and_retried_until_it_succeeds(database: Database) {
    let env = TestEnv::with(database, &[("CLEANUP_MAX_ATTEMPTS", "3")]);
    let server = env.start().await;
    let me = server.me();
    let operator = server.operator();
    let file = me.upload("a", b"abc").await;
    let object = object_of(&env, &file);
    block_delete(&object);
    me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    assert_eq!(me.used().await, 0, "a failed delete is not charged to the owner");
    let status = operator.get(STATUS).await.expect(200);
    assert_eq!(status, json!({ "pending": 1, "exhausted": 0, "oldestAge": 0, "lastRun": null }));

    server.settle().await;
    let listed = pending(&operator).await;
    assert_eq!(listed.len(), 1);
    let mut shown = listed[0].clone();
    let error = shown["lastError"].take();
    assert!(error.as_str().is_some_and(|text| !text.is_empty()), "{error}");
    let id = shown["id"].take();
    assert!(id.is_string());
    let created = "2025-06-15T15:06:40.000Z";
    assert_eq!(
        shown,
        json!({
            "id": null, "filePath": format!("uploads/t/u/{file}"), "reason": "deleted", "attempts": 1,
            "maxAttempts": 3, "lastError": null, "createdAt": created, "lastAttemptAt": created, "documentId": file,
        })
    );
    server.settle().await;
    assert_eq!(attempts(&operator).await, [1], "not before the retry delay is over");
    env.advance(30_000);
    server.settle().await;
    assert_eq!(attempts(&operator).await, [2]);
    assert_eq!(counts(&operator).await, (1, 0));
    env.advance(60_000);
    server.settle().await;
    assert_eq!(attempts(&operator).await, [3]);
    assert_eq!(counts(&operator).await, (0, 1));

    env.advance(HOUR_MS);
    server.settle().await;
    assert_eq!(attempts(&operator).await, [3], "an exhausted cleanup is retried once a day");
    let status = operator.get(STATUS).await.expect(200);
    assert_eq!(status["oldestAge"], 90_000 + HOUR_MS);
    assert_eq!(status["lastRun"], "2025-06-15T16:08:10.000Z");
    let outcome = operator.post(TRIGGER, json!({})).await.expect(200);
    assert_eq!(outcome, json!({ "attempted": 1, "done": 0, "failed": 1, "exhausted": 1 }));
    assert_eq!(attempts(&operator).await, [4], "a manual run retries at once");
    env.advance(DAY_MS);
    server.settle().await;
    assert_eq!(attempts(&operator).await, [5], "the daily retry does not end");
    // The tombstone is kept beyond its retention, because it shows which file the bytes belong to.
    env.advance(40 * DAY_MS);
    server.settle().await;
    assert_eq!(env.scalar("SELECT COUNT(*) FROM files").await, 1);

    unblock_delete(&object);
    let outcome = operator.post(TRIGGER, json!({})).await.expect(200);
    assert_eq!(outcome, json!({ "attempted": 1, "done": 1, "failed": 0, "exhausted": 0 }));
    assert_eq!((pending(&operator).await, counts(&operator).await), (vec![], (0, 0)));
    assert!(operator.get(STATUS).await.expect(200)["oldestAge"].is_null());
    env.advance(2 * DAY_MS);
    server.settle().await;
    assert_eq!(env.scalar("SELECT COUNT(*) FROM files").await, 0);
    oracle::all_is_healed(&env, &server).await;
}

async fn admins_manage_the_cleanups_of_their_tenant(database: Database) {
    let env = TestEnv::with(database, &[("CLEANUP_MAX_ATTEMPTS", "1")]);
    let server = env.start().await;
    let mut objects = Vec::new();
    for tenant in ["t", "other"] {
        let user = server.as_user(tenant, "u", Role::User);
        let file = user.upload("a", b"abc").await;
        let object = env.blob_dir().join("uploads").join(tenant).join("u").join(&file);
        block_delete(&object);
        objects.push(object);
        user.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    }
    server.settle().await;
    let (mine, theirs, operator) = (admin(&server, "t"), admin(&server, "other"), server.operator());
    assert_eq!(counts(&operator).await, (0, 2));
    for (owner, tenant) in [(&mine, "t"), (&theirs, "other")] {
        assert_eq!(counts(owner).await, (0, 1));
        let shown = pending(owner).await;
        assert_eq!(shown.len(), 1);
        let path = shown[0]["filePath"].as_str().expect("a path");
        assert!(path.starts_with(&format!("uploads/{tenant}/")), "{path}");
    }
    let first = operator.get(&format!("{PENDING}?limit=1")).await.expect(200);
    let cursor = first["nextCursor"].as_str().expect("a cursor");
    let second = operator.get(&format!("{PENDING}?limit=1&cursor={cursor}")).await.expect(200);
    assert_ne!(first["cleanups"][0]["id"], second["cleanups"][0]["id"]);
    assert!(second["nextCursor"].is_null());

    for object in &objects {
        unblock_delete(object);
    }
    let outcome = mine.post(TRIGGER, json!({})).await.expect(200);
    assert_eq!(outcome, json!({ "attempted": 1, "done": 1, "failed": 0, "exhausted": 0 }));
    assert_eq!((counts(&mine).await, counts(&theirs).await), ((0, 0), (0, 1)));
    for (role, code) in [(Role::User, "forbidden"), (Role::Worker, "forbidden")] {
        let outsider = server.as_user("other", "u", role);
        outsider.get(STATUS).await.expect_problem(403, code);
        outsider.get(PENDING).await.expect_problem(403, code);
        outsider.post(TRIGGER, json!({})).await.expect_problem(403, code);
    }
    assert_eq!(counts(&theirs).await, (0, 1), "no other caller has run this cleanup");
    operator.post(TRIGGER, json!({})).await.expect(200);
    oracle::all_is_healed(&env, &server).await;
}

async fn a_failed_delete_does_not_stop_the_others(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let mut files = Vec::new();
    for n in 0..9 {
        files.push(me.upload(&format!("f{n}"), b"abc").await);
    }
    block_delete(&object_of(&env, &files[4]));
    for file in &files {
        me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    }
    server.settle().await;
    let left = pending(&server.operator()).await;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0]["documentId"], files[4].as_str());
    assert_eq!(oracle::files_below(&env.blob_dir()).len(), 1);
    unblock_delete(&object_of(&env, &files[4]));
    env.advance(HOUR_MS);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

/// After a change of the store, old cleanups belong to the old store. The new store would report each object as
/// deleted.
async fn cleanups_of_another_store_type_are_kept(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let file = server.me().upload("cargo", b"bytes").await;
    server.me().delete(&format!("/api/v2/files/{file}")).await.expect(204);
    env.execute("UPDATE pending_cleanups SET storage_type = 'another'").await;
    server.settle().await;
    assert_eq!(env.scalar("SELECT COUNT(*) FROM pending_cleanups").await, 1);
    env.execute("UPDATE pending_cleanups SET storage_type = 'disk'").await;
    server.settle().await;
    assert_eq!(env.scalar("SELECT COUNT(*) FROM pending_cleanups").await, 0);
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    cleanups_of_another_store_type_are_kept,
    a_failed_delete_is_shown_and_retried_until_it_succeeds,
    admins_manage_the_cleanups_of_their_tenant,
    a_failed_delete_does_not_stop_the_others,
    an_unreadable_row_does_not_block_the_others,
    an_unavailable_store_uses_up_no_attempts,
    an_admin_triggers_the_cleanups_of_its_tenant,
);

/// I17: an unreadable cleanup is listed, and the others are run.
async fn an_unreadable_row_does_not_block_the_others(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    env
        .execute(
            "INSERT INTO pending_cleanups (id, file_path, storage_type, reason, tenant_id, document_id, size, \
             attempts, max_attempts, created_at, next_attempt_at, finish_at, exhausted, lease_token, lease_until) \
             VALUES ('00000000-0000-7000-8000-000000000000', 'uploads/../x', 'disk', 'by hand', 't', 'none', 0, \
             0, 5, 0, 0, 0, 0, 0, 0)",
        )
        .await;
    let file = server.me().upload("a", b"abc").await;
    server.me().delete(&format!("/api/v2/files/{file}")).await.expect(204);
    server.settle().await;
    assert!(!object_of(&env, &file).exists());
    assert_eq!(counts(&server.operator()).await, (0, 1));
    assert!(pending(&server.operator()).await[0]["lastError"].is_string());
}

async fn an_admin_triggers_the_cleanups_of_its_tenant(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    for tenant in ["t", "other"] {
        let user = server.as_user(tenant, "u", Role::User);
        let file = user.upload("a", b"abc").await;
        user.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    }
    let outcome = admin(&server, "t").post(TRIGGER, json!({})).await.expect(200);
    assert_eq!(outcome, json!({ "attempted": 1, "done": 1, "failed": 0, "exhausted": 0 }));
    assert_eq!(counts(&admin(&server, "other")).await, (1, 0));
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn an_unavailable_store_uses_up_no_attempts(database: Database) {
    let env = TestEnv::with(database, &[("CLEANUP_MAX_ATTEMPTS", "3")]);
    let server = env.start().await;
    let file = server.me().upload("a", b"abc").await;
    let disk = env.unmount_disk();
    server.me().delete(&format!("/api/v2/files/{file}")).await.expect(204);
    for _ in 0..50 {
        let _ = wharfinger::worker::run_all_due(&server.app).await;
        env.advance(3 * HOUR_MS);
    }
    assert_eq!(counts(&server.operator()).await, (1, 0));
    assert_eq!(attempts(&server.operator()).await, [0]);
    disk.remount();
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}
