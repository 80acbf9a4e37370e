//! Unreadable rows: each is skipped and listed, and all other rows are processed.

use wharfinger_catalog::{AbandonedRule, Destination, FailedStatus, Scope, StageEndContext, fresh_id};
use wharfinger_lifecycle::id::{BatchId, FileId, JobId};
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, CompletionResult, StageOutput};
use wharfinger_lifecycle::state::Status;

use super::sample::{
    HOUR, NOW, REFUSING, SECOND, claim, confirmed, deleted, new_job, registered, tenant, user,
};
use super::stages::{self, end, plan, queued};
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");
const LATER: i64 = NOW + 10 * SECOND;

async fn listed(db: &TestDb) -> Vec<(String, String)> {
    let rows = db.catalog.unreadable_rows(100).await.expect("read");
    assert!(rows.iter().all(|row| !row.error.is_empty()));
    rows.into_iter().map(|row| (row.table, row.id)).collect()
}

/// Writes a value that this version does not know, as a newer version might.
async fn damage(db: &TestDb, file: FileId) {
    db.sql(&format!("UPDATE files SET stage = 'unheard-of' WHERE id = '{file}'")).await;
}

pub(super) async fn unreadable_rows_do_not_stop_a_stage(db: &TestDb) {
    let (file, job) = (queued(db, &[Stage::Scan]).await, queued(db, &[Stage::Scan]).await);
    let sound = queued(db, &[Stage::Scan]).await;
    damage(db, file.id).await;
    db.sql(&format!("UPDATE jobs SET tenant_id = '' WHERE file_id = '{}'", job.id)).await;
    db.sql(&format!("UPDATE jobs SET id = 'no id' WHERE file_id = '{}'", job.id)).await;
    let held = db.catalog.claim_stage(stages::claim(Stage::Scan, 10, LATER)).await.expect("claimed");
    assert_eq!(held.iter().map(|held| held.file.id).collect::<Vec<_>>(), [sound.id]);
    let unreadable = [("files".to_owned(), file.id.to_string()), ("jobs".to_owned(), "no id".to_owned())];
    assert_eq!(listed(db).await, unreadable);
    // They do not delay later files.
    let next = queued(db, &[Stage::Scan]).await;
    let more = db.catalog.claim_stage(stages::claim(Stage::Scan, 1, LATER)).await.expect("claimed");
    assert_eq!(more.iter().map(|held| held.file.id).collect::<Vec<_>>(), [next.id]);

    // A file that is damaged while it is leased cannot end its stage. The others can.
    damage(db, next.id).await;
    let ends = held
        .iter()
        .chain(&more)
        .map(|held| end(held, AttemptOutcome::Done(StageOutput::default())))
        .collect();
    let by = StageEndContext { actor: "worker:a", plan: &plan(), now: LATER };
    let ended = db.catalog.end_stages(ends, by).await.expect("answered");
    assert_eq!(ended, [CompletionResult::Ready, CompletionResult::LeaseLost]);
    let lost = db.catalog.expired_stage_jobs(LATER + HOUR, None, 10).await.expect("read");
    let by = StageEndContext { actor: "recovery", plan: &plan(), now: LATER + HOUR };
    let jobs = lost.into_iter().map(|(_, job)| job).collect();
    assert_eq!(db.catalog.end_expired_stage_jobs(jobs, by, LATER + HOUR).await.expect("answered"), []);

    // After a repair the file continues and has spent no attempt.
    db.sql(&format!("UPDATE files SET stage = 'scan' WHERE id = '{}'", file.id)).await;
    let held =
        db.catalog.claim_stage(stages::claim(Stage::Scan, 10, LATER + 2 * HOUR)).await.expect("claimed");
    assert_eq!(held.iter().map(|held| (held.file.id, held.job.attempt)).collect::<Vec<_>>(), [(file.id, 1)]);
    db.sql("UPDATE files SET stage = 'scan' WHERE stage = 'unheard-of'").await;
}

