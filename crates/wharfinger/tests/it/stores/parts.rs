//! Large files: in parts, in any order, cut off, gone on with, and never left behind.

use futures::TryStreamExt as _;
use serde_json::{Value, json};
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::MultipartStore;

use super::{LONG_MS, Setup, Store, announce, bytes, cargo, downloaded, id_of, on_each_store, taken};
use crate::oracle;
use crate::test_app::{TestApp, TestEnv};

const PART: usize = 16 << 20;
const LARGE: usize = 2 * PART + 5;

/// What no file knows of is old enough at once.
const SETTINGS: [(&str, &str); 2] = [("MULTIPART_THRESHOLD_BYTES", "1MiB"), ("ORPHAN_BLOB_GRACE_MS", "0")];

fn key(id: &str) -> ObjectKey {
    ObjectKey::parse(&format!("uploads/t/u/{id}")).expect("a key")
}

fn store(server: &TestApp) -> &dyn MultipartStore {
    server.app.core.blobs.multipart().expect("it takes parts")
}

async fn put_part(server: &TestApp, grant: &Value, number: usize, body: Vec<u8>) -> u16 {
    let url = grant["multipart"]["parts"][number - 1]["url"].as_str().expect("a URL");
    server.http.put(url).body(body).send().await.expect("an answer").status().as_u16()
}

fn part(whole: &[u8], number: usize) -> Vec<u8> {
    whole.chunks(PART).nth(number - 1).expect("a part").to_vec()
}

fn uploaded(grant: &Value) -> Vec<bool> {
    let parts = grant["multipart"]["parts"].as_array().expect("parts");
    parts.iter().map(|part| part["uploaded"].as_bool().expect("a word")).collect()
}

async fn unfinished(server: &TestApp) -> Vec<String> {
    store(server).list_unfinished("").map_ok(|upload| upload.upload_id).try_collect().await.expect("listed")
}

async fn reissue(server: &TestApp, id: &str) -> Value {
    server.me().post(&format!("/api/v2/files/{id}/url"), json!({})).await.expect(200)
}

/// Past the window, and past the time that a join under way may take after it.
async fn long_after(env: &TestEnv, server: &TestApp) {
    for _ in 0..2 {
        env.advance(LONG_MS);
        server.settle().await;
    }
}

async fn a_large_file_comes_in_parts(setup: Setup) {
    let env = setup.env(&SETTINGS);
    let server = env.start().await;
    let whole = bytes(LARGE);
    let grant = announce(&server, cargo(LARGE)).await;
    let id = id_of(&grant);
    assert_eq!(grant["multipart"]["partSize"], PART);
    let parts = grant["multipart"]["parts"].as_array().expect("parts");
    let sizes: Vec<u64> = parts.iter().map(|part| part["size"].as_u64().expect("a size")).collect();
    assert_eq!(sizes, [PART as u64, PART as u64, 5]);
    assert!(grant["uploadUrl"].is_null() && grant["expiresAt"].is_string(), "{grant}");

    // The last first, one twice, and what is missing is named.
    assert!(put_part(&server, &grant, 3, part(&whole, 3)).await < 300);
    assert!(put_part(&server, &grant, 1, vec![0; PART]).await < 300);
    assert!(put_part(&server, &grant, 1, part(&whole, 1)).await < 300);
    let problem = server.me().confirm(&id).await.expect_problem(409, "object_missing");
    assert!(problem["detail"].as_str().expect("words").ends_with("missing: 2"), "{problem}");
    let fresh = reissue(&server, &id).await;
    assert_eq!(uploaded(&fresh), [true, false, true]);
    if setup.store == Store::S3 {
        assert!(
            put_part(&server, &fresh, 2, vec![0; PART - 1]).await >= 400,
            "another length than was granted"
        );
    }
    assert!(put_part(&server, &fresh, 2, part(&whole, 2)).await < 300);

    assert_eq!(server.me().confirm(&id).await.expect(200)["status"], "ready");
    assert_eq!(server.me().confirm(&id).await.expect(200)["status"], "ready");
    let (got, headers) = downloaded(&server, &id).await;
    assert!(got == whole);
    assert_eq!(headers["content-type"], "application/x-cargo");
    if setup.store == Store::S3 {
        assert!(put_part(&server, &fresh, 2, part(&whole, 2)).await >= 400, "the upload is over");
    }
    oracle::all_is_healed(&env, &server).await;
}

