//! A service key that is created and used while calls fail.

use wharfinger::auth::{KeyRequest, NewKey};
use wharfinger::core::Role;

use crate::test_app::{Answer, Client, TestApp};

/// Creates a key with this name, uses it, and writes its use. The answer is that of the use.
pub async fn use_new_key(server: &TestApp, name: &str) -> Answer {
    let request = KeyRequest {
        role: Role::Operator,
        tenant: None,
        user: None,
        name: Some(name.to_owned()),
        expires_at: None,
    };
    let new = NewKey::create(request, server.app.core.clock.now()).expect("a key");
    // Whatever becomes of it: the key works or is unknown.
    let _ = server.app.core.catalog.create_service_key(new.row).await;
    let answer = Client { server, token: new.token }.get("/api/v2/session").await;
    let _ = server.app.service_keys.record_uses().await;
    answer
}

/// A key that was used is there, once. Each row is whole.
pub async fn still_works(server: &TestApp, name: &str, was_used: bool) {
    let list = server.operator().get("/api/v2/keys?limit=1000").await.expect(200);
    let named = list["keys"].as_array().expect("a list").iter().filter(|key| key["name"] == name).count();
    assert!(named <= 1 && (named == 1 || !was_used), "{named} keys, used: {was_used}");
}
