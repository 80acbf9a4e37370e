//! The deletion log of the API: which object was deleted, why, by which sweep, and who may see it.

use serde_json::{Value, json};
use wharfinger::core::Role;

use super::orphans::{DAY_MS, plant, unknown_key};
use super::sweep;
use crate::test_app::{Client, Database, TestEnv, on_each_database};

const LOG: &str = "/api/v2/maintenance/deletions";
const HOUR_MS: i64 = 3_600_000;

async fn log(client: &Client<'_>, query: &str) -> Vec<Value> {
    let page = client.get(&format!("{LOG}{query}")).await.expect(200);
    page["deletions"].as_array().expect("a list").clone()
}

async fn each_delete_names_its_reason_and_its_sweep(database: Database) {
    let env = TestEnv::with(database, &[("ORPHAN_DELETE_LIMIT_PERCENT", "0")]);
    let server = env.start().await;
    let (me, operator) = (server.me(), server.operator());
    assert_eq!(log(&operator, "").await, Vec::<Value>::new());

    let mine = me.upload("mine", b"12345").await;
    me.delete(&format!("/api/v2/files/{mine}")).await.expect(204);
    server.settle().await;
    let line = |key: String, size: u64, reason: &str, sweep: Value, by: &str, file: &str, at: &str| {
        json!({
            "key": key, "size": size, "objects": 1, "reason": reason, "sweep": sweep, "by": by, "fileId": file,
            "tenant": "t", "deletedAt": at,
        })
    };
    let start = "2025-06-15T15:06:40.000Z";
    let of_owner = line(format!("uploads/t/u/{mine}"), 5, "deleted", Value::Null, "user:u", &mine, start);
    assert_eq!(log(&operator, "").await, std::slice::from_ref(&of_owner));

    env.advance(HOUR_MS);
    plant(&env, &unknown_key(1), 2 * DAY_MS);
    sweep(&server, "orphan-cleanup").await;
    let found = "00000000-0000-7000-8000-000000000001";
    let next = "2025-06-15T16:06:40.000Z";
    let sweep_name = json!("orphan-cleanup");
    let of_sweep = line(unknown_key(1), 7, "orphan_blob", sweep_name, "orphan-cleanup", found, next);
    assert_eq!(log(&operator, "").await, [of_sweep.clone(), of_owner.clone()], "newest first");

    // An upload that nobody confirmed, once by the delayed check and once by the sweep that repairs a lost check.
    let checked = me.init("checked", 3).await.expect(201)["fileId"].clone();
    env.advance(2 * HOUR_MS);
    server.settle().await;
    let swept = me.init("swept", 3).await.expect(201)["fileId"].clone();
    env.execute("DELETE FROM jobs").await;
    env.advance(2 * HOUR_MS);
    sweep(&server, "upload-window").await;
    sweep(&server, "pending-cleanups").await;
    let lines = log(&operator, "").await;
    let short: Vec<_> = lines.iter().map(|line| [&line["reason"], &line["sweep"], &line["fileId"]]).collect();
    assert_eq!(
        short[..2],
        [
            [&json!("reclaimed"), &json!("upload-window"), &swept],
            [&json!("reclaimed"), &json!("upload-check"), &checked],
        ]
    );

    // `since` includes its own time, in any offset.
    assert_eq!(log(&operator, &format!("?since={next}")).await.len(), 3);
    assert_eq!(log(&operator, "?since=2025-06-15T18:06:40.001%2B02:00").await.len(), 2);
    assert_eq!(log(&operator, "?since=2025-06-15T18:06:40.000+02:00").await.len(), 3);
    for bad in ["yesterday", "1750000000", "2025-06-15", "2025-06-15T18:06:40"] {
        let refused = operator.get(&format!("{LOG}?since={bad}")).await;
        let problem = refused.expect_problem(400, "invalid_request");
        assert_eq!(problem["errors"][0]["field"], "since", "{problem}");
    }
    let first = operator.get(&format!("{LOG}?limit=3")).await.expect(200);
    let cursor = first["nextCursor"].as_str().expect("a cursor");
    let second = operator.get(&format!("{LOG}?limit=3&cursor={cursor}")).await.expect(200);
    assert_eq!((&second["deletions"], &second["nextCursor"]), (&json!([of_owner]), &Value::Null));
    operator.get(&format!("{LOG}?cursor=x")).await.expect_problem(400, "invalid_request");
}

async fn admins_see_the_deletes_of_their_tenant(database: Database) {
    let env = TestEnv::with(database, &[("ORPHAN_DELETE_LIMIT_PERCENT", "0")]);
    let server = env.start().await;
    for tenant in ["t", "t2"] {
        let owner = server.as_user(tenant, "u", Role::User);
        let file = owner.upload("a", b"abc").await;
        owner.delete(&format!("/api/v2/files/{file}")).await.expect(204);
        owner.get(LOG).await.expect_problem(403, "forbidden");
    }
    // Its key is in the folder of a tenant, so that tenant's admin sees it.
    plant(&env, &unknown_key(1), 2 * DAY_MS);
    sweep(&server, "orphan-cleanup").await;
    server.settle().await;
    let tenants = |lines: Vec<Value>| {
        let mut tenants: Vec<String> =
            lines.iter().map(|line| line["tenant"].as_str().unwrap_or("none").to_owned()).collect();
        tenants.sort();
        tenants
    };
    let admin = server.as_user("t", "boss", Role::Admin);
    assert_eq!(tenants(log(&admin, "").await), ["t", "t"]);
    assert_eq!(tenants(log(&admin, "?tenant=t").await), ["t", "t"]);
    admin.get(&format!("{LOG}?tenant=t2")).await.expect_problem(403, "forbidden");
    let operator = server.operator();
    assert_eq!(tenants(log(&operator, "").await), ["t", "t", "t2"]);
    assert_eq!(tenants(log(&operator, "?tenant=t2").await), ["t2"]);
    let unknown = operator.get(&format!("{LOG}?until=now")).await;
    unknown.expect_problem(400, "invalid_request");
}

on_each_database! {
    each_delete_names_its_reason_and_its_sweep,
    admins_see_the_deletes_of_their_tenant,
}