pub(super) async fn unreadable_rows_do_not_stop_checks_and_cleanups(db: &TestDb) {
    let ids = db.catalog.enqueue(vec![new_job("a", NOW), new_job("a", NOW)], NOW).await.expect("enqueued");
    db.sql(&format!("UPDATE jobs SET file_id = 'no id' WHERE id = '{}'", ids[0])).await;
    let claimed = db.catalog.claim_jobs(claim(10, NOW)).await.expect("claimed");
    assert_eq!(claimed.iter().map(|job| job.id).collect::<Vec<_>>(), [ids[1]]);
    let these = db.catalog.claim_jobs_by_id(claim(10, NOW + 2 * HOUR), vec![ids[0]]).await.expect("claimed");
    assert_eq!(these, [], "it is found and skipped again");

    for _ in 0..2 {
        deleted(&db.catalog, ADA, 10, &REFUSING).await;
    }
    let first = db.texts("SELECT MIN(id) FROM pending_cleanups").await.remove(0);
    db.sql(&format!("UPDATE pending_cleanups SET file_path = '../etc' WHERE id = '{first}'")).await;
    let cleanups = db.catalog.claim_cleanups(&Scope::All, NOW + HOUR, 10, HOUR).await.expect("claimed");
    assert_eq!(cleanups.len(), 1);
    let unreadable = [("jobs".to_owned(), ids[0].to_string()), ("pending_cleanups".to_owned(), first)];
    assert_eq!(listed(db).await, unreadable);
    assert_eq!(db.catalog.pending_cleanups(&Scope::All, None, 10).await.expect("read").len(), 2);
}

/// The first line of the queue is unreadable, and a claim has a limit of one.
pub(super) async fn unreadable_lines_do_not_stop_the_outbox(db: &TestDb) {
    let catalog = db.with_all_targets().await;
    for _ in 0..3 {
        confirmed(&catalog, ADA, 10).await;
    }
    for destination in [Destination::Webhook, Destination::Archive] {
        let name = destination.as_str();
        let first =
            db.texts(&format!("SELECT MIN(id) FROM outbox WHERE destination = '{name}'")).await.remove(0);
        db.sql(&format!("UPDATE outbox SET tenant_id = '' WHERE id = '{first}'")).await;
        let claim = async || {
            catalog.claim_outbox(destination, 1, NOW + HOUR, NOW + 2 * HOUR).await.expect("claimed").len()
        };
        let (mut lines, mut tries) = (0, 0);
        while lines == 0 && tries < 3 {
            lines = claim().await;
            tries += 1;
        }
        assert_eq!(lines, 1, "{name}: a later line is claimed");
        assert!(listed(db).await.contains(&("outbox".to_owned(), first)), "{name}");
    }
}

pub(super) async fn unreadable_rows_do_not_stop_lists_and_sweeps(db: &TestDb) {
    let (bad, good) = (queued(db, &[Stage::Scan]).await, queued(db, &[Stage::Scan]).await);
    damage(db, bad.id).await;
    let files = db.catalog.files(&Scope::Tenant(tenant("harbour")), None, 1).await.expect("read");
    assert_eq!(files.iter().map(|file| file.id).collect::<Vec<_>>(), [good.id]);
    let both = db.catalog.files(&Scope::All, None, 10).await.expect("read");
    assert_eq!(both.len(), 1);
    assert_eq!(listed(db).await, [("files".to_owned(), bad.id.to_string())]);
    db.sql(&format!("UPDATE files SET stage = 'scan', text_status = 'some' WHERE id = '{}'", bad.id)).await;
    assert_eq!(
        db.catalog.files(&Scope::All, None, 10).await.expect("read").len(),
        1,
        "text_status is read too"
    );
    db.sql(&format!("UPDATE files SET text_status = NULL WHERE id = '{}'", bad.id)).await;
    damage(db, bad.id).await;

    let late = NOW + 1_000 * HOUR;
    let stuck = db.catalog.stuck_files(&Scope::All, (late, late), None, 10).await.expect("read");
    assert_eq!(stuck.len(), 2, "the list does not need the damaged column");
    let waiting = registered(&db.catalog, ADA, 10).await;
    db.sql(&format!("UPDATE files SET id = 'no id' WHERE id = '{}'", waiting.id)).await;
    let other = registered(&db.catalog, ADA, 10).await;
    let due = db.catalog.files_to_check(Status::Registered, late, None, 10).await.expect("read");
    assert_eq!(due.iter().map(|(_, id)| *id).collect::<Vec<_>>(), [other.id]);
    let abandoned = AbandonedRule { unchanged_since: late, now: late, min_rate_bytes: 1 };
    let found = db.catalog.abandoned_uploads(abandoned, None, 10).await.expect("read");
    assert_eq!(found.iter().map(|(_, id)| *id).collect::<Vec<_>>(), [other.id]);

    db.sql("INSERT INTO quotas (tenant_id, used_bytes) VALUES ('', 0)").await;
    assert!(!db.catalog.quotas("", 10, 1).await.expect("read").is_empty());
    db.sql(
        "INSERT INTO notifications (id, tenant_id, user_id, kind, message, data, created_at) \
        VALUES ('no id', 'harbour', 'ada', 'k', 'm', '{}', 0)",
    )
    .await;
    db.catalog.notifications(&tenant("harbour"), &user("ada"), None, 10).await.expect("read");

    db.sql(&format!("UPDATE files SET id = '{}' WHERE id = 'no id'", waiting.id)).await;
    db.sql(&format!("UPDATE files SET stage = 'scan' WHERE id = '{}'", bad.id)).await;
}

