//! Files that are uploaded in one request.

use harness::radosgw;
use serde_json::json;
use wharfinger::core::Role;
use wharfinger::sweeps::{SweepLease, pending_cleanups};
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::Scope;
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::key::ObjectKey;

use super::{
    LONG_MS, Setup, Store, accepted, bytes, downloaded, id_of, init_body, init_file, on_each_store, refused,
};
use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};

async fn object_of(server: &TestApp, id: &str) -> Option<u64> {
    let key = ObjectKey::parse(&format!("uploads/t/u/{id}")).expect("a key");
    server.app.core.blobs.head(&key, None).await.ok().map(|meta| meta.size)
}

async fn a_file_is_uploaded_downloaded_and_deleted(setup: Setup) {
    let env = setup.env(&[]);
    let server = env.start().await;
    let whole = bytes(700_001);
    let grant = init_file(&server, init_body(whole.len())).await;
    let id = id_of(&grant);
    server.me().confirm(&id).await.expect_problem(409, "object_missing");
    accepted(&server.put_bytes(&grant, &whole).await);
    assert_eq!(server.me().confirm(&id).await.expect(200)["status"], "ready");
    let (got, headers) = downloaded(&server, &id).await;
    assert!(got == whole);
    assert_eq!(headers["content-type"], "application/x-cargo");
    assert_eq!(headers["content-disposition"], "attachment; filename*=UTF-8''cargo%2Ebin");

    server.me().delete(&format!("/api/v2/files/{id}")).await.expect(204);
    server.settle().await;
    assert_eq!(object_of(&server, &id).await, None);
    assert_eq!(server.me().used().await, 700_001, "the quota stays used while the URL is valid");
    env.advance(LONG_MS);
    server.settle().await;
    assert_eq!(server.me().used().await, 0);
    oracle::all_is_healed(&env, &server).await;
}

/// The store does not know that the file was deleted. Bytes that arrive at its URL are charged, and deleted later.
async fn bytes_that_arrive_after_the_delete_are_deleted_too(setup: Setup) {
    let env = setup.env(&[]);
    let server = env.start().await;
    let grant = init_file(&server, init_body(5)).await;
    let id = id_of(&grant);
    server.me().delete(&format!("/api/v2/files/{id}")).await.expect(204);
    server.settle().await;
    accepted(&server.put_bytes(&grant, b"12345").await);
    assert_eq!(object_of(&server, &id).await, Some(5));
    assert_eq!(server.me().used().await, 5);
    env.advance(LONG_MS);
    server.settle().await;
    assert_eq!(object_of(&server, &id).await, None);
    oracle::all_is_healed(&env, &server).await;
}

/// Bytes can arrive after the first delete and before the URL expires.
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_before_the_url_expires_is_repeated() {
    let env = TestEnv::on_s3(Database::Sqlite, &[]);
    let faults = Faults::block_at("delete");
    let server = env.start_with(faults.clone()).await;
    let grant = init_file(&server, init_body(5)).await;
    server.me().delete(&format!("/api/v2/files/{}", id_of(&grant))).await.expect(204);
    let app = server.app.clone();
    let deleting = tokio::spawn(async move {
        pending_cleanups::run(&app.core, &SweepLease::unleased(&app.core), &Scope::All).await
    });
    faults.reached().await;
    env.advance(LONG_MS);
    faults.release();
    deleting.await.expect("no panic").expect("it runs");
    assert_eq!(faults.calls(), 2, "the delete is repeated after the URL expired");
    server.settle().await;
    assert_eq!(server.me().used().await, 0);
    oracle::all_is_healed(&env, &server).await;
}

/// A client would unpack the object, and get other bytes than those that were scanned and charged.
async fn an_object_with_an_encoding_is_not_confirmed(setup: Setup) {
    let env = setup.env(&[("UPLOAD_WINDOW_POLICY", "rescue")]);
    let server = env.start().await;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packed, &[b'x'; 5_000]).expect("packed");
    let packed = packed.finish().expect("packed");
    let header = if setup.store == Store::Azure { "x-ms-blob-content-encoding" } else { "content-encoding" };
    let mut ids = Vec::new();
    for encoding in ["gzip", "GZIP, identity", "br"] {
        let mut grant = init_file(&server, init_body(packed.len())).await;
        grant["headers"][header] = json!(encoding);
        accepted(&server.put_bytes(&grant, &packed).await);
        let problem = server.me().confirm(&id_of(&grant)).await.expect_problem(409, "encoding_mismatch");
        assert!(
            problem["detail"].as_str().is_some_and(|text| text.contains("Content-Encoding")),
            "{problem}"
        );
        ids.push(id_of(&grant));
    }
    // A rescue or a batch must not accept it either.
    let batch =
        server.me().post("/api/v2/batches", json!({ "files": [init_body(packed.len())] })).await.expect(201);
    let mut grant = batch["files"][0].clone();
    grant["headers"][header] = json!("gzip");
    accepted(&server.put_bytes(&grant, &packed).await);
    let path = format!("/api/v2/batches/{}/complete", batch["batchId"].as_str().expect("an id"));
    server.me().post(&path, json!({})).await.expect_problem(409, "batch_incomplete");
    let mut plain = init_file(&server, init_body(packed.len())).await;
    plain["headers"][header] = json!("identity");
    accepted(&server.put_bytes(&plain, &packed).await);
    server.me().confirm(&id_of(&plain)).await.expect(200);
    assert_eq!(downloaded(&server, &id_of(&plain)).await.0, packed, "the bytes as they were sent");
    env.advance(24 * LONG_MS);
    server.settle().await;
    for id in ids {
        server.me().get(&format!("/api/v2/files/{id}")).await.expect_problem(410, "gone");
    }
    oracle::all_is_healed(&env, &server).await;
}

