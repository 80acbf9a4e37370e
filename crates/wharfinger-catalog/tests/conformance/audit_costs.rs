//! The cost of an audit: it reads all rows, and its cost grows with their number.

use wharfinger_calls::faults::Faults;

use super::query_plans::rows_read;
use super::sample::NOW;
use super::test_db::TestDb;

/// Files of each kind in the first run.
const FEW: usize = 250;
/// Four times the rows may cost a little more than four times as much, because indexes get deeper.
const COST_FACTOR_MAX: u64 = 6;

/// Statements that insert sound files of each kind with all their rows, because an audit that finds something stops
/// there. `kind` is a digit of the id, and `n` is the number of the file.
fn sound_files(db: &TestDb, from: usize, to: usize) -> Vec<String> {
    let numbers = format!(
        "WITH RECURSIVE numbers (n) AS (SELECT {} UNION ALL SELECT n + 1 FROM numbers WHERE n < {to})",
        from + 1
    );
    let id = |kind: usize| match db.is_postgres() {
        true => format!("'018f4e6e-7f3a-7000-800{kind}-' || lpad(to_hex(n), 12, '0')"),
        false => format!("printf('018f4e6e-7f3a-7000-800{kind}-%012x', n)"),
    };
    let kinds = [
        ("queued", "'scan'", "scan", "waiting", "NULL"),
        ("failed", "'scan'", "scan", "dead", "NULL"),
        ("ready", "NULL", "", "", "NULL"),
        ("deleted", "NULL", "", "", "'owner'"),
    ];
    let mut statements = Vec::new();
    for (kind, (status, stage, counted_stage, job, end)) in kinds.into_iter().enumerate() {
        let (file, batch) = (id(kind), id(kind + 4));
        let rows = [
            format!(
                "INSERT INTO files (id, tenant_id, user_id, batch_id, file_name, size, blob_path, pipeline_status, version, \
                 charged_bytes, retry_count, etag, end_reason, url_dead_at, next_check_at, created_at, updated_at, failed_at, \
                 stages, stage) SELECT {file}, 'crowd', 'u', {batch}, 'f', 1, 'uploads/crowd/u/{kind}' || n, '{status}', 2, \
                 0, 0, 'e', {end}, 1, {NOW}, 1, 1, 1, 'scan', {stage} FROM numbers"
            ),
            format!(
                "INSERT INTO upload_batches (id, tenant_id, user_id, status, version, created_at, expires_at, ended_at) \
                 SELECT {batch}, 'crowd', 'u', 'completed', 1, 1, 1, 1 FROM numbers"
            ),
            format!(
                "INSERT INTO objects (key, file_id, kind, created_at) SELECT 'uploads/crowd/u/{kind}' || n, {file}, \
                 'original', 1 FROM numbers"
            ),
            format!(
                "INSERT INTO file_history (file_id, version, at, from_status, to_status, reason, actor) \
                 SELECT {file}, 1, 1, NULL, 'registered', 'r', 'a' FROM numbers"
            ),
            format!(
                "INSERT INTO file_history (file_id, version, at, from_status, to_status, reason, actor) \
                 SELECT {file}, 2, 1, 'registered', '{status}', 'r', 'a' FROM numbers"
            ),
        ];
        statements.extend(rows);
        if !job.is_empty() {
            statements.push(format!(
                "INSERT INTO jobs (id, queue, tenant_id, file_id, state, run_at, attempts, max_attempts, lease_token, \
                 lost_leases, created_at, updated_at) SELECT {file}, 'file-scan', 'crowd', {file}, '{job}', 1, 0, 5, 0, 0, 1, \
                 1 FROM numbers"
            ));
        }
        if status == "ready" {
            statements.push(format!(
                "INSERT INTO chunks (file_id, ordinal, text, start_char, end_char) SELECT {file}, 0, 't', 0, 1 FROM numbers"
            ));
            statements.push(format!(
                "INSERT INTO text_parts (file_id, part, key, etag, bytes) SELECT {file}, 0, 'derived/' || n, 'e', 1 \
                 FROM numbers"
            ));
        }
        if status == "deleted" {
            statements.push(format!(
                "INSERT INTO pending_cleanups (id, file_path, storage_type, reason, tenant_id, document_id, size, attempts, \
                 max_attempts, created_at, next_attempt_at, finish_at, exhausted, lease_token, lease_until) SELECT {file}, \
                 'uploads/crowd/u/{kind}' || n, 'disk', 'deleted', 'crowd', {file}, 1, 0, 3, 1, 1, 1, 0, 0, 0 FROM numbers"
            ));
        }
        statements.push(format!(
            "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) SELECT 'crowd', 'u', \
             '{status}', '{counted_stage}', COUNT(*), 0 FROM numbers WHERE n > 0 \
             ON CONFLICT (tenant_id, user_id, status, stage) DO UPDATE SET files = file_counts.files + excluded.files"
        ));
    }
    statements.into_iter().map(|statement| format!("{numbers} {statement}")).collect()
}

/// Steps of SQLite, or rows that PostgreSQL reads.
async fn cost(db: &TestDb) -> u64 {
    let faults = Faults::counting_steps();
    let catalog = db.with_faults(faults.clone()).await;
    let before = rows_read(db).await;
    assert_eq!(catalog.audit().await.expect("audited"), Vec::<String>::new());
    // PostgreSQL counts the reads of a session when it ends.
    catalog.close().await;
    if db.is_postgres() { rows_read(db).await - before } else { faults.steps() }
}

pub(super) async fn the_cost_of_an_audit_grows_linearly(db: &TestDb) {
    db.sql("INSERT INTO quotas (tenant_id, used_bytes) VALUES ('crowd', 0)").await;
    let mut costs = Vec::new();
    for (from, to) in [(0, FEW), (FEW, 4 * FEW)] {
        db.sql(&sound_files(db, from, to).join("; ")).await;
        db.sql("ANALYZE").await;
        costs.push(cost(db).await);
    }
    assert!(costs[0] > FEW as u64, "{costs:?}");
    assert!(costs[1] <= COST_FACTOR_MAX * costs[0], "{costs:?}");
}