/// A page of unreadable rows is not taken for the last page.
pub(super) async fn rows_after_a_page_of_unreadable_rows_are_found(db: &TestDb) {
    let good = registered(&db.catalog, ADA, 10).await;
    let batch = BatchId(fresh_id(NOW));
    db.sql(&format!("UPDATE files SET batch_id = '{batch}', next_check_at = 2, url_dead_at = 1, created_at = 1, updated_at = 1")).await;
    let numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30)";
    let (failed, stuck) = (FileId(fresh_id(NOW)), FileId(fresh_id(NOW)));
    // The unreadable rows come first.
    let bad = |of: &str| format!("'!{of}' || CAST(i AS TEXT)");
    let rows = [
        ("registered", bad("r"), 1),
        ("failed", bad("f"), 1),
        ("queued", bad("q"), 1),
        ("failed", format!("'{failed}'"), 2),
        ("queued", format!("'{stuck}'"), 2),
    ];
    for (status, id, at) in rows {
        let (of, batch) = match at {
            1 => ("n", format!("'{batch}'")),
            _ => ("n WHERE i = 1", "NULL".to_owned()),
        };
        db.sql(&format!(
            "{numbers} INSERT INTO files (id, tenant_id, user_id, file_name, size, blob_path, pipeline_status, version, \
             charged_bytes, retry_count, etag, url_dead_at, next_check_at, created_at, updated_at, failed_at, stages, stage, \
             batch_id) SELECT {id}, 'harbour', 'ada', 'f', 1, {id}, '{status}', 1, 0, 0, 'e', 1, {at}, 1, 1, {at}, 'scan', \
             'scan', {batch} FROM {of}"
        ))
        .await;
    }
    for (id, at, of) in [(bad("j"), 1, "n"), (format!("'{good}'", good = good.id), 2, "n WHERE i = 1")] {
        db.sql(&format!(
            "{numbers} INSERT INTO jobs (id, queue, tenant_id, state, run_at, attempts, max_attempts, lease_token, \
             lease_owner, lease_until, deadline_at, lost_leases, created_at, updated_at) SELECT {id}, 'file-scan', \
             'harbour', 'leased', 1, 1, 3, 1, 'o', {at}, {at}, 0, 1, 1 FROM {of}"
        ))
        .await;
        db.sql(&format!(
            "{numbers} INSERT INTO upload_batches (id, tenant_id, user_id, status, version, created_at, expires_at) \
             SELECT {id}, 'harbour', 'ada', 'active', 1, 1, {at} FROM {of}"
        ))
        .await;
    }
    let tenants =
        "SELECT '!' || CAST(i AS TEXT) || '\n', 0, 'redis' FROM n UNION ALL SELECT 'quay', 0, 'redis'";
    db.sql(&format!("{numbers} INSERT INTO quotas (tenant_id, used_bytes, owner) {tenants}")).await;

    let catalog = &db.catalog;
    for status in [Status::Registered, Status::Queued] {
        let due = catalog.files_to_check(status, NOW, None, 1).await.expect("read");
        assert_eq!(due, [(2, if status == Status::Queued { stuck } else { good.id })]);
    }
    let abandoned = AbandonedRule { unchanged_since: NOW, now: NOW, min_rate_bytes: 1 };
    assert_eq!(catalog.abandoned_uploads(abandoned, None, 1).await.expect("read"), [(2, good.id)]);
    assert_eq!(
        catalog.files_failed_by(FailedStatus::Failed, NOW, None, 1).await.expect("read"),
        [(2, failed)]
    );
    let overdue = catalog.stuck_files(&Scope::All, (NOW, NOW), None, 1).await.expect("read");
    assert_eq!(overdue.iter().map(|file| file.cursor.file).collect::<Vec<_>>(), [stuck]);
    assert_eq!(catalog.overdue_batches(NOW, None, 1).await.expect("read"), [(2, BatchId(good.id.0))]);
    let of_batch = catalog.batch_files(batch, None, 1).await.expect("read");
    assert_eq!(of_batch.iter().map(|file| file.id).collect::<Vec<_>>(), [good.id]);
    assert_eq!(catalog.expired_stage_jobs(NOW, None, 1).await.expect("read"), [(2, JobId(good.id.0))]);
    assert_eq!(catalog.tenants("", 1).await.expect("read"), [tenant("harbour")]);
    assert_eq!(catalog.tenants_in_redis("", 1).await.expect("read"), [tenant("quay")]);
    // The rows would fail the audit.
    for table in ["files", "jobs", "upload_batches", "quotas", "file_counts", "objects", "file_history"] {
        db.sql(&format!("DELETE FROM {table}")).await;
    }
}