/// The same bytes with the same ETag, but with a gzip encoding. A client would unpack bytes that were never scanned.
#[tokio::test(flavor = "multi_thread")]
async fn an_encoding_that_is_added_after_confirm_is_not_served() {
    let gateway = radosgw::shared();
    let bucket = gateway.create_bucket();
    let settings = [("PIPELINE_STAGES", "scan"), ("PIPELINE_BUILTIN_STAGES", "")];
    let env = TestEnv::in_bucket(Database::Sqlite, &bucket, &gateway.endpoint(), &settings);
    let server = env.start().await;
    let (me, worker) = (server.me(), server.as_user("ops", "w", Role::Worker));
    let lease = async || {
        worker.post("/api/v2/workers/lease", json!({ "stages": ["scan"] })).await.expect(200)["jobs"].clone()
    };
    let ready = me.enqueue("ready", b"bytes").await;
    let job = &lease().await[0];
    let path = format!("/api/v2/workers/jobs/{}/complete", job["jobId"].as_str().expect("an id"));
    let clean = json!({ "leaseToken": job["leaseToken"], "output": { "verdict": "clean" } });
    worker.post(&path, clean).await.expect(200);
    let download = me.get(&format!("/api/v2/files/{ready}/download")).await;
    let url = download.headers["location"].to_str().expect("a URL");
    assert!(url.contains("response-content-encoding=identity"), "{url}");
    let waiting = me.enqueue("waiting", b"bytes").await;
    for id in [&ready, &waiting] {
        let path = format!("/{bucket}/wharf/uploads/t/u/{id}");
        let put = gateway.put_object(&path, &["content-encoding: gzip"], b"bytes").expect("answered");
        assert_eq!(put.status, 200);
    }
    me.get(&format!("/api/v2/files/{ready}/download")).await.expect_problem(409, "quarantined");
    assert_eq!(lease().await, json!([]));
    for id in [ready, waiting] {
        assert_eq!(me.file(&id).await["status"], "quarantined");
    }
}

async fn a_confirmed_object_cannot_be_overwritten(setup: Setup) {
    let env = setup.env(&[]);
    let server = env.start().await;
    let grant = init_file(&server, init_body(5)).await;
    accepted(&server.put_bytes(&grant, b"first").await);
    refused(&server.put_bytes(&grant, b"other").await);
    server.me().confirm(&id_of(&grant)).await.expect(200);
    refused(&server.put_bytes(&grant, b"other").await);
    assert_eq!(downloaded(&server, &id_of(&grant)).await.0, b"first");
}

