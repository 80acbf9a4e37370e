//! Large files in parts on local disk: what a URL of a part permits, and that nothing is left of an upload that has ended.
//! `stores/parts.rs` has the tests for all stores.

use bytes::Bytes;
use reqwest::Url;
use serde_json::{Value, json};
use wharfinger_calls::faults::Faults;
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::key::ObjectKey;

use super::incoming::{SlowUpload, start_upload};
use super::{WINDOW_MS, id, object_of, sha256};
use crate::oracle;
use crate::test_app::{Answer, Database, TestApp, TestEnv};

const PART: usize = 16 << 20;
const BYTES: &[u8] = b"hello";
/// Every file above one byte is uploaded in parts.
const IN_PARTS: [(&str, &str); 1] = [("MULTIPART_THRESHOLD_BYTES", "1")];

fn env() -> TestEnv {
    TestEnv::with(Database::Sqlite, &IN_PARTS)
}

async fn init(server: &TestApp) -> Value {
    server.me().init("cargo", BYTES.len() as u64).await.expect(201)
}

fn url(grant: &Value, number: usize) -> Url {
    let url = grant["multipart"]["parts"][number - 1]["url"].as_str();
    url.expect("a URL").parse().expect("a valid URL")
}

async fn put(server: &TestApp, url: Url, bytes: &[u8]) -> Answer {
    Answer::read(server.http.put(url).body(bytes.to_vec()).send().await.expect("an answer")).await
}

/// Sends the first part slowly.
async fn start_part(server: &TestApp, grant: &Value, first: &'static [u8]) -> SlowUpload {
    start_upload(server, &json!({ "uploadUrl": url(grant, 1).as_str() }), first).await
}

async fn reissue(server: &TestApp, grant: &Value) -> Value {
    server.me().post(&format!("/api/v2/files/{}/url", id(grant)), json!({})).await.expect(200)
}

async fn delete(server: &TestApp, grant: &Value) {
    server.me().delete(&format!("/api/v2/files/{}", id(grant))).await.expect(204);
}

fn uploaded(grant: &Value) -> Vec<bool> {
    let parts = grant["multipart"]["parts"].as_array().expect("parts");
    parts.iter().map(|part| part["uploaded"].as_bool().expect("a boolean")).collect()
}

/// The names of the files of all multipart uploads.
fn names(env: &TestEnv) -> Vec<String> {
    let files = oracle::files_below(&env.blob_dir().join(".multipart"));
    files.into_iter().map(|file| file.split_once('/').expect("a folder").1.to_owned()).collect()
}

