//! A user sees its own files, an admin the files of its tenant, an operator all files. Other files answer 404.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::json;

use crate::oracle;
use crate::test_app::{Client, Database, TestEnv, on_each_database};
use wharfinger::core::Role;

/// All calls with a file id in the path.
fn calls(file: &str) -> Vec<(Method, String)> {
    vec![
        (Method::GET, format!("/api/v2/files/{file}")),
        (Method::GET, format!("/api/v2/files/{file}/history")),
        (Method::GET, format!("/api/v2/files/{file}/chunks")),
        (Method::GET, format!("/api/v2/files/{file}/download")),
        (Method::POST, format!("/api/v2/files/{file}/url")),
        (Method::POST, format!("/api/v2/files/{file}/confirm")),
        (Method::POST, format!("/files/{file}/confirm")),
        (Method::DELETE, format!("/api/v2/files/{file}")),
        (Method::DELETE, format!("/api/v1/documents/{file}")),
        (Method::POST, format!("/api/v2/uploads/stuck/{file}/retry")),
    ]
}

async fn listed(caller: &Client<'_>) -> BTreeSet<String> {
    let page = caller.get("/api/v2/files?limit=1000").await.expect(200);
    let files = page["files"].as_array().expect("a list");
    files.iter().map(|file| file["fileId"].as_str().expect("an id").to_owned()).collect()
}

async fn every_call_on_the_file_of_another_user_answers_404(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let ready = me.upload("ready", b"abc").await;
    let open = me.init("open", 4).await.expect(201);
    server.put_bytes(&open, b"open").await.expect(200);
    let open = open["fileId"].as_str().expect("an id").to_owned();
    let others = [
        server.as_user("t", "v", Role::User),
        server.as_user("other", "u", Role::User),
        server.as_user("other", "u", Role::Admin),
        server.as_user("t ", "u", Role::Admin),
        server.as_user("T", "u", Role::Admin),
        server.as_user("t", "U", Role::User),
        server.as_user("%", "%", Role::Admin),
    ];
    for other in &others {
        let unknown = "018f4e6e-7f3a-7000-8000-000000000001";
        for ((method, path), (_, absent)) in
            calls(&ready).into_iter().chain(calls(&open)).zip(calls(unknown).into_iter().cycle())
        {
            let answer = other.send(other.request(method.clone(), &path)).await;
            let problem = answer.expect_problem(404, "not_found");
            let of_unknown =
                other.send(other.request(method, &absent)).await.expect_problem(404, "not_found");
            assert_eq!(problem, of_unknown, "the answer shows that the file exists");
        }
        assert_eq!(listed(other).await, BTreeSet::new());
    }
    assert_eq!(server.as_user("other", "u", Role::User).used().await, 0);
    assert_eq!(me.get(&format!("/api/v2/files/{ready}")).await.expect(200)["status"], "ready");
    assert_eq!(me.get(&format!("/api/v2/files/{open}")).await.expect(200)["status"], "registered");
    assert_eq!(me.confirm(&open).await.expect(200)["status"], "ready");
    oracle::all_is_healed(&env, &server).await;
}

async fn lists_show_only_files_that_the_role_may_see(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let mut owned = Vec::new();
    for (tenant, user) in [("t", "u"), ("t", "v"), ("other", "u")] {
        let user = server.as_user(tenant, user, Role::User);
        let file = user.upload("a", b"abc").await;
        assert_eq!(listed(&user).await, BTreeSet::from([file.clone()]));
        owned.push(file);
        env.advance(1);
    }
    let set = |files: &[String]| files.iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(listed(&server.as_user("t", "boss", Role::Admin)).await, set(&owned[..2]));
    assert_eq!(listed(&server.as_user("other", "boss", Role::Admin)).await, set(&owned[2..]));
    assert_eq!(listed(&server.as_user("none", "boss", Role::Admin)).await, BTreeSet::new());
    assert_eq!(listed(&server.operator()).await, set(&owned));
    // Small pages contain only files of the scope too.
    let admin = server.as_user("t", "boss", Role::Admin);
    let first = admin.get("/api/v2/files?limit=1").await.expect(200);
    let next = first["nextCursor"].as_str().expect("a cursor");
    let second = admin.get(&format!("/api/v2/files?limit=1&cursor={next}")).await.expect(200);
    assert_eq!(second["files"][0]["fileId"], owned[0].as_str());
    assert!(second["nextCursor"].is_null());
    oracle::all_is_healed(&env, &server).await;
}

