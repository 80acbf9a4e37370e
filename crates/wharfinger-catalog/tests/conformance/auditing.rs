//! The audit finds each kind of damage, and only while it lasts.

use wharfinger_lifecycle::file::File;

use super::batches::new_batch;
use super::sample::{NOW, POLICY, confirmed, deleted, registered};
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");

/// Something of each kind, so that a rule that finds too much is caught as well.
async fn furnished(db: &TestDb) -> File {
    confirmed(&db.catalog, ADA, 20).await;
    deleted(&db.catalog, ADA, 30, &POLICY).await;
    registered(&db.catalog, ("wharf", "ben"), 40).await;
    let file = registered(&db.catalog, ADA, 10).await;
    assert_eq!(db.catalog.audit().await.expect("audited"), Vec::<String>::new());
    file
}

async fn finds(db: &TestDb, damage: &str, rules: &[&str], what: &str) {
    assert!(db.sql(damage).await > 0, "nothing was damaged by {damage}");
    let findings = db.catalog.audit().await.expect("audited");
    let expected: Vec<String> = rules.iter().map(|rule| format!("{rule}: {what}")).collect();
    assert_eq!(findings, expected, "after {damage}");
}

async fn repair(db: &TestDb, repair: &str) {
    assert!(db.sql(repair).await > 0, "nothing was mended by {repair}");
    assert_eq!(db.catalog.audit().await.expect("audited"), Vec::<String>::new(), "after {repair}");
}

const CHARGED: &str = "a tenant is charged for what its files are charged (I2)";
const QUOTA_ROW: &str = "every charged file has a quota row (I2)";
const COUNTERS: &str = "the counters agree with the files";
const OUTCOMES: &str = "what files came to is counted when they came to it";
const OBJECTS: &str = "every file has its object row, and every object row its file";
const HISTORY: &str = "a file's history ends in its status (I16)";
const DEAD: &str = "nothing comes back from the dead (I16)";
const BATCH: &str = "a file's batch is there and its owner's (I11)";
const COMPLETED: &str = "a completed batch waits for nothing";
const LOOK: &str = "whatever is not at rest says when it is looked at next (I15)";

pub(super) async fn the_audit_finds_wrong_cleanups(db: &TestDb) {
    let file = furnished(db).await;
    let cleanup = format!("UPDATE pending_cleanups SET file_path = '{}'", file.key);
    finds(db, &cleanup, &["no cleanup deletes what is alive (I4)"], file.key.as_str()).await;
    repair(db, "UPDATE pending_cleanups SET file_path = 'uploads/x'").await;
    let queued = "INSERT INTO orphan_blobs (key, size, modified_at, scan_id, found_at, queued_at) \
        VALUES ('uploads/y', 1, 1, 's', 1, 1)";
    finds(db, queued, &["an orphan that is queued has its cleanup (I6)"], "uploads/y").await;
    repair(db, "UPDATE orphan_blobs SET queued_at = NULL").await;
}

pub(super) async fn the_audit_finds_wrong_quotas(db: &TestDb) {
    furnished(db).await;
    let set = |column: &str, by: &str| {
        format!("UPDATE quotas SET {column} = {column} {by} WHERE tenant_id = 'harbour'")
    };
    for by in [("+ 1", "- 1"), ("- 1", "+ 1")] {
        finds(db, &set("used_bytes", by.0), &[CHARGED], "harbour").await;
        repair(db, &set("used_bytes", by.1)).await;
    }
    let unknown = "INSERT INTO quotas (tenant_id, used_bytes) VALUES ('nobody', 7)";
    finds(db, unknown, &[CHARGED], "nobody").await;
    repair(db, "DELETE FROM quotas WHERE tenant_id = 'nobody'").await;

    let alone = registered(&db.catalog, ("pier", "cid"), 5).await;
    finds(db, "DELETE FROM quotas WHERE tenant_id = 'pier'", &[QUOTA_ROW], &alone.id.to_string()).await;
    repair(db, "INSERT INTO quotas (tenant_id, used_bytes) VALUES ('pier', 5)").await;
}

