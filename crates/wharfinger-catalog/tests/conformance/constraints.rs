//! Constraints of the schema: rows that the database itself refuses.

use super::sample::{NOW, confirmed, new_job, registered};
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");

async fn assert_refused(db: &TestDb, statement: &str) {
    let before = db.dump().await;
    let error = db.try_sql(statement).await.expect_err(statement);
    let database = error.as_database_error().expect("an error of the database, not of the connection");
    assert!(
        database.is_check_violation() || database.is_unique_violation(),
        "{statement} violates no constraint: {error}"
    );
    assert_eq!(db.dump().await, before);
}

/// I15: a file that is not ready or quarantined has a next check.
pub(super) async fn an_unfinished_file_has_a_next_check(db: &TestDb) {
    let id = confirmed(&db.catalog, ADA, 10).await.id;
    for status in ["uploaded", "queued", "scanning", "extracting", "chunking", "embedding", "failed"] {
        assert_refused(db, &format!("UPDATE files SET pipeline_status = '{status}' WHERE id = '{id}'")).await;
    }
    let ended = format!(
        "UPDATE files SET pipeline_status = 'deleted', end_reason = 'deleted', next_check_at = NULL WHERE id = '{id}'"
    );
    assert_refused(db, &ended).await;
    let waiting = registered(&db.catalog, ADA, 10).await.id;
    assert_refused(db, &format!("UPDATE files SET next_check_at = NULL WHERE id = '{waiting}'")).await;
}

pub(super) async fn impossible_file_rows_are_refused(db: &TestDb) {
    let id = registered(&db.catalog, ADA, 10).await.id;
    for wrong in [
        "pipeline_status = 'lost'",
        "pipeline_status = 'Registered'",
        "pipeline_status = 'ready'",
        "pipeline_status = 'deleted'",
        "end_reason = 'deleted'",
        "charged_bytes = -1",
        "size = -1, charged_bytes = 0",
    ] {
        assert_refused(db, &format!("UPDATE files SET {wrong} WHERE id = '{id}'")).await;
    }
}

pub(super) async fn a_key_belongs_to_one_object(db: &TestDb) {
    let file = registered(&db.catalog, ADA, 10).await;
    let (key, id) = (file.key, file.id);
    let values = |key: &str, kind: &str| {
        format!("INSERT INTO objects (key, file_id, kind, created_at) VALUES ('{key}', '{id}', '{kind}', 0)")
    };
    assert_refused(db, &values(key.as_str(), "derived")).await;
    assert_refused(db, &values("derived/x", "other")).await;
    // Keys are compared byte by byte: upper case makes another key.
    db.sql(&values(&key.as_str().to_uppercase(), "derived")).await;
}

pub(super) async fn impossible_quota_rows_are_refused(db: &TestDb) {
    registered(&db.catalog, ADA, 10).await;
    for wrong in ["used_bytes = -1", "owner = 'memcached'"] {
        assert_refused(db, &format!("UPDATE quotas SET {wrong}")).await;
    }
}

pub(super) async fn a_leased_job_has_a_lease_end_and_a_deadline(db: &TestDb) {
    db.catalog.enqueue(vec![new_job("a", NOW)], NOW).await.expect("enqueued");
    for wrong in [
        "state = 'leased'",
        "state = 'leased', lease_until = 1",
        "state = 'leased', deadline_at = 1",
        "state = 'lost'",
    ] {
        assert_refused(db, &format!("UPDATE jobs SET {wrong}")).await;
    }
}

pub(super) async fn a_version_has_one_history_line(db: &TestDb) {
    let id = registered(&db.catalog, ADA, 10).await.id;
    assert_refused(
        db,
        &format!(
            "INSERT INTO file_history (file_id, version, at, to_status, reason, actor) \
             VALUES ('{id}', 1, 0, 'ready', 'by hand', 'unknown')"
        ),
    )
    .await;
}
