//! Large files in parts: in any order, interrupted and resumed, and without parts left over.

use futures::TryStreamExt as _;
use serde_json::{Value, json};
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::MultipartStore;

use super::{
    LONG_MS, Setup, Store, accepted, bytes, downloaded, id_of, init_body, init_file, on_each_store,
    on_each_store_and_disk,
};
use crate::oracle;
use crate::test_app::{TestApp, TestEnv};

const PART: usize = 16 << 20;
const LARGE: usize = 2 * PART + 5;

/// Orphans have no grace period.
const SETTINGS: [(&str, &str); 2] = [("MULTIPART_THRESHOLD_BYTES", "1MiB"), ("ORPHAN_BLOB_GRACE_MS", "0")];

fn key(id: &str) -> ObjectKey {
    ObjectKey::parse(&format!("uploads/t/u/{id}")).expect("a key")
}

fn store(server: &TestApp) -> &dyn MultipartStore {
    server.app.core.blobs.multipart().expect("the store supports parts")
}

async fn put_part(server: &TestApp, grant: &Value, number: usize, body: Vec<u8>) -> u16 {
    let url = grant["multipart"]["parts"][number - 1]["url"].as_str().expect("a URL");
    match server.http.put(url).body(body).send().await {
        Ok(answer) => answer.status().as_u16(),
        // Local disk refuses a request before its body is sent.
        Err(error) => {
            assert!(error.is_request() && server.app.core.disk.is_some(), "{error}");
            400
        }
    }
}

fn part(whole: &[u8], number: usize) -> Vec<u8> {
    whole.chunks(PART).nth(number - 1).expect("a part").to_vec()
}

fn uploaded(grant: &Value) -> Vec<bool> {
    let parts = grant["multipart"]["parts"].as_array().expect("parts");
    parts.iter().map(|part| part["uploaded"].as_bool().expect("a boolean")).collect()
}

async fn unfinished(server: &TestApp) -> Vec<String> {
    store(server).list_unfinished("").map_ok(|upload| upload.upload_id).try_collect().await.expect("listed")
}

async fn reissue(server: &TestApp, id: &str) -> Value {
    server.me().post(&format!("/api/v2/files/{id}/url"), json!({})).await.expect(200)
}

/// Advances past the upload window, and past the time that a confirm may still take to join parts.
async fn long_after(env: &TestEnv, server: &TestApp) {
    for _ in 0..2 {
        env.advance(LONG_MS);
        server.settle().await;
    }
}

async fn a_large_file_is_uploaded_in_parts(setup: Setup) {
    let env = setup.env(&SETTINGS);
    let server = env.start().await;
    let whole = bytes(LARGE);
    let grant = init_file(&server, init_body(LARGE)).await;
    let id = id_of(&grant);
    assert_eq!(grant["multipart"]["partSize"], PART);
    let parts = grant["multipart"]["parts"].as_array().expect("parts");
    let sizes: Vec<u64> = parts.iter().map(|part| part["size"].as_u64().expect("a size")).collect();
    assert_eq!(sizes, [PART as u64, PART as u64, 5]);
    assert!(grant["uploadUrl"].is_null() && grant["expiresAt"].is_string(), "{grant}");

    // The last part comes first, and one part twice. Confirm names the missing part.
    assert!(put_part(&server, &grant, 3, part(&whole, 3)).await < 300);
    assert!(put_part(&server, &grant, 1, vec![0; PART]).await < 300);
    assert!(put_part(&server, &grant, 1, part(&whole, 1)).await < 300);
    let problem = server.me().confirm(&id).await.expect_problem(409, "object_missing");
    assert!(problem["detail"].as_str().expect("a text").ends_with("missing: 2"), "{problem}");
    let fresh = reissue(&server, &id).await;
    assert_eq!(uploaded(&fresh), [true, false, true]);
    if setup.store != Store::Azure {
        assert!(
            put_part(&server, &fresh, 2, vec![0; PART - 1]).await >= 400,
            "the part has the wrong length"
        );
    }
    assert!(put_part(&server, &fresh, 2, part(&whole, 2)).await < 300);

    assert_eq!(server.me().confirm(&id).await.expect(200)["status"], "ready");
    assert_eq!(server.me().confirm(&id).await.expect(200)["status"], "ready");
    let (got, headers) = downloaded(&server, &id).await;
    assert!(got == whole);
    assert_eq!(headers["content-type"], "application/x-cargo");
    if setup.store != Store::Azure {
        assert!(put_part(&server, &fresh, 2, part(&whole, 2)).await >= 400, "the upload is over");
    }
    oracle::all_is_healed(&env, &server).await;
}

