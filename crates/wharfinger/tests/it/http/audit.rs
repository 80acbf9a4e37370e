//! The log of what operators and admins did.

use serde_json::{Value, json};
use wharfinger::core::Role;

use crate::test_app::{Client, Database, TestEnv, on_each_database};

const LOG: &str = "/api/v2/maintenance/audit";

/// The actor, action, tenant and subject of each entry.
async fn entries(caller: &Client<'_>) -> Vec<Value> {
    let log = caller.get(LOG).await.expect(200);
    let entries = log["entries"].as_array().expect("a list").iter();
    entries.map(|entry| json!([entry["actor"], entry["action"], entry["tenant"], entry["subject"]])).collect()
}

async fn changes_of_operators_and_admins_are_listed(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let operator = server.as_user("ops", "olga", Role::Operator);
    let admin = server.as_user("t", "adam", Role::Admin);
    operator.put("/api/v2/tenants/t/quota", json!({ "limit": 5_000 })).await.expect(200);
    env.advance(1);
    operator.put("/api/v2/tenants/u/policy", json!({ "allowedTypes": ["image/*"] })).await.expect(200);
    env.advance(1);
    admin.post("/api/v1/maintenance/cleanup/trigger", json!({})).await.expect(200);
    // What is refused is no change.
    admin.put("/api/v2/tenants/t/quota", json!({ "limit": 1 })).await.expect_problem(403, "forbidden");
    operator
        .put("/api/v2/tenants/t/quota", json!({ "limit": -1 }))
        .await
        .expect_problem(400, "invalid_request");

    let limit = json!(["operator:olga", "quota-limit-set", "t", "t"]);
    let policy = json!(["operator:olga", "policy-set", "u", "u"]);
    let trigger = json!(["admin:adam", "cleanups-triggered", "t", "pending-cleanups"]);
    assert_eq!(entries(&operator).await, [trigger.clone(), policy, limit.clone()]);
    assert_eq!(entries(&admin).await, [trigger, limit], "an admin sees its tenant");
    server.me().get(LOG).await.expect_problem(403, "forbidden");
    let log = operator.get(&format!("{LOG}?limit=1")).await.expect(200);
    let path = format!("{LOG}?limit=2&cursor={}", log["nextCursor"].as_str().expect("more"));
    let next = operator.get(&path).await.expect(200);
    assert_eq!(
        next["entries"][0]["detail"],
        json!({ "allowedTypes": "image/*", "maxFileSizeBytes": null,
        "requestsPerSecond": null })
    );
    assert_eq!(next["entries"][1]["detail"], json!({ "limit": 5_000 }));

    // After a year it is removed.
    for (days, left) in [(364, 3), (2, 0)] {
        env.advance(days * 86_400_000);
        server.settle().await;
        let operator = server.as_user("ops", "olga", Role::Operator);
        assert_eq!(entries(&operator).await.len(), left);
    }
}

on_each_database!(changes_of_operators_and_admins_are_listed);