async fn the_checksum_of_all_parts_is_found_out(setup: Setup) {
    let env = setup.env(&SETTINGS);
    let server = env.start().await;
    let whole = bytes(LARGE);
    let sum = wharfinger_lifecycle::checksum::to_hex(&<sha2::Sha256 as sha2::Digest>::digest(&whole));
    for (sent, status) in [(whole.clone(), 200), (vec![7; LARGE], 409)] {
        let grant = announce(&server, json!({ "fileName": "c", "size": LARGE, "checksumSha256": sum })).await;
        taken(&server.put_bytes(&grant, &sent).await);
        let answer = server.me().confirm(&id_of(&grant)).await;
        assert_eq!(answer.status.as_u16(), status, "{}", answer.body);
    }
    long_after(&env, &server).await;
    oracle::all_is_healed(&env, &server).await;
}

/// Cancelled, or never confirmed: no part is left, and none can come any more.
async fn what_ends_leaves_no_parts(setup: Setup) {
    // Without the sweep, which would end them too: nothing is old enough for it.
    let env = setup.env(&SETTINGS[..1]);
    let server = env.start().await;
    let (cancelled, forgotten) =
        (announce(&server, cargo(LARGE)).await, announce(&server, cargo(LARGE)).await);
    for grant in [&cancelled, &forgotten] {
        assert!(put_part(&server, grant, 1, vec![1; PART]).await < 300);
    }
    server.me().delete(&format!("/api/v2/files/{}", id_of(&cancelled))).await.expect(204);
    server.settle().await;
    assert_eq!(unfinished(&server).await.len(), 1, "that of the other");
    // What a store takes all the same goes at the second look.
    let late = put_part(&server, &cancelled, 2, vec![1; PART]).await;
    assert!(late >= 400 || setup.store == Store::Azure, "{late}");
    env.advance(LONG_MS);
    server.settle().await;
    assert_eq!(unfinished(&server).await, Vec::<String>::new());
    server.me().confirm(&id_of(&forgotten)).await.expect_problem(410, "gone");
    long_after(&env, &server).await;
    oracle::all_is_healed(&env, &server).await;
}

/// Stores have rules of their own that end what is unfinished.
async fn an_upload_that_the_store_forgot_is_begun_anew(setup: Setup) {
    let env = setup.env(&SETTINGS);
    let server = env.start().await;
    let whole = bytes(LARGE);
    let grant = announce(&server, cargo(LARGE)).await;
    let id = id_of(&grant);
    assert!(put_part(&server, &grant, 1, part(&whole, 1)).await < 300);
    store(&server).abort_all(&key(&id)).await.expect("ended by another");
    server.me().confirm(&id).await.expect_problem(409, "object_missing");
    let fresh = reissue(&server, &id).await;
    assert_eq!(uploaded(&fresh), [false, false, false]);
    taken(&server.put_bytes(&fresh, &whole).await);
    server.me().confirm(&id).await.expect(200);
    assert!(downloaded(&server, &id).await.0 == whole);
    oracle::all_is_healed(&env, &server).await;
}

/// Begun by a process that crashed before it could write the id down.
async fn an_upload_that_no_file_knows_is_ended(setup: Setup) {
    let env = setup.env(&SETTINGS);
    let server = env.start().await;
    let grant = announce(&server, cargo(LARGE)).await;
    let id = id_of(&grant);
    let known = unfinished(&server).await;
    store(&server).start(&key(&id), None).await.expect("begun");
    let nobodys = key("00000000-0000-7000-8000-000000000000");
    store(&server).start(&nobodys, None).await.expect("begun");
    assert_eq!(unfinished(&server).await.len(), 3);
    server.settle().await;
    let swept = server.scan_orphans().await;
    assert_eq!((swept.deleted, swept.errors), (2, 0), "{swept:?}");
    assert_eq!(unfinished(&server).await, known, "only what is known is left");

    // Known or not: what is confirmed has no other upload.
    store(&server).start(&key(&id), None).await.expect("begun");
    taken(&server.put_bytes(&grant, &bytes(LARGE)).await);
    server.me().confirm(&id).await.expect(200);
    assert_eq!(unfinished(&server).await, Vec::<String>::new());
    oracle::all_is_healed(&env, &server).await;
}

