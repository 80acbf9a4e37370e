//! Deletion: the row ends at once, and the bytes are deleted later. An upload to a deleted file is refused.

use super::{GRACE_MS, WINDOW_MS, id, object_of};
use crate::oracle;
use crate::test_app::{Database, TestEnv, on_each_database};

const DAY_MS: i64 = 86_400_000;

async fn the_upload_url_of_a_deleted_file_is_refused(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let grant = me.init("a", 3).await.expect(201);
    me.delete(&format!("/api/v2/files/{}", id(&grant))).await.expect(204);
    assert_eq!(me.used().await, 0);
    server.put_bytes(&grant, b"abc").await.expect_problem(410, "gone");
    server.settle().await;
    server.put_bytes(&grant, b"abc").await.expect_problem(410, "gone");
    assert!(oracle::files_below(&env.blob_dir()).is_empty());
    assert_eq!(me.used().await, 0);
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    let list = me.get("/api/v2/notifications").await.expect(200);
    assert_eq!(
        list["notifications"],
        serde_json::json!([]),
        "the owner deleted the file, so no notification is sent"
    );
    oracle::all_is_healed(&env, &server).await;
}

async fn an_unconfirmed_upload_can_be_deleted(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let grant = me.init("a", 3).await.expect(201);
    server.put_bytes(&grant, b"abc").await.expect(200);
    me.delete(&format!("/api/v2/files/{}", id(&grant))).await.expect(204);
    assert_eq!(me.used().await, 0);
    server.settle().await;
    assert!(!object_of(&env, &id(&grant)).exists());
    oracle::all_is_healed(&env, &server).await;
}

async fn only_one_of_many_concurrent_deletes_succeeds(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let other = me.upload("other", b"other").await;
    let file = me.upload("a", b"abc").await;
    let path = format!("/api/v2/files/{file}");
    let answers = futures::future::join_all((0..20).map(|_| me.delete(&path))).await;
    let done = answers.iter().filter(|answer| answer.status == 204).count();
    assert_eq!(done, 1);
    for answer in answers.into_iter().filter(|answer| answer.status != 204) {
        answer.expect_problem(404, "not_found");
    }
    assert_eq!(me.used().await, 5, "the quota is refunded once, and the other file still counts");
    server.settle().await;
    assert!(object_of(&env, &other).exists());
    oracle::all_is_healed(&env, &server).await;
}

async fn a_concurrent_delete_wins_over_a_confirm(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    for n in 0..10 {
        let grant = me.init(&format!("f{n}"), 3).await.expect(201);
        server.put_bytes(&grant, b"abc").await.expect(200);
        let file = id(&grant);
        let path = format!("/api/v2/files/{file}");
        let (confirmed, deleted) = futures::future::join(me.confirm(&file), me.delete(&path)).await;
        deleted.expect(204);
        match confirmed.status.as_u16() {
            200 => assert_eq!(confirmed.body["status"], "ready"),
            _ => drop(confirmed.expect_problem(404, "not_found")),
        }
        me.get(&path).await.expect_problem(404, "not_found");
    }
    server.settle().await;
    assert_eq!(me.used().await, 0);
    oracle::all_is_healed(&env, &server).await;
}

async fn a_tombstone_is_removed_after_its_retention(database: Database) {
    let env = TestEnv::with(database, &[("TOMBSTONE_RETENTION_DAYS", "2")]);
    let server = env.start().await;
    let me = server.me();
    let kept = me.upload("kept", b"kept").await;
    let deleted = me.upload("deleted", b"abc").await;
    me.delete(&format!("/api/v2/files/{deleted}")).await.expect(204);
    let reclaimed = me.init("reclaimed", 3).await.expect(201);
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    let count = "SELECT COUNT(*) FROM files";
    let tombstones = "SELECT COUNT(*) FROM files WHERE pipeline_status = 'deleted'";
    assert_eq!((env.scalar(count).await, env.scalar(tombstones).await), (3, 2));

    env.advance(2 * DAY_MS - WINDOW_MS - GRACE_MS - 1);
    server.settle().await;
    assert_eq!(env.scalar(tombstones).await, 2);
    env.advance(1);
    server.settle().await;
    assert_eq!(env.scalar(tombstones).await, 1, "only the older tombstone is removed, after two days");
    let path = format!("/api/v2/files/{}", id(&reclaimed));
    me.get(&path).await.expect_problem(410, "gone");
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    assert_eq!(env.scalar(count).await, 1);
    me.get(&path).await.expect_problem(404, "not_found");

    assert_eq!(me.get(&format!("/api/v2/files/{kept}")).await.expect(200)["status"], "ready");
    for leftover in [
        "SELECT COUNT(*) FROM objects WHERE file_id NOT IN (SELECT id FROM files)",
        "SELECT COUNT(*) FROM file_history WHERE file_id NOT IN (SELECT id FROM files)",
        "SELECT COUNT(*) FROM jobs WHERE file_id NOT IN (SELECT id FROM files)",
        "SELECT COUNT(*) FROM pending_cleanups",
    ] {
        assert_eq!(env.scalar(leftover).await, 0, "{leftover}");
    }
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    the_upload_url_of_a_deleted_file_is_refused,
    an_unconfirmed_upload_can_be_deleted,
    only_one_of_many_concurrent_deletes_succeeds,
    a_concurrent_delete_wins_over_a_confirm,
    a_tombstone_is_removed_after_its_retention,
);