async fn the_checksum_over_all_parts_is_verified(setup: Setup) {
    let env = setup.env(&SETTINGS);
    let server = env.start().await;
    let whole = bytes(LARGE);
    let sum = wharfinger_lifecycle::checksum::to_hex(&<sha2::Sha256 as sha2::Digest>::digest(&whole));
    for (sent, status) in [(whole.clone(), 200), (vec![7; LARGE], 409)] {
        let grant =
            init_file(&server, json!({ "fileName": "c", "size": LARGE, "checksumSha256": sum })).await;
        accepted(&server.put_bytes(&grant, &sent).await);
        let answer = server.me().confirm(&id_of(&grant)).await;
        assert_eq!(answer.status.as_u16(), status, "{}", answer.body);
    }
    long_after(&env, &server).await;
    oracle::all_is_healed(&env, &server).await;
}

/// One upload is deleted, the other is never confirmed. No part is left, and no part can be added.
async fn an_ended_upload_leaves_no_parts(setup: Setup) {
    // The default grace period keeps the orphan sweep from removing the parts.
    let env = setup.env(&SETTINGS[..1]);
    let server = env.start().await;
    let (deleted, unconfirmed) =
        (init_file(&server, init_body(LARGE)).await, init_file(&server, init_body(LARGE)).await);
    for grant in [&deleted, &unconfirmed] {
        assert!(put_part(&server, grant, 1, vec![1; PART]).await < 300);
    }
    server.me().delete(&format!("/api/v2/files/{}", id_of(&deleted))).await.expect(204);
    server.settle().await;
    assert_eq!(unfinished(&server).await.len(), 1, "only the other upload is left");
    // A later cleanup removes a part that the store still accepts.
    let late = put_part(&server, &deleted, 2, vec![1; PART]).await;
    assert!(late >= 400 || setup.store == Store::Azure, "{late}");
    env.advance(LONG_MS);
    server.settle().await;
    assert_eq!(unfinished(&server).await, Vec::<String>::new());
    server.me().confirm(&id_of(&unconfirmed)).await.expect_problem(410, "gone");
    long_after(&env, &server).await;
    oracle::all_is_healed(&env, &server).await;
}

/// Lifecycle rules of a bucket can abort unfinished uploads.
async fn an_upload_that_the_store_aborted_is_restarted(setup: Setup) {
    let env = setup.env(&SETTINGS);
    let server = env.start().await;
    let whole = bytes(LARGE);
    let grant = init_file(&server, init_body(LARGE)).await;
    let id = id_of(&grant);
    assert!(put_part(&server, &grant, 1, part(&whole, 1)).await < 300);
    store(&server).abort_all(&key(&id)).await.expect("aborted");
    server.me().confirm(&id).await.expect_problem(409, "object_missing");
    let fresh = reissue(&server, &id).await;
    assert_eq!(uploaded(&fresh), [false, false, false]);
    accepted(&server.put_bytes(&fresh, &whole).await);
    server.me().confirm(&id).await.expect(200);
    assert!(downloaded(&server, &id).await.0 == whole);
    oracle::all_is_healed(&env, &server).await;
}

/// A process can crash after it started an upload and before it stored the upload id.
async fn an_unknown_multipart_upload_is_aborted(setup: Setup) {
    let env = setup.env(&SETTINGS);
    let server = env.start().await;
    let grant = init_file(&server, init_body(LARGE)).await;
    let id = id_of(&grant);
    let known = unfinished(&server).await;
    store(&server).start(&key(&id), None).await.expect("started");
    let orphan = key("00000000-0000-7000-8000-000000000000");
    store(&server).start(&orphan, None).await.expect("started");
    assert_eq!(unfinished(&server).await.len(), 3);
    server.settle().await;
    let swept = server.scan_orphans().await;
    assert_eq!((swept.deleted, swept.errors), (2, 0), "{swept:?}");
    assert_eq!(unfinished(&server).await, known, "only the known upload is left");

    // Confirm aborts all other uploads of the same object.
    store(&server).start(&key(&id), None).await.expect("started");
    accepted(&server.put_bytes(&grant, &bytes(LARGE)).await);
    server.me().confirm(&id).await.expect(200);
    assert_eq!(unfinished(&server).await, Vec::<String>::new());
    oracle::all_is_healed(&env, &server).await;
}

