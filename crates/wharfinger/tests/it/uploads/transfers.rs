//! Files that are sent and received at once: so many in all and of one tenant, and none that only holds its place.

use std::time::Duration;

use bytes::Bytes;
use wharfinger::core::Role;
use wharfinger_lifecycle::id::TenantId;

use super::incoming::{begin, under_way};
use crate::http::connections::pass;
use crate::test_app::{Answer, Database, TestEnv};

/// Each holds an open file, of which there are only so many.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_leaves_room_for_the_files_of_others() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let (me, other) = (server.me(), server.as_user("other", "u", Role::User));
    let file = me.upload("a", b"abc").await;
    let download = me.get(&format!("/api/v2/files/{file}/download")).await;
    let url = download.headers["location"].to_str().expect("a URL").to_owned();
    let receive = async || Answer::read(server.http.get(&url).send().await.expect("an answer")).await;
    let grant = me.init("b", 3).await.expect(201);

    let tenant = TenantId::new("t").expect("a tenant");
    let mut held: Vec<_> = std::iter::from_fn(|| server.app.uploads.transfers.begin(&tenant)).collect();
    for refused in [server.put_bytes(&grant, b"abc").await, receive().await] {
        assert_eq!(refused.headers["retry-after"], "1");
        refused.expect_problem(503, "unavailable");
    }
    other.upload("a", b"abc").await;

    held.pop();
    let slow = begin(&server, &grant, b"a").await;
    under_way(&env, 1).await;
    receive().await.expect_problem(503, "unavailable");
    slow.bytes.send(Ok(Bytes::from_static(b"bc"))).await.expect("room");
    drop(slow.bytes);
    slow.answer.await.expect("an answer").expect(200);
    for _ in 0..3 {
        let answer = server.http.get(&url).send().await.expect("an answer");
        assert_eq!((answer.status().as_u16(), answer.text().await.expect("text")), (200, "abc".to_owned()));
    }
}

/// A byte now and then is no upload; little at a time is one.
#[tokio::test]
async fn a_trickle_is_ended_and_a_slow_upload_is_not() {
    const PIECE: &[u8] = &[7; 256 << 10];
    const PIECES: usize = 4;
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let size = 1 + (PIECES * PIECE.len()) as u64;
    let (trickled, slow) = (server.me().init("t", size).await, server.me().init("s", size).await);
    let (trickled, slow) = (trickled.expect(201), slow.expect(201));
    let (trickled, slow) = (begin(&server, &trickled, b"x").await, begin(&server, &slow, b"x").await);
    under_way(&env, 2).await;
    for _ in 0..PIECES {
        assert!(!slow.answer.is_finished());
        pass(Duration::from_secs(50)).await;
        // It may be over.
        let _ = trickled.bytes.send(Ok(Bytes::from_static(b"x"))).await;
        slow.bytes.send(Ok(Bytes::from_static(PIECE))).await.expect("room");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    trickled.answer.await.expect("an answer").expect_problem(408, "interrupted");
    drop(slow.bytes);
    slow.answer.await.expect("an answer").expect(200);
}