async fn wait_for_parts(env: &TestEnv, count: usize) {
    while names(env).iter().filter(|name| name.starts_with("part.")).count() != count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_continues_after_a_restart() {
    let env = env();
    let server = env.start().await;
    let whole: Vec<u8> =
        (0..2 * PART as u32 + 5).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let parts: Vec<&[u8]> = whole.chunks(PART).collect();
    let body = json!({ "fileName": "film", "size": whole.len(), "checksumSha256": sha256(&whole) });
    let grant = server.me().post("/api/v2/files/init", body).await.expect(201);
    assert_eq!(uploaded(&grant), [false; 3]);
    let answer = put(&server, url(&grant, 3), parts[2]).await;
    assert!(answer.headers["etag"].to_str().expect("a text").len() > 2);
    answer.expect(200);
    put(&server, url(&grant, 1), &vec![0; PART]).await.expect(200);
    put(&server, url(&grant, 1), parts[0]).await.expect(200);
    server.crash().await;

    let server = env.start().await;
    let grant = reissue(&server, &grant).await;
    assert_eq!(uploaded(&grant), [true, false, true]);
    let problem = server.me().confirm(&id(&grant)).await.expect_problem(409, "object_missing");
    assert!(problem["detail"].as_str().expect("a text").ends_with("missing: 2"), "{problem}");
    put(&server, url(&grant, 2), parts[1]).await.expect(200);
    assert_eq!(server.me().confirm(&id(&grant)).await.expect(200)["status"], "ready");
    assert!(std::fs::read(object_of(&env, &id(&grant))).expect("the object") == whole);
    assert_eq!(names(&env), Vec::<String>::new());
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_url_permits_only_its_part() {
    let env = env();
    let server = env.start().await;
    let (grant, other) = (init(&server).await, init(&server).await);
    let signed = url(&grant, 1);
    let before = names(&env);
    for wrong in [&b""[..], b"hell", b"hello!"] {
        put(&server, signed.clone(), wrong).await.expect_problem(400, "size_mismatch");
    }
    let pairs: Vec<(String, String)> = signed.query_pairs().into_owned().collect();
    let other_id =
        url(&other, 1).query_pairs().find(|(name, _)| name == "uploadId").expect("an id").1.into_owned();
    for (name, value) in
        [("uploadId", other_id.as_str()), ("partNumber", "2"), ("offset", "1"), ("size", "6")]
    {
        let changed = pairs.iter().map(|(known, old)| (known, if known == name { value } else { old }));
        let mut tampered = signed.clone();
        tampered.query_pairs_mut().clear().extend_pairs(changed);
        put(&server, tampered, BYTES).await.expect_problem(403, "bad_signature");
        let mut without = signed.clone();
        without.query_pairs_mut().clear().extend_pairs(pairs.iter().filter(|(known, _)| known != name));
        put(&server, without, BYTES).await.expect_problem(403, "bad_signature");
    }
    let tenant = TenantId::new("t").expect("a tenant");
    let transfers: Vec<_> = std::iter::from_fn(|| server.app.uploads.transfers.begin(&tenant)).collect();
    put(&server, signed.clone(), BYTES).await.expect_problem(503, "unavailable");
    drop(transfers);
    assert_eq!(names(&env), before, "nothing of the refused requests is left");

    put(&server, signed.clone(), BYTES).await.expect(200);
    env.advance(WINDOW_MS);
    put(&server, signed.clone(), BYTES).await.expect_problem(403, "url_expired");
    assert_eq!(server.me().confirm(&id(&grant)).await.expect(200)["status"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_upload_accepts_no_part() {
    let env = env();
    let server = env.start().await;
    let (confirmed, deleted) = (init(&server).await, init(&server).await);
    put(&server, url(&confirmed, 1), BYTES).await.expect(200);
    server.me().confirm(&id(&confirmed)).await.expect(200);
    put(&server, url(&confirmed, 1), b"other").await.expect_problem(412, "object_exists");
    assert_eq!(std::fs::read(object_of(&env, &id(&confirmed))).expect("the object"), BYTES);
    delete(&server, &confirmed).await;

    // Before the cleanup has run, and after it.
    put(&server, url(&deleted, 1), BYTES).await.expect(200);
    delete(&server, &deleted).await;
    assert_eq!(server.me().used().await, 0, "the charge ends at once");
    put(&server, url(&deleted, 1), BYTES).await.expect_problem(410, "gone");
    server.settle().await;
    assert!(oracle::files_below(&env.blob_dir()).is_empty());
    put(&server, url(&deleted, 1), BYTES).await.expect_problem(410, "gone");
    assert!(oracle::files_below(&env.blob_dir()).is_empty());
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_file_ends_its_parts() {
    let env = env();
    let server = env.start().await;
    let grant = init(&server).await;
    let slow = start_part(&server, &grant, b"hel").await;
    wait_for_parts(&env, 1).await;
    delete(&server, &grant).await;
    slow.answer.await.expect("an answer").expect_problem(410, "gone");
    server.settle().await;
    assert!(oracle::files_below(&env.blob_dir()).is_empty());
}

/// The file ends while its last part is copied, when the request can no longer be stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_is_complete_after_the_end_is_removed() {
    let env = env();
    let faults = Faults::block_at("copy part");
    let server = env.start_with(faults.clone()).await;
    let grant = init(&server).await;
    let slow = start_part(&server, &grant, BYTES).await;
    drop(slow.bytes);
    faults.reached().await;
    delete(&server, &grant).await;
    faults.release();
    slow.answer.await.expect("an answer").expect_problem(410, "gone");
    assert!(oracle::files_below(&env.blob_dir()).is_empty(), "also before the cleanup");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_part_replaces_an_earlier_one() {
    let env = env();
    let server = env.start().await;
    let grant = init(&server).await;
    let earlier = start_part(&server, &grant, b"ear").await;
    wait_for_parts(&env, 1).await;
    let later = start_part(&server, &grant, b"lat").await;
    earlier.answer.await.expect("an answer").expect_problem(409, "superseded");
    wait_for_parts(&env, 1).await;
    later.bytes.send(Ok(Bytes::from_static(b"er"))).await.expect("the server reads");
    drop(later.bytes);
    later.answer.await.expect("an answer").expect(200);
    server.me().confirm(&id(&grant)).await.expect(200);
    assert_eq!(std::fs::read(object_of(&env, &id(&grant))).expect("the object"), b"later");
    oracle::all_is_healed(&env, &server).await;
}

/// The client of an upload that the store has lost gets fresh URLs.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_upload_needs_fresh_urls() {
    let env = env();
    let server = env.start().await;
    let grant = init(&server).await;
    put(&server, url(&grant, 1), BYTES).await.expect(200);
    let key = ObjectKey::parse(&format!("uploads/t/u/{}", id(&grant))).expect("a key");
    let store = server.app.core.blobs.multipart().expect("local disk supports parts");
    store.abort_all(&key).await.expect("aborted");
    put(&server, url(&grant, 1), BYTES).await.expect_problem(403, "url_expired");
    let fresh = reissue(&server, &grant).await;
    assert_eq!(uploaded(&fresh), [false]);
    put(&server, url(&fresh, 1), BYTES).await.expect(200);
    server.me().confirm(&id(&grant)).await.expect(200);
    oracle::all_is_healed(&env, &server).await;
}

/// A killed process leaves a part that it was receiving. It is removed although the upload continues.
#[tokio::test(flavor = "multi_thread")]
async fn the_part_of_a_killed_process_is_removed() {
    let env = env();
    let server = env.start().await;
    let grant = init(&server).await;
    let folder = std::fs::read_dir(env.blob_dir().join(".multipart")).expect("readable").next();
    let leftover =
        folder.expect("an upload").expect("an entry").path().join(format!("part.{}", uuid::Uuid::new_v4()));
    std::fs::write(&leftover, b"hel").expect("written");
    server.settle().await;
    assert!(leftover.exists(), "it may still be in use");
    env.age_incoming_uploads();
    server.settle().await;
    assert!(!leftover.exists());
    put(&server, url(&grant, 1), BYTES).await.expect(200);
    server.me().confirm(&id(&grant)).await.expect(200);
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unmounted_disk_loses_no_part() {
    let env = env();
    let server = env.start().await;
    let grant = init(&server).await;
    put(&server, url(&grant, 1), BYTES).await.expect(200);
    let disk = env.unmount_disk();
    put(&server, url(&grant, 1), BYTES).await.expect_problem(503, "unavailable");
    server.me().init("another", 5).await.expect_problem(503, "unavailable");
    let path = format!("/api/v2/files/{}", id(&grant));
    server.me().post(&format!("{path}/url"), json!({})).await.expect_problem(503, "unavailable");
    server.me().confirm(&id(&grant)).await.expect_problem(503, "unavailable");
    assert!(oracle::files_below(&env.blob_dir()).is_empty(), "nothing is created at the mount point");
    disk.remount();
    assert_eq!(uploaded(&reissue(&server, &grant).await), [true]);
    server.me().confirm(&id(&grant)).await.expect(200);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}