/// The store refuses what it enforces. Confirm verifies the rest.
async fn bytes_that_differ_from_the_init_request_are_refused(setup: Setup) {
    let env = setup.env(&[]);
    let server = env.start().await;
    let caps = server.app.core.blobs.capabilities();
    let enforced = [caps.enforces_size, caps.enforces_content_type, caps.create_only, caps.enforces_checksum];
    match setup.store {
        Store::S3 => assert_eq!(enforced, [true, true, true, false]),
        Store::Azure => assert_eq!(enforced, [false, false, true, false]),
        Store::Disk => assert_eq!(enforced, [true, true, true, true]),
    }
    for wrong in [&b"1234"[..], b"123456", b""] {
        let grant = init_file(&server, init_body(5)).await;
        let answer = server.put_bytes(&grant, wrong).await;
        if caps.enforces_size {
            refused(&answer);
            server.me().confirm(&id_of(&grant)).await.expect_problem(409, "object_missing");
        } else {
            accepted(&answer);
            let problem = server.me().confirm(&id_of(&grant)).await.expect_problem(409, "size_mismatch");
            assert_eq!(
                (problem["expected"].as_u64(), problem["actual"].as_u64()),
                (Some(5), Some(wrong.len() as u64))
            );
        }
    }
    if caps.enforces_content_type {
        let mut other_type = init_file(&server, init_body(5)).await;
        other_type["headers"]["content-type"] = json!("text/html");
        refused(&server.put_bytes(&other_type, b"12345").await);
    }
    let sum = to_hex(&<sha2::Sha256 as sha2::Digest>::digest(b"right"));
    let declared = json!({ "fileName": "c", "size": 5, "checksumSha256": sum });
    let grant = init_file(&server, declared.clone()).await;
    accepted(&server.put_bytes(&grant, b"wrong").await);
    server.me().confirm(&id_of(&grant)).await.expect_problem(409, "checksum_mismatch");
    let grant = init_file(&server, declared).await;
    accepted(&server.put_bytes(&grant, b"right").await);
    server.me().confirm(&id_of(&grant)).await.expect(200);
    env.advance(LONG_MS);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

/// Other clients with store keys can overwrite an object. If the store keeps versions, the confirmed one is served.
async fn an_overwritten_object_is_not_served(database: Database) {
    for versions in [false, true] {
        let gateway = radosgw::shared();
        let bucket = gateway.create_bucket();
        if versions {
            let on = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
            let answer = gateway.request("PUT", &format!("/{bucket}?versioning"), on.as_bytes());
            assert_eq!(answer.expect("answered").status, 200);
        }
        let env = TestEnv::in_bucket(database, &bucket, &gateway.endpoint(), &[]);
        let server = env.start().await;
        assert_eq!(server.app.core.blobs.capabilities().versioned, versions);
        let id = server.me().upload("cargo", b"right").await;
        let path = format!("/{bucket}/wharf/uploads/t/u/{id}");
        assert_eq!(gateway.request("PUT", &path, b"wrong").expect("answered").status, 200);
        if versions {
            assert_eq!(downloaded(&server, &id).await.0, b"right");
        } else {
            let answer = server.me().get(&format!("/api/v2/files/{id}/download")).await;
            answer.expect_problem(409, "quarantined");
            let file = server.me().get(&format!("/api/v2/files/{id}")).await.expect(200);
            assert_eq!(file["status"], "quarantined");
        }
        server.me().delete(&format!("/api/v2/files/{id}")).await.expect(204);
        env.advance(LONG_MS);
        server.settle().await;
        oracle::all_is_healed(&env, &server).await;
        let left = gateway.request("GET", &format!("/{bucket}?versions&prefix=wharf/uploads/"), b"");
        let left = left.expect("answered").body;
        assert!(!String::from_utf8_lossy(&left).contains("<Key>"), "no version is left");
    }
}

/// Confirm reads the whole object, which can take longer than the rest of the upload window.
async fn a_file_that_is_being_confirmed_is_not_reclaimed(setup: Setup) {
    let env = setup.env(&[]);
    let server = env.start().await;
    let sum = to_hex(&<sha2::Sha256 as sha2::Digest>::digest(b"right"));
    let grant = init_file(&server, json!({ "fileName": "c", "size": 5, "checksumSha256": sum })).await;
    accepted(&server.put_bytes(&grant, b"right").await);
    let path = format!("/api/v2/files/{}", id_of(&grant));
    let window_and_grace_ms = 3_600_000 + 60_000;
    env.advance(window_and_grace_ms - 1_000);
    // The checksum is wrong, so the file stays registered.
    let wrong = json!({ "checksumSha256": to_hex(&[7; 32]) });
    server.me().post(&format!("{path}/confirm"), wrong).await.expect_problem(409, "checksum_mismatch");
    env.advance(2_000);
    server.settle().await;
    assert_eq!(server.me().get(&path).await.expect(200)["status"], "registered");
    env.advance(LONG_MS);
    server.settle().await;
    server.me().get(&path).await.expect_problem(410, "gone");
    oracle::all_is_healed(&env, &server).await;
}

/// Init of a large file calls the store. If that fails, the client has no file id, so nothing may stay charged.
async fn a_failed_init_is_not_charged(database: Database) {
    let gateway = radosgw::shared();
    let proxy = harness::proxy::Proxy::to(("127.0.0.1", gateway.port())).expect("a proxy");
    let (bucket, endpoint) = (gateway.create_bucket(), format!("http://{}", proxy.addr()));
    let settings = [("MULTIPART_THRESHOLD_BYTES", "1")];
    let env = TestEnv::in_bucket(database, &bucket, &endpoint, &settings);
    let server = env.start().await;
    proxy.cut();
    server.me().init("cargo", 5).await.expect_problem(503, "unavailable");
    assert_eq!(server.me().used().await, 0);
    proxy.repair().expect("repaired");
    server.me().upload("cargo", b"bytes").await;
    env.advance(LONG_MS);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

on_each_store!(
    an_object_with_an_encoding_is_not_confirmed,
    a_file_that_is_being_confirmed_is_not_reclaimed,
    a_file_is_uploaded_downloaded_and_deleted,
    bytes_that_arrive_after_the_delete_are_deleted_too,
    a_confirmed_object_cannot_be_overwritten,
    bytes_that_differ_from_the_init_request_are_refused,
);

on_each_database!(an_overwritten_object_is_not_served, a_failed_init_is_not_charged);
