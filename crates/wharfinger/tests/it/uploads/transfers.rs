//! Files that are sent and received at once: so many in all and of one tenant, and none that only holds its place.

use bytes::Bytes;
use wharfinger::core::Role;
use wharfinger_lifecycle::id::TenantId;

use super::landings::{begin, under_way};
use crate::test_app::{Answer, Database, Ground};

/// Each holds an open file, of which there are only so many.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_leaves_room_for_the_files_of_others() {
    let ground = Ground::new(Database::Sqlite);
    let server = ground.start().await;
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
    under_way(&ground, 1).await;
    receive().await.expect_problem(503, "unavailable");
    slow.bytes.send(Ok(Bytes::from_static(b"bc"))).await.expect("room");
    drop(slow.bytes);
    slow.answer.await.expect("an answer").expect(200);
    for _ in 0..3 {
        let answer = server.http.get(&url).send().await.expect("an answer");
        assert_eq!((answer.status().as_u16(), answer.text().await.expect("text")), (200, "abc".to_owned()));
    }
}