async fn admins_and_operators_can_change_the_files_they_see(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let callers = [server.as_user("t", "boss", Role::Admin), server.operator()];
    for (caller, actor) in callers.iter().zip(["admin:boss", "operator:op"]) {
        let grant = me.init("a", 3).await.expect(201);
        let file = grant["fileId"].as_str().expect("an id");
        let path = format!("/api/v2/files/{file}");
        let fresh = caller.post(&format!("{path}/url"), json!({})).await.expect(200);
        server.put_bytes(&fresh, b"abc").await.expect(200);
        assert_eq!(caller.confirm(file).await.expect(200)["status"], "ready");
        let history = me.get(&format!("{path}/history")).await.expect(200);
        assert_eq!(history["events"][1]["actor"], actor);
        caller.get(&format!("{path}/download")).await.expect(302);
        caller.delete(&path).await.expect(204);
        me.get(&path).await.expect_problem(404, "not_found");
    }
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn notifications_are_shown_only_to_their_user(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    server.me().init("secret plans", 3).await.expect(201);
    env.advance(2 * 3_600_000);
    server.settle().await;
    let page = server.me().get("/api/v2/notifications").await.expect(200);
    assert_eq!(page["notifications"][0]["fileName"], "secret plans");
    for (tenant, user) in [("t", "v"), ("other", "u")] {
        let page = server.as_user(tenant, user, Role::User).get("/api/v2/notifications").await.expect(200);
        assert_eq!(page, json!({ "notifications": [], "nextCursor": null }));
    }
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test]
async fn a_worker_token_is_refused_by_all_user_calls() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let file = server.me().upload("a", b"abc").await;
    let worker = server.as_user("t", "u", Role::Worker);
    let mut all = calls(&file);
    all.extend([
        (Method::POST, "/api/v2/files/init".to_owned()),
        (Method::POST, "/files/init".to_owned()),
        (Method::GET, "/api/v2/files".to_owned()),
        (Method::GET, "/api/v2/quota".to_owned()),
        (Method::POST, "/api/v2/search".to_owned()),
        (Method::PUT, "/api/v2/tenants/t/quota".to_owned()),
        (Method::GET, "/api/v2/notifications".to_owned()),
        (Method::GET, "/api/v2/uploads/stuck".to_owned()),
        (Method::POST, "/api/v2/uploads/stuck/retry-all".to_owned()),
        (Method::POST, "/api/v1/maintenance/cleanup/trigger".to_owned()),
        (Method::GET, "/api/v1/maintenance/cleanup/status".to_owned()),
        (Method::GET, "/api/v1/maintenance/cleanup/pending".to_owned()),
        (Method::GET, "/api/v2/maintenance/deletions".to_owned()),
        (Method::GET, "/api/v2/maintenance/sweeps/quota-sync/runs".to_owned()),
        (Method::POST, "/api/v2/uploads/orphans/scan".to_owned()),
    ]);
    for (method, path) in all {
        let request = worker.request(method, &path).json(&json!({ "fileName": "a", "size": 1 }));
        worker.send(request).await.expect_problem(403, "forbidden");
    }
    assert_eq!(server.me().used().await, 3);
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    every_call_on_the_file_of_another_user_answers_404,
    lists_show_only_files_that_the_role_may_see,
    admins_and_operators_can_change_the_files_they_see,
    notifications_are_shown_only_to_their_user,
);