async fn the_same_key_goes_on_with_the_same_upload(setup: Setup) {
    let env = setup.env(&SETTINGS);
    let server = env.start().await;
    let init = async || {
        let me = server.me();
        let request = me.request(reqwest::Method::POST, "/api/v2/files/init").header("idempotency-key", "k");
        me.send(request.json(&cargo(LARGE))).await.expect(201)
    };
    let first = init().await;
    assert!(put_part(&server, &first, 2, vec![1; PART]).await < 300);
    let second = init().await;
    assert_eq!(id_of(&first), id_of(&second));
    assert_eq!(uploaded(&second), [false, true, false]);
    assert_eq!(unfinished(&server).await.len(), 1);
}

/// A large upload that takes longer than keys are remembered is the same one when it is gone on with.
async fn a_key_is_remembered_while_its_upload_waits(setup: Setup) {
    let env = setup.env(&[SETTINGS[0], ("IDEMPOTENCY_TTL_MS", "60000")]);
    let server = env.start().await;
    let init = async || {
        let me = server.me();
        let request = me.request(reqwest::Method::POST, "/api/v2/files/init").header("idempotency-key", "k");
        me.send(request.json(&cargo(LARGE))).await.expect(201)
    };
    let first = init().await;
    env.advance(120_000);
    server.settle().await;
    assert_eq!(id_of(&first), id_of(&init().await));
    server.me().delete(&format!("/api/v2/files/{}", id_of(&first))).await.expect(204);
    server.settle().await;
    assert_ne!(id_of(&first), id_of(&init().await), "what has ended is not waited for");
}

/// Joined while the file is ended: whoever wins, nothing is left that nobody answers for.
async fn a_confirm_that_loses_leaves_no_object(setup: Setup) {
    let settings = [("MULTIPART_THRESHOLD_BYTES", "1"), ("ORPHAN_BLOB_GRACE_MS", "0")];
    let env = setup.env(&settings);
    let server = env.start().await;
    for _ in 0..8 {
        let grant = announce(&server, cargo(5)).await;
        taken(&server.put_bytes(&grant, b"12345").await);
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

/// Rescued: its client sent every part and vanished.
async fn parts_that_are_all_there_are_rescued(setup: Setup) {
    let settings = [SETTINGS[0], SETTINGS[1], ("UPLOAD_WINDOW_POLICY", "rescue")];
    let env = setup.env(&settings);
    let server = env.start().await;
    let (whole, half) = (announce(&server, cargo(LARGE)).await, announce(&server, cargo(LARGE)).await);
    taken(&server.put_bytes(&whole, &bytes(LARGE)).await);
    assert!(put_part(&server, &half, 1, vec![1; PART]).await < 300);
    env.advance(LONG_MS);
    server.settle().await;
    assert!(downloaded(&server, &id_of(&whole)).await.0 == bytes(LARGE));
    server.me().confirm(&id_of(&half)).await.expect_problem(410, "gone");
    long_after(&env, &server).await;
    oracle::all_is_healed(&env, &server).await;
}

on_each_store!(
    a_large_file_comes_in_parts,
    the_checksum_of_all_parts_is_found_out,
    what_ends_leaves_no_parts,
    an_upload_that_the_store_forgot_is_begun_anew,
    an_upload_that_no_file_knows_is_ended,
    the_same_key_goes_on_with_the_same_upload,
    a_key_is_remembered_while_its_upload_waits,
    a_confirm_that_loses_leaves_no_object,
    parts_that_are_all_there_are_rescued,
);
