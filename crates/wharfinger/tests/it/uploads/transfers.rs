//! Limits of concurrent uploads and downloads: in total, per tenant, and a minimum rate.

use std::time::Duration;

use bytes::Bytes;
use wharfinger::core::Role;
use wharfinger_lifecycle::id::TenantId;

use super::incoming::{start_upload, wait_for_uploads};
use crate::http::connections::pass;
use crate::test_app::{Answer, Database, TestEnv};

/// Each transfer needs an open file, and their number is limited.
#[tokio::test(flavor = "multi_thread")]
async fn one_tenant_cannot_use_all_transfers() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let (me, other_tenant) = (server.me(), server.as_user("other", "u", Role::User));
    let file = me.upload("a", b"abc").await;
    let download = me.get(&format!("/api/v2/files/{file}/download")).await;
    let url = download.headers["location"].to_str().expect("a URL").to_owned();
    let receive = async || Answer::read(server.http.get(&url).send().await.expect("an answer")).await;
    let grant = me.init("b", 3).await.expect(201);

    let tenant = TenantId::new("t").expect("a tenant");
    let mut transfers: Vec<_> = std::iter::from_fn(|| server.app.uploads.transfers.begin(&tenant)).collect();
    for refused in [server.put_bytes(&grant, b"abc").await, receive().await] {
        assert_eq!(refused.headers["retry-after"], "1");
        refused.expect_problem(503, "unavailable");
    }
    other_tenant.upload("a", b"abc").await;

    transfers.pop();
    let slow = start_upload(&server, &grant, b"a").await;
    wait_for_uploads(&env, 1).await;
    receive().await.expect_problem(503, "unavailable");
    slow.bytes.send(Ok(Bytes::from_static(b"bc"))).await.expect("the server reads");
    drop(slow.bytes);
    slow.answer.await.expect("an answer").expect(200);
    for _ in 0..3 {
        let answer = server.http.get(&url).send().await.expect("an answer");
        assert_eq!((answer.status().as_u16(), answer.text().await.expect("text")), (200, "abc".to_owned()));
    }
}

/// Single bytes are below the minimum rate. Small pieces are above it.
#[tokio::test]
async fn an_upload_below_the_minimum_rate_is_ended() {
    const PIECE: &[u8] = &[7; 256 << 10];
    const PIECES: usize = 4;
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let size = 1 + (PIECES * PIECE.len()) as u64;
    let (too_slow, slow) = (server.me().init("t", size).await, server.me().init("s", size).await);
    let (too_slow, slow) = (too_slow.expect(201), slow.expect(201));
    let (too_slow, slow) =
        (start_upload(&server, &too_slow, b"x").await, start_upload(&server, &slow, b"x").await);
    wait_for_uploads(&env, 2).await;
    for _ in 0..PIECES {
        assert!(!slow.answer.is_finished());
        pass(Duration::from_secs(50)).await;
        // The server may have ended this upload.
        let _ = too_slow.bytes.send(Ok(Bytes::from_static(b"x"))).await;
        slow.bytes.send(Ok(Bytes::from_static(PIECE))).await.expect("the server reads");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    too_slow.answer.await.expect("an answer").expect_problem(408, "interrupted");
    drop(slow.bytes);
    slow.answer.await.expect("an answer").expect(200);
}
