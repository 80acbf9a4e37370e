//! The audit finds damage, and finds nothing after the damage is repaired.

use wharfinger_lifecycle::file::File;

use super::batches::new_batch;
use super::sample::{NOW, POLICY, confirmed, deleted, registered};
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");

/// Files in several states, so that a rule that finds too much fails too.
async fn filled(db: &TestDb) -> File {
    confirmed(&db.catalog, ADA, 20).await;
    deleted(&db.catalog, ADA, 30, &POLICY).await;
    registered(&db.catalog, ("wharf", "ben"), 40).await;
    let file = registered(&db.catalog, ADA, 10).await;
    assert_eq!(db.catalog.audit().await.expect("audited"), Vec::<String>::new());
    file
}

async fn assert_finds(db: &TestDb, damage: &str, rules: &[&str], row: &str) {
    assert!(db.sql(damage).await > 0, "{damage} changed no row");
    let findings = db.catalog.audit().await.expect("audited");
    let expected: Vec<String> = rules.iter().map(|rule| format!("{rule}: {row}")).collect();
    assert_eq!(findings, expected, "after {damage}");
}

async fn repair(db: &TestDb, statement: &str) {
    assert!(db.sql(statement).await > 0, "{statement} changed no row");
    assert_eq!(db.catalog.audit().await.expect("audited"), Vec::<String>::new(), "after {statement}");
}

const CHARGED: &str = "the quota counter of a tenant equals the sum of its files (I2)";
const QUOTA_ROW: &str = "every charged file has a quota row (I2)";
const COUNTERS: &str = "the status counters agree with the files";
const OUTCOMES: &str = "the outcome counters agree with the files of the last day";
const OBJECTS: &str = "every file has its object row, and every object row its file";
const HISTORY: &str = "the last history line of a file has its status (I16)";
const DELETED: &str = "no deleted file has a later status (I16)";
const BATCH: &str = "the batch of a file exists and has the same owner (I11)";
const COMPLETED: &str = "a completed batch has no unconfirmed files";
const NEXT_CHECK: &str = "every file that is not final has a next check (I15)";

pub(super) async fn the_audit_finds_wrong_cleanups(db: &TestDb) {
    let file = filled(db).await;
    let cleanup = format!("UPDATE pending_cleanups SET file_path = '{}'", file.key);
    assert_finds(db, &cleanup, &["no cleanup has the object of a live file (I4)"], file.key.as_str()).await;
    repair(db, "UPDATE pending_cleanups SET file_path = 'uploads/x'").await;
    let queued = "INSERT INTO orphan_blobs (key, size, modified_at, scan_id, found_at, queued_at) \
        VALUES ('uploads/y', 1, 1, 's', 1, 1)";
    assert_finds(db, queued, &["a queued orphan has a cleanup (I6)"], "uploads/y").await;
    repair(db, "UPDATE orphan_blobs SET queued_at = NULL").await;
}

pub(super) async fn the_audit_finds_wrong_quotas(db: &TestDb) {
    filled(db).await;
    let set = |column: &str, by: &str| {
        format!("UPDATE quotas SET {column} = {column} {by} WHERE tenant_id = 'harbour'")
    };
    for by in [("+ 1", "- 1"), ("- 1", "+ 1")] {
        assert_finds(db, &set("used_bytes", by.0), &[CHARGED], "harbour").await;
        repair(db, &set("used_bytes", by.1)).await;
    }
    let unknown = "INSERT INTO quotas (tenant_id, used_bytes) VALUES ('unknown', 7)";
    assert_finds(db, unknown, &[CHARGED], "unknown").await;
    repair(db, "DELETE FROM quotas WHERE tenant_id = 'unknown'").await;

    let alone = registered(&db.catalog, ("pier", "cid"), 5).await;
    assert_finds(db, "DELETE FROM quotas WHERE tenant_id = 'pier'", &[QUOTA_ROW], &alone.id.to_string())
        .await;
    repair(db, "INSERT INTO quotas (tenant_id, used_bytes) VALUES ('pier', 5)").await;
}