async fn the_same_idempotency_key_resumes_the_upload(setup: Setup) {
    let env = setup.env(&SETTINGS);
    let server = env.start().await;
    let init = async || {
        let me = server.me();
        let request = me.request(reqwest::Method::POST, "/api/v2/files/init").header("idempotency-key", "k");
        me.send(request.json(&init_body(LARGE))).await.expect(201)
    };
    let first = init().await;
    assert!(put_part(&server, &first, 2, vec![1; PART]).await < 300);
    let second = init().await;
    assert_eq!(id_of(&first), id_of(&second));
    assert_eq!(uploaded(&second), [false, true, false]);
    assert_eq!(unfinished(&server).await.len(), 1);
}

/// A large upload can take longer than `IDEMPOTENCY_TTL_MS`. Its client must still be able to resume it.
async fn an_idempotency_key_is_kept_while_its_upload_is_open(setup: Setup) {
    let env = setup.env(&[SETTINGS[0], ("IDEMPOTENCY_TTL_MS", "60000")]);
    let server = env.start().await;
    let init = async || {
        let me = server.me();
        let request = me.request(reqwest::Method::POST, "/api/v2/files/init").header("idempotency-key", "k");
        me.send(request.json(&init_body(LARGE))).await.expect(201)
    };
    let first = init().await;
    env.advance(120_000);
    server.settle().await;
    assert_eq!(id_of(&first), id_of(&init().await));
    server.me().delete(&format!("/api/v2/files/{}", id_of(&first))).await.expect(204);
    server.settle().await;
    assert_ne!(id_of(&first), id_of(&init().await), "an ended upload does not keep its key");
}

/// Confirm and delete run at the same time. No object may be left without a file or a cleanup.
async fn a_confirm_that_loses_against_a_delete_leaves_no_object(setup: Setup) {
    let settings = [("MULTIPART_THRESHOLD_BYTES", "1"), ("ORPHAN_BLOB_GRACE_MS", "0")];
    let env = setup.env(&settings);
    let server = env.start().await;
    for _ in 0..8 {
        let grant = init_file(&server, init_body(5)).await;
        accepted(&server.put_bytes(&grant, b"12345").await);
        let id = id_of(&grant);
        let path = format!("/api/v2/files/{id}");
        let me = server.me();
        let (confirmed, deleted) = tokio::join!(me.confirm(&id), me.delete(&path));
        deleted.expect(204);
        assert!([200, 404].contains(&confirmed.status.as_u16()), "{}", confirmed.body);
    }
    server.settle().await;
    long_after(&env, &server).await;
    oracle::all_is_healed(&env, &server).await;
}

/// The client sent every part, but never confirmed.
async fn an_upload_with_all_parts_is_rescued(setup: Setup) {
    let settings = [SETTINGS[0], SETTINGS[1], ("UPLOAD_WINDOW_POLICY", "rescue")];
    let env = setup.env(&settings);
    let server = env.start().await;
    let (whole, half) =
        (init_file(&server, init_body(LARGE)).await, init_file(&server, init_body(LARGE)).await);
    accepted(&server.put_bytes(&whole, &bytes(LARGE)).await);
    assert!(put_part(&server, &half, 1, vec![1; PART]).await < 300);
    env.advance(LONG_MS);
    server.settle().await;
    assert!(downloaded(&server, &id_of(&whole)).await.0 == bytes(LARGE));
    server.me().confirm(&id_of(&half)).await.expect_problem(410, "gone");
    long_after(&env, &server).await;
    oracle::all_is_healed(&env, &server).await;
}

on_each_store_and_disk!(
    a_large_file_is_uploaded_in_parts,
    the_checksum_over_all_parts_is_verified,
    an_ended_upload_leaves_no_parts,
    an_upload_that_the_store_aborted_is_restarted,
    an_unknown_multipart_upload_is_aborted,
    the_same_idempotency_key_resumes_the_upload,
    an_idempotency_key_is_kept_while_its_upload_is_open,
    a_confirm_that_loses_against_a_delete_leaves_no_object,
    an_upload_with_all_parts_is_rescued,
);
