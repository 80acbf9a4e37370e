//! Uploads that neither their delayed check nor the upload-window sweep has reclaimed.

use serde_json::{Value, json};

use super::{DAY_MS, dry_run, sweep};
use crate::oracle;
use crate::test_app::{Database, TestEnv, on_each_database};

const NAME: &str = "orphan-cleanup";
const HOUR_MS: i64 = 3_600_000;

async fn abandoned(server: &crate::test_app::TestApp) -> Value {
    sweep(server, NAME).await["abandonedUploads"].clone()
}

async fn an_abandoned_upload_is_deleted_after_a_day(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let grant = me.init("a", 3).await.expect(201);
    server.put_bytes(&grant, b"abc").await.expect(200);
    let kept = me.upload("b", b"kept").await;
    let path = format!("/api/v2/files/{}", grant["fileId"].as_str().expect("an id"));
    env.advance(DAY_MS - 1);
    assert_eq!(abandoned(&server).await, json!({ "total": 0, "deleted": 0, "errors": 0 }));
    env.advance(1);
    let expected = json!({ "total": 1, "deleted": 1, "errors": 0 });
    assert_eq!(dry_run(&server, NAME).await["abandonedUploads"], expected);
    assert_eq!(me.get(&path).await.expect(200)["status"], "registered");
    assert_eq!(abandoned(&server).await, expected);
    assert_eq!(abandoned(&server).await["total"], 0, "a second run finds nothing");
    me.get(&path).await.expect_problem(410, "gone");
    assert_eq!(me.file(&kept).await["status"], "ready");
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

/// The upload may be older than the threshold: each fresh URL shows that its client is still active.
async fn an_upload_with_fresh_urls_is_not_abandoned(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let grant = me.init("a", 3).await.expect(201);
    let id = grant["fileId"].as_str().expect("an id").to_owned();
    for _ in 0..40 {
        env.advance(HOUR_MS);
        me.post(&format!("/api/v2/files/{id}/url"), json!({})).await.expect(200);
    }
    assert_eq!(abandoned(&server).await["total"], 0);
    let grant = me.post(&format!("/api/v2/files/{id}/url"), json!({})).await.expect(200);
    server.put_bytes(&grant, b"abc").await.expect(200);
    assert_eq!(me.confirm(&id).await.expect(200)["status"], "ready");
}

on_each_database! {
    an_abandoned_upload_is_deleted_after_a_day,
    an_upload_with_fresh_urls_is_not_abandoned,
}
