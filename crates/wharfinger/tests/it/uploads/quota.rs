//! Quotas: concurrent uploads do not exceed the limit, and each reserved byte is released at the end.

use serde_json::{Value, json};

use super::{GRACE_MS, WINDOW_MS, id};
use crate::http::connections::pass;
use crate::oracle;
use crate::test_app::{Client, Database, TestEnv, on_each_database, patiently};
use wharfinger::core::Role;

async fn concurrent_uploads_do_not_exceed_the_quota(database: Database) {
    let env = TestEnv::with(database, &[("DEFAULT_TENANT_QUOTA_BYTES", "1000")]);
    let server = env.start().await;
    let me = server.me();
    let names: Vec<String> = (0..200).map(|n| format!("f{n}")).collect();
    let answers = futures::future::join_all(names.iter().map(|name| patiently(|| me.init(name, 10)))).await;
    let made = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!(made, 100);
    for answer in answers.into_iter().filter(|answer| answer.status != 201) {
        let problem = answer.expect_problem(403, "quota_exceeded");
        assert_eq!(
            (&problem["used"], &problem["limit"], &problem["requested"]),
            (&json!(1_000), &json!(1_000), &json!(10))
        );
    }
    let quota = me.get("/api/v2/quota").await.expect(200);
    assert_eq!(quota, json!({ "tenant": "t", "used": 1_000, "limit": 1_000, "reserved": 1_000 }));
    oracle::catalog_is_sound(&server).await;

    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    let quota = me.get("/api/v2/quota").await.expect(200);
    assert_eq!(quota, json!({ "tenant": "t", "used": 0, "limit": 1_000, "reserved": 0 }));
    let list = me.get("/api/v2/notifications?limit=1000").await.expect(200);
    assert_eq!(list["notifications"].as_array().expect("a list").len(), 100);
    me.init("all of it", 1_000).await.expect(201);
    me.init("one more", 1).await.expect_problem(403, "quota_exceeded");
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn users_of_a_tenant_share_a_quota_and_tenants_do_not(database: Database) {
    let env = TestEnv::with(database, &[("DEFAULT_TENANT_QUOTA_BYTES", "10")]);
    let server = env.start().await;
    let colleague = server.as_user("t", "v", Role::User);
    let other_tenant = server.as_user("other", "u", Role::User);
    server.me().upload("a", b"six by").await;
    let problem = colleague.init("b", 5).await.expect_problem(403, "quota_exceeded");
    assert_eq!((&problem["used"], &problem["requested"]), (&json!(6), &json!(5)));
    colleague.upload("b", b"four").await;
    assert_eq!((colleague.used().await, other_tenant.used().await), (10, 0));
    other_tenant.upload("c", b"all of ten").await;
    oracle::all_is_healed(&env, &server).await;
}

/// Rows and extracted text of a small file need storage too.
async fn small_files_are_charged_the_minimum(database: Database) {
    let env =
        TestEnv::with(database, &[("MIN_CHARGE_BYTES", "4KiB"), ("DEFAULT_TENANT_QUOTA_BYTES", "10KiB")]);
    let server = env.start().await;
    let me = server.me();
    let empty = me.upload("empty", b"").await;
    me.upload("small", b"abc").await;
    assert_eq!(me.used().await, 8_192);
    let problem = me.init("one more", 1).await.expect_problem(403, "quota_exceeded");
    assert_eq!((&problem["used"], &problem["requested"]), (&json!(8_192), &json!(4_096)));
    me.delete(&format!("/api/v2/files/{empty}")).await.expect(204);
    assert_eq!(me.used().await, 4_096);
    me.upload("large", &[7; 6_000]).await;
    assert_eq!(me.used().await, 10_096, "a larger file is charged its size");
    server.settle().await;
    oracle::catalog_is_sound(&server).await;
}

async fn the_number_of_files_per_tenant_is_limited(database: Database) {
    let env = TestEnv::with(database, &[("TENANT_MAX_FILES", "3")]);
    let server = env.start().await;
    let (me, other) = (server.me(), server.as_user("other", "u", Role::User));
    let first = me.upload("a", b"").await;
    me.init("b", 0).await.expect(201);
    let two = json!({ "files": [{ "fileName": "c", "size": 0 }, { "fileName": "d", "size": 0 }] });
    me.post("/api/v2/batches", two).await.expect_problem(403, "file_limit");
    let init = json!({ "fileName": "c", "size": 0 });
    let keyed =
        || me.request(reqwest::Method::POST, "/api/v2/files/init").header("idempotency-key", "k").json(&init);
    let made = me.send(keyed()).await.expect(201);
    let problem = me.init("e", 0).await.expect_problem(403, "file_limit");
    assert_eq!((&problem["used"], &problem["limit"]), (&json!(3), &json!(3)));
    let again = me.send(keyed()).await.expect(201);
    assert_eq!(again["fileId"], made["fileId"], "a repeated request still returns its file");
    other.upload("a", b"").await;
    me.delete(&format!("/api/v2/files/{first}")).await.expect(204);
    // The count is refreshed after a moment.
    init_until_created(&me).await;
}

/// A deleted file has no charge, but its row stays for weeks.
#[tokio::test]
async fn deleted_files_count_until_their_rows_are_removed() {
    let wait = || pass(std::time::Duration::from_secs(60));
    let env = TestEnv::with(Database::Sqlite, &[("TENANT_MAX_FILES", "3")]);
    let server = env.start().await;
    let me = server.me();
    for _ in 0..6 {
        let file = id(&me.init("f", 0).await.expect(201));
        me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
        wait().await;
    }
    let problem = me.init("f", 0).await.expect_problem(403, "file_limit");
    assert_eq!((&problem["used"], &problem["limit"]), (&json!(6), &json!(6)));
    server.as_user("other", "u", Role::User).init("f", 0).await.expect(201);
    server.settle().await;
    env.advance(31 * 86_400_000);
    server.settle().await;
    wait().await;
    me.init("f", 0).await.expect(201);
}

async fn init_until_created(me: &Client<'_>) {
    let began = std::time::Instant::now();
    while me.init("f", 0).await.status != 201 {
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "the deleted file still counts");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

async fn only_operators_set_limits(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let path = "/api/v2/tenants/t/quota";
    for role in [Role::User, Role::Admin, Role::Worker] {
        let outsider = server.as_user("t", "u", role);
        outsider.put(path, json!({ "limit": 1 })).await.expect_problem(403, "forbidden");
    }
    let operator = server.operator();
    let huge = json!({ "limit": (1_u64 << 60) + 1 });
    for (body, field) in [
        (json!({ "limit": -1 }), "limit"),
        (json!({ "limit": 1.5 }), "limit"),
        (json!({ "limit": "10GiB" }), "limit"),
        (huge, "limit"),
        (json!({}), "limit"),
        (json!({ "limit": 1, "used": 0 }), "used"),
        (Value::Null, "body"),
        (json!([5]), "body"),
    ] {
        let problem = operator.put(path, body.clone()).await.expect_problem(400, "invalid_request");
        assert_eq!(problem["errors"][0]["field"], field, "{body}: {problem}");
    }
    let long = format!("/api/v2/tenants/{}/quota", "x".repeat(300));
    let problem = operator.put(&long, json!({ "limit": 1 })).await.expect_problem(400, "invalid_request");
    assert_eq!(problem["errors"][0]["field"], "tenant");
    let quota = server.me().get("/api/v2/quota").await.expect(200);
    assert_eq!(quota["limit"], 10_737_418_240_u64, "a refused request changes nothing");

    let set = operator.put(path, json!({ "limit": 5 })).await.expect(200);
    assert_eq!(set, json!({ "tenant": "t", "used": 0, "limit": 5, "reserved": 0 }));
    assert_eq!(server.me().get("/api/v2/quota").await.expect(200), set);
    let other = server.as_user("other", "u", Role::User).get("/api/v2/quota").await.expect(200);
    assert_eq!(other["limit"], 10_737_418_240_u64);
    oracle::catalog_is_sound(&server).await;
}

async fn a_limit_below_the_usage_keeps_existing_files(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let operator = server.operator();
    let kept = me.upload("kept", b"ten bytes!").await;
    let open = me.init("open", 5).await.expect(201);
    operator.put("/api/v2/tenants/t/quota", json!({ "limit": 3 })).await.expect(200);
    let problem = me.init("new", 1).await.expect_problem(403, "quota_exceeded");
    assert_eq!(
        (&problem["used"], &problem["limit"], &problem["requested"]),
        (&json!(15), &json!(3), &json!(1))
    );
    // An upload that was registered before may still be completed.
    server.put_bytes(&open, b"fives").await.expect(200);
    assert_eq!(me.confirm(&id(&open)).await.expect(200)["status"], "ready");
    assert_eq!(me.get(&format!("/api/v2/files/{kept}")).await.expect(200)["status"], "ready");
    me.delete(&format!("/api/v2/files/{kept}")).await.expect(204);
    assert_eq!(me.used().await, 5);
    me.init("still", 1).await.expect_problem(403, "quota_exceeded");
    operator.put("/api/v2/tenants/t/quota", json!({ "limit": 6 })).await.expect(200);
    me.upload("fits", b"1").await;
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn unconfirmed_bytes_per_user_are_limited(database: Database) {
    let settings = [("DEFAULT_TENANT_QUOTA_BYTES", "1000"), ("UNCONFIRMED_LIMIT_PERCENT", "30")];
    let env = TestEnv::with(database, &settings);
    let server = env.start().await;
    let me = server.me();
    let names: Vec<String> = (0..40).map(|n| format!("f{n}")).collect();
    let answers = futures::future::join_all(names.iter().map(|name| patiently(|| me.init(name, 10)))).await;
    let (made, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 201);
    assert_eq!(made.len(), 30);
    for answer in refused {
        let problem = answer.expect_problem(403, "unconfirmed_limit");
        assert_eq!(
            (&problem["used"], &problem["limit"], &problem["requested"]),
            (&json!(300), &json!(300), &json!(10))
        );
    }
    assert_eq!(me.used().await, 300);
    server.as_user("t", "v", Role::User).init("share of another user", 300).await.expect(201);

    let first = made.into_iter().next().expect("one").body;
    server.put_bytes(&first, b"ten bytes!").await.expect(200);
    me.confirm(&id(&first)).await.expect(200);
    me.init("replaces the confirmed one", 10).await.expect(201);
    me.init("too much", 1).await.expect_problem(403, "unconfirmed_limit");
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    me.init("the share is free again", 300).await.expect(201);
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    small_files_are_charged_the_minimum,
    the_number_of_files_per_tenant_is_limited,
    concurrent_uploads_do_not_exceed_the_quota,
    users_of_a_tenant_share_a_quota_and_tenants_do_not,
    only_operators_set_limits,
    a_limit_below_the_usage_keeps_existing_files,
    unconfirmed_bytes_per_user_are_limited,
);
