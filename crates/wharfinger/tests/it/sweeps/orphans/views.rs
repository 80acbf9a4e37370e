//! The API shows each caller only the orphans of its scope.

use super::{DAY_MS, HOUR_MS, UNKNOWN_DERIVED, plant, scan, unknown_key};
use crate::test_app::{Client, Database, TestEnv, on_each_database};
use serde_json::{Value, json};
use wharfinger::core::Role;

async fn shown(client: &Client<'_>) -> Value {
    client.get("/api/v2/uploads/orphans").await.expect(200)
}

fn counts(shown: &Value) -> (u64, u64, u64) {
    let count = |what: &str| shown[what]["count"].as_u64().expect("a number");
    (count("orphanBlobs"), count("abandonedUploads"), count("missingBlobs"))
}

async fn each_caller_sees_the_orphans_of_its_scope(database: Database) {
    let settings = [("ORPHAN_DELETE_LIMIT_PERCENT", "1")];
    let env = TestEnv::with(database, &settings);
    let server = env.start().await;
    let (me, colleague) = (server.me(), server.as_user("t", "u2", Role::User));
    let (other_tenant, admin) =
        (server.as_user("t2", "u", Role::User), server.as_user("t", "boss", Role::Admin));
    let before = shown(&me).await;
    assert_eq!((counts(&before), &before["lastScanTime"]), ((0, 0, 0), &Value::Null));
    assert_eq!(before["abandonedUploads"]["oldestAge"], 0);

    let kept = me.upload("kept", b"bytes").await;
    for missing in [me.upload("mine.pdf", b"bytes").await, colleague.upload("theirs.pdf", b"bytes").await] {
        for user in ["u", "u2"] {
            let _ = std::fs::remove_file(env.blob_dir().join(format!("uploads/t/{user}/{missing}")));
        }
    }
    me.init("slow", 5).await.expect(201);
    env.advance(HOUR_MS);
    other_tenant.init("slow", 5).await.expect(201);
    let id = "00000000-0000-7000-8000-000000000000";
    for owner in ["t/u", "t/u2", "t2/u", "unknown/u"] {
        plant(&env, &format!("uploads/{owner}/{id}"), 2 * DAY_MS);
    }
    plant(&env, UNKNOWN_DERIVED, 2 * DAY_MS);
    assert!(scan(&server).await.stopped.is_some());
    env.advance(DAY_MS as i64 - HOUR_MS - 1);
    assert_eq!(counts(&shown(&me).await), (2, 0, 1), "less than a day old");
    env.advance(1);
    let mine = shown(&me).await;
    assert_eq!(counts(&mine), (2, 1, 1));
    assert_eq!(mine["orphanBlobs"]["totalSize"], 14);
    assert_eq!(mine["orphanBlobs"]["samples"][1], unknown_key(0));
    let mut orphan = mine["orphanBlobs"]["details"][1].clone();
    let age = orphan["age"].take().as_i64().expect("a number");
    // By the clock of the store, which is the machine's.
    assert!((2 * DAY_MS as i64..3 * DAY_MS as i64).contains(&age), "{age}");
    let expected = json!({ "key": unknown_key(0), "fileId": id, "fileName": null, "size": 7, "age": null });
    assert_eq!(orphan, expected);
    let missing = &mine["missingBlobs"]["details"][0];
    assert_eq!(mine["missingBlobs"]["samples"], json!([missing["key"]]));
    assert_eq!((&missing["fileName"], &missing["size"]), (&"mine.pdf".into(), &5.into()));
    assert_eq!(missing["age"], DAY_MS, "since it was announced");
    assert_eq!(mine["abandonedUploads"]["oldestAge"], DAY_MS);
    assert!(mine["lastScanTime"].is_string());
    assert_eq!(counts(&shown(&colleague).await), (1, 0, 1));
    assert_eq!(counts(&shown(&other_tenant).await), (1, 0, 0));
    assert_eq!(counts(&shown(&admin).await), (3, 1, 2));
    assert_eq!(counts(&shown(&server.operator()).await), (5, 1, 2));
    env.advance(HOUR_MS);
    assert_eq!(counts(&shown(&server.operator()).await), (5, 2, 2));
    assert_eq!(server.me().file(&kept).await["status"], "ready");
}

on_each_database!(each_caller_sees_the_orphans_of_its_scope);