pub(super) async fn the_audit_finds_wrong_counters(db: &TestDb) {
    filled(db).await;
    for column in ["files", "charged_bytes"] {
        let set =
            |by: &str| format!("UPDATE file_counts SET {column} = {column} {by} WHERE status = 'ready'");
        assert_finds(db, &set("+ 1"), &[COUNTERS], "harbour").await;
        repair(db, &set("- 1")).await;
    }
    let unknown = "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) \
                   VALUES ('unknown', 'x', 'ready', '', 1, 0)";
    assert_finds(db, unknown, &[COUNTERS], "unknown").await;
    repair(db, "DELETE FROM file_counts WHERE tenant_id = 'unknown'").await;
    assert_finds(db, "DELETE FROM file_counts WHERE tenant_id = 'wharf'", &[COUNTERS], "wharf").await;
    let again = "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) \
                 VALUES ('wharf', 'ben', 'registered', '', 1, 40)";
    repair(db, again).await;
    let set = |by: &str| format!("UPDATE file_outcomes SET files = files {by} WHERE outcome = 'ready'");
    assert_finds(db, &set("+ 1"), &[OUTCOMES], "harbour").await;
    repair(db, &set("- 1")).await;
}

pub(super) async fn the_audit_finds_lost_objects_and_files(db: &TestDb) {
    let file = filled(db).await;
    let id = file.id.to_string();
    assert_finds(db, &format!("DELETE FROM objects WHERE file_id = '{id}'"), &[OBJECTS], &id).await;
    let again = |id: &str, kind: &str| {
        format!(
            "INSERT INTO objects (key, file_id, kind, created_at) VALUES ('{kind}/{id}', '{id}', '{kind}', 0)"
        )
    };
    repair(db, &again(&id, "original")).await;
    repair(db, &again(&id, "derived")).await;
    assert_finds(db, &again("unknown", "original"), &[OBJECTS], "unknown").await;
    repair(db, "DELETE FROM objects WHERE file_id = 'unknown'").await;
}

pub(super) async fn the_audit_finds_impossible_histories(db: &TestDb) {
    let file = filled(db).await;
    let id = file.id.to_string();
    let line = |version: i64, from: &str, to: &str| {
        format!(
            "INSERT INTO file_history (file_id, version, at, from_status, to_status, reason, actor) \
             VALUES ('{id}', {version}, {NOW}, {from}, '{to}', 'by hand', 'unknown')"
        )
    };
    let without =
        |version: i64| format!("DELETE FROM file_history WHERE file_id = '{id}' AND version = {version}");
    assert_finds(db, &line(2, "'registered'", "ready"), &[HISTORY], &id).await;
    repair(db, &without(2)).await;
    assert_finds(db, &line(2, "'deleted'", "registered"), &[DELETED], &id).await;
    repair(db, &without(2)).await;
    assert_finds(db, &without(1), &[HISTORY], &id).await;
    repair(db, &line(1, "NULL", "registered")).await;
}

/// The schema refuses such a row, so the test first disables its constraint.
pub(super) async fn the_audit_finds_files_without_a_next_check(db: &TestDb) {
    let file = filled(db).await;
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
    assert_finds(db, &damage, &[NEXT_CHECK], &id).await;
    repair(db, &set("1")).await;
}

pub(super) async fn the_audit_finds_files_of_wrong_batches(db: &TestDb) {
    let (batch, wanted) = new_batch(("harbour", "ada"), &[10]);
    db.catalog.register(wanted).await.expect("answered");
    let files = db.catalog.batch_files(batch.id, None, 10).await.expect("read");
    let id = files[0].id.to_string();
    let set = |what: &str| format!("UPDATE upload_batches SET {what} WHERE id = '{}'", batch.id);
    assert_finds(db, &set("user_id = 'ben'"), &[BATCH], &id).await;
    repair(db, &set("user_id = 'ada'")).await;
    assert_finds(db, "UPDATE files SET batch_id = 'none'", &[BATCH], &id).await;
    repair(db, &format!("UPDATE files SET batch_id = '{}'", batch.id)).await;
    assert_finds(db, &set("status = 'completed', ended_at = 1"), &[COMPLETED], &id).await;
    repair(db, &set("status = 'active', ended_at = NULL")).await;
}
