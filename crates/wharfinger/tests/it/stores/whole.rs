//! Files that come in one piece, on S3.

use harness::radosgw;
use serde_json::json;
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::key::ObjectKey;

use super::{LONG_MS, announce, bytes, cargo, downloaded, id_of};
use crate::oracle;
use crate::test_app::{Database, Ground, TestApp, on_each_database};

async fn object_of(server: &TestApp, id: &str) -> Option<u64> {
    let key = ObjectKey::parse(&format!("uploads/t/u/{id}")).expect("a key");
    server.app.blobs.head(&key, None).await.ok().map(|meta| meta.size)
}

async fn a_file_lives_and_dies(database: Database) {
    let ground = Ground::on_s3(database, &[]);
    let server = ground.start().await;
    let cargo_bytes = bytes(700_001);
    let grant = announce(&server, cargo(cargo_bytes.len())).await;
    let id = id_of(&grant);
    server.me().confirm(&id).await.expect_problem(409, "object_missing");
    server.put_bytes(&grant, &cargo_bytes).await.expect(200);
    assert_eq!(server.me().confirm(&id).await.expect(200)["status"], "ready");
    let (got, headers) = downloaded(&server, &id).await;
    assert!(got == cargo_bytes);
    assert_eq!(headers["content-type"], "application/x-cargo");
    assert_eq!(headers["content-disposition"], "attachment; filename*=UTF-8''cargo%2Ebin");

    server.me().delete(&format!("/api/v2/files/{id}")).await.expect(204);
    server.settle().await;
    assert_eq!(object_of(&server, &id).await, None);
    assert_eq!(server.me().used().await, 700_001, "its URL may still bring bytes");
    ground.advance(LONG_MS);
    server.settle().await;
    assert_eq!(server.me().used().await, 0);
    oracle::all_is_healed(&ground, &server).await;
}

/// The store cannot know that a file has ended: what comes by its URL is charged, and deleted again.
async fn bytes_that_come_after_the_delete_go_too(database: Database) {
    let ground = Ground::on_s3(database, &[]);
    let server = ground.start().await;
    let grant = announce(&server, cargo(5)).await;
    let id = id_of(&grant);
    server.me().delete(&format!("/api/v2/files/{id}")).await.expect(204);
    server.settle().await;
    server.put_bytes(&grant, b"12345").await.expect(200);
    assert_eq!(object_of(&server, &id).await, Some(5));
    assert_eq!(server.me().used().await, 5);
    ground.advance(LONG_MS);
    server.settle().await;
    assert_eq!(object_of(&server, &id).await, None);
    oracle::all_is_healed(&ground, &server).await;
}

async fn what_was_confirmed_is_not_overwritten(database: Database) {
    let ground = Ground::on_s3(database, &[]);
    let server = ground.start().await;
    let grant = announce(&server, cargo(5)).await;
    server.put_bytes(&grant, b"first").await.expect(200);
    server.put_bytes(&grant, b"other").await.expect_status(412);
    server.me().confirm(&id_of(&grant)).await.expect(200);
    server.put_bytes(&grant, b"other").await.expect_status(412);
    assert_eq!(downloaded(&server, &id_of(&grant)).await.0, b"first");
}

async fn what_was_not_announced_is_refused_or_found_out(database: Database) {
    let ground = Ground::on_s3(database, &[]);
    let server = ground.start().await;
    let caps = server.app.blobs.caps();
    assert!(caps.binds_size && caps.binds_content_type && caps.create_only, "{caps:?}");
    let grant = announce(&server, cargo(5)).await;
    for wrong in [&b"1234"[..], b"123456", b""] {
        let answer = server.put_bytes(&grant, wrong).await;
        assert!(answer.status.is_client_error(), "{}", answer.status);
    }
    let mut other_type = grant.clone();
    other_type["headers"]["content-type"] = json!("text/html");
    assert!(server.put_bytes(&other_type, b"12345").await.status.is_client_error());
    server.me().confirm(&id_of(&grant)).await.expect_problem(409, "object_missing");

    // This gateway knows no checksums: what it lets pass, confirm reads and refuses.
    assert!(!caps.binds_checksum, "{caps:?}");
    let sum = to_hex(&<sha2::Sha256 as sha2::Digest>::digest(b"right"));
    let declared = json!({ "fileName": "c", "size": 5, "checksumSha256": sum });
    let grant = announce(&server, declared.clone()).await;
    server.put_bytes(&grant, b"wrong").await.expect(200);
    server.me().confirm(&id_of(&grant)).await.expect_problem(409, "checksum_mismatch");
    let grant = announce(&server, declared).await;
    server.put_bytes(&grant, b"right").await.expect(200);
    server.me().confirm(&id_of(&grant)).await.expect(200);
    ground.advance(LONG_MS);
    server.settle().await;
    oracle::all_is_healed(&ground, &server).await;
}

/// Overwritten by somebody with keys of their own: not served, unless the store kept the version that was meant.
async fn an_object_changed_behind_our_back(database: Database) {
    for versions in [false, true] {
        let gateway = radosgw::shared();
        let bucket = gateway.create_bucket();
        if versions {
            let on = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
            let answer = gateway.request("PUT", &format!("/{bucket}?versioning"), on.as_bytes());
            assert_eq!(answer.expect("answered").status, 200);
        }
        let ground = Ground::in_bucket(database, &bucket, &gateway.endpoint(), &[]);
        let server = ground.start().await;
        assert_eq!(server.app.blobs.caps().versioned, versions);
        let id = server.me().upload("cargo", b"right").await;
        let path = format!("/{bucket}/wharf/uploads/t/u/{id}");
        assert_eq!(gateway.request("PUT", &path, b"wrong").expect("answered").status, 200);
        if versions {
            assert_eq!(downloaded(&server, &id).await.0, b"right");
        } else {
            let answer = server.me().get(&format!("/api/v2/files/{id}/download")).await;
            answer.expect_problem(409, "not_ready");
            let file = server.me().get(&format!("/api/v2/files/{id}")).await.expect(200);
            assert_eq!(file["status"], "quarantined");
        }
        server.me().delete(&format!("/api/v2/files/{id}")).await.expect(204);
        ground.advance(LONG_MS);
        server.settle().await;
        oracle::all_is_healed(&ground, &server).await;
        let left = gateway.request("GET", &format!("/{bucket}?versions&prefix=wharf/uploads/"), b"");
        let left = left.expect("answered").body;
        assert!(!String::from_utf8_lossy(&left).contains("<Key>"), "no version is left");
    }
}

on_each_database!(
    a_file_lives_and_dies,
    bytes_that_come_after_the_delete_go_too,
    what_was_confirmed_is_not_overwritten,
    what_was_not_announced_is_refused_or_found_out,
    an_object_changed_behind_our_back,
);