pub(super) async fn the_audit_finds_wrong_counters(db: &TestDb) {
    furnished(db).await;
    for column in ["files", "charged_bytes"] {
        let set =
            |by: &str| format!("UPDATE file_counts SET {column} = {column} {by} WHERE status = 'ready'");
        finds(db, &set("+ 1"), &[COUNTERS], "harbour").await;
        repair(db, &set("- 1")).await;
    }
    let unknown = "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) \
                   VALUES ('nobody', 'x', 'ready', '', 1, 0)";
    finds(db, unknown, &[COUNTERS], "nobody").await;
    repair(db, "DELETE FROM file_counts WHERE tenant_id = 'nobody'").await;
    finds(db, "DELETE FROM file_counts WHERE tenant_id = 'wharf'", &[COUNTERS], "wharf").await;
    let again = "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) \
                 VALUES ('wharf', 'ben', 'registered', '', 1, 40)";
    repair(db, again).await;
    let set = |by: &str| format!("UPDATE file_outcomes SET files = files {by} WHERE outcome = 'ready'");
    finds(db, &set("+ 1"), &[OUTCOMES], "harbour").await;
    repair(db, &set("- 1")).await;
}

pub(super) async fn the_audit_finds_lost_objects_and_files(db: &TestDb) {
    let file = furnished(db).await;
    let id = file.id.to_string();
    finds(db, &format!("DELETE FROM objects WHERE file_id = '{id}'"), &[OBJECTS], &id).await;
    let again = |id: &str, kind: &str| {
        format!(
            "INSERT INTO objects (key, file_id, kind, created_at) VALUES ('{kind}/{id}', '{id}', '{kind}', 0)"
        )
    };
    repair(db, &again(&id, "original")).await;
    repair(db, &again(&id, "derived")).await;
    finds(db, &again("nobody", "original"), &[OBJECTS], "nobody").await;
    repair(db, "DELETE FROM objects WHERE file_id = 'nobody'").await;
}

pub(super) async fn the_audit_finds_impossible_histories(db: &TestDb) {
    let file = furnished(db).await;
    let id = file.id.to_string();
    let line = |version: i64, from: &str, to: &str| {
        format!(
            "INSERT INTO file_history (file_id, version, at, from_status, to_status, reason, actor) \
             VALUES ('{id}', {version}, {NOW}, {from}, '{to}', 'by hand', 'nobody')"
        )
    };
    let without =
        |version: i64| format!("DELETE FROM file_history WHERE file_id = '{id}' AND version = {version}");
    finds(db, &line(2, "'registered'", "ready"), &[HISTORY], &id).await;
    repair(db, &without(2)).await;
    finds(db, &line(2, "'deleted'", "registered"), &[DEAD], &id).await;
    repair(db, &without(2)).await;
    finds(db, &without(1), &[HISTORY], &id).await;
    repair(db, &line(1, "NULL", "registered")).await;
}

/// The schema itself refuses such a row, so its rule has to be set aside first.
pub(super) async fn the_audit_finds_files_without_a_next_check(db: &TestDb) {
    let file = furnished(db).await;
    let id = file.id.to_string();
    let set = |at: &str| format!("UPDATE files SET next_check_at = {at} WHERE id = '{id}'");
    let damage = if db.is_postgres() {
        let name = "SELECT conname::text FROM pg_constraint WHERE conrelid = 'files'::regclass \
                    AND contype = 'c' AND pg_get_constraintdef(oid) LIKE '%next_check_at%'";
        let name = db.texts(name).await.remove(0);
        format!("ALTER TABLE files DROP CONSTRAINT {name}; {}", set("NULL"))
    } else {
        format!("PRAGMA ignore_check_constraints = ON; {}", set("NULL"))
    };
    finds(db, &damage, &[LOOK], &id).await;
    repair(db, &set("1")).await;
}

pub(super) async fn the_audit_finds_files_of_wrong_batches(db: &TestDb) {
    let (batch, wanted) = new_batch(("harbour", "ada"), &[10]);
    db.catalog.register(wanted).await.expect("answered");
    let files = db.catalog.batch_files(batch.id, None, 10).await.expect("read");
    let id = files[0].id.to_string();
    let set = |what: &str| format!("UPDATE upload_batches SET {what} WHERE id = '{}'", batch.id);
    finds(db, &set("user_id = 'ben'"), &[BATCH], &id).await;
    repair(db, &set("user_id = 'ada'")).await;
    finds(db, "UPDATE files SET batch_id = 'none'", &[BATCH], &id).await;
    repair(db, &format!("UPDATE files SET batch_id = '{}'", batch.id)).await;
    finds(db, &set("status = 'completed', ended_at = 1"), &[COMPLETED], &id).await;
    repair(db, &set("status = 'active', ended_at = NULL")).await;
}