pub(super) async fn rows_that_are_readable_again_leave_the_list(db: &TestDb) {
    let (one, other) = (queued(db, &[Stage::Scan]).await, queued(db, &[Stage::Scan]).await);
    damage(db, one.id).await;
    damage(db, other.id).await;
    db.catalog.files(&Scope::All, None, 10).await.expect("read");
    assert_eq!(db.catalog.count_unreadable().await.expect("read"), [("files".to_owned(), 2)].into());
    db.sql(&format!("UPDATE files SET stage = 'scan' WHERE id = '{}'", one.id)).await;
    // Readable jobs that are listed as unreadable.
    db.sql("INSERT INTO unreadable_rows (table_name, row_id, error) SELECT 'jobs', id, 'x' FROM jobs").await;
    assert_eq!(db.catalog.recheck_unreadable().await.expect("checked"), 1);
    assert_eq!(listed(db).await, [("files".to_owned(), other.id.to_string())]);
    // Text parts and chunks are listed by the id of their file and checked together.
    let texts = "INSERT INTO text_parts (file_id, part, key, etag, bytes) VALUES ('x', 0, '../x', 'e', 1)";
    db.sql(texts).await;
    db.sql("INSERT INTO chunks (file_id, ordinal, text, start_char, end_char) VALUES ('x', -1, 't', 0, 1)")
        .await;
    db.sql("INSERT INTO unreadable_rows (table_name, row_id, error) VALUES ('text_parts', 'x', 'e'), ('chunks', 'x', 'e')")
        .await;
    assert_eq!(db.catalog.recheck_unreadable().await.expect("checked"), 3);
    db.sql("DELETE FROM text_parts").await;
    db.sql(&format!("UPDATE chunks SET ordinal = 0, file_id = '{}'", one.id)).await;
    db.sql(&format!("UPDATE unreadable_rows SET row_id = '{}' WHERE table_name = 'chunks'", one.id)).await;
    assert_eq!(db.catalog.recheck_unreadable().await.expect("checked"), 1);
    db.sql("DELETE FROM chunks").await;
    let gone = format!("UPDATE files SET id = 'elsewhere' WHERE id = '{}'", other.id);
    db.sql(&gone).await;
    assert_eq!(db.catalog.recheck_unreadable().await.expect("checked"), 0);
    assert_eq!(listed(db).await, []);
    let back = format!("UPDATE files SET id = '{}', stage = 'scan' WHERE id = 'elsewhere'", other.id);
    db.sql(&back).await;
}
