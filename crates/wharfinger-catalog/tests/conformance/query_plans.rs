//! Query plans for tables of a million rows: no statement of a loop, a list or a write scans a large table.

use std::cell::RefCell;
use std::collections::BTreeSet;

use wharfinger_calls::faults::{Fault, Faults};
use wharfinger_catalog::{
    AbandonedRule, Catalog, Claimable, Destination, FailedStatus, Scope, StageClaim, StageEndContext,
};
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;

use super::every_read;
use super::sample::{CHECKS, HOUR, LIMIT, NOW, claim, confirmed, registered, tenant, user};
use super::stages::{self, plan, queued};
use super::test_db::TestDb;

/// Tables that grow with files, tenants or events.
const LARGE: [&str; 16] = [
    "files",
    "objects",
    "file_history",
    "file_counts",
    "jobs",
    "pending_cleanups",
    "deletion_log",
    "outbox",
    "notifications",
    "chunks",
    "text_parts",
    "stage_outputs",
    "idempotency_keys",
    "upload_batches",
    "queue_tenants",
    "service_keys",
];

/// Statements that scan a table by design: how they begin, and the reason.
pub(super) type AllowedScans = [(&'static str, &'static str)];

/// Reads that scan a table by design.
const ALLOWED_SCANS: [(&str, &str); 2] = [
    ("SELECT status, stage, CAST(SUM(files)", "adds up one counter of each user"),
    ("SELECT CAST(COALESCE(SUM(changes + 1), 0)", "adds up one counter of each user"),
];

/// Statements that scan a large table, with their plans.
pub(super) async fn full_scans(db: &TestDb, statements: Vec<String>, allowed: &AllowedScans) -> Vec<String> {
    for (begins, why) in allowed {
        assert!(
            statements.iter().any(|sent| sent.starts_with(begins)),
            "no statement begins with {begins} ({why})"
        );
    }
    let is_allowed = |statement: &str| allowed.iter().any(|(begins, _)| statement.starts_with(begins));
    let wanted = statements.into_iter().filter(|statement| {
        let verb = statement.split_whitespace().next().unwrap_or_default();
        matches!(verb, "SELECT" | "WITH" | "UPDATE" | "DELETE") && !is_allowed(statement)
    });
    let (mut scans, wanted) = (Vec::new(), wanted.collect::<Vec<_>>());
    let count = wanted.len();
    let plans = db.plans_for_a_million_rows(wanted).await;
    assert!(plans.len() * 10 >= count * 8, "{} of {count} statements have plans", plans.len());
    for (statement, plan) in plans {
        let reads_all = |line: &String| {
            LARGE.iter().any(|table| {
                line.contains(&format!("Seq Scan on {table} "))
                    || line.trim_end().ends_with(&format!("Seq Scan on {table}"))
                    || line.trim() == format!("SCAN {table}")
                    || line.starts_with(&format!("SCAN {table} ")) && !line.contains("INDEX")
            })
        };
        if plan.iter().any(reads_all) {
            scans.push(format!("{statement}\n    {}", plan.join("\n    ")));
        }
    }
    scans
}

/// Rows of each kind in the backlog.
const BACKLOG: usize = 20_000;

/// Statements that fill the tables as on a busy day: many rows wait, and more are done or not due.
fn backlog(db: &TestDb) -> Vec<String> {
    let id = |kind: usize| match db.is_postgres() {
        true => format!("'018f4e6e-7f3a-7000-800{kind}-' || lpad(to_hex(n), 12, '0')"),
        false => format!("printf('018f4e6e-7f3a-7000-800{kind}-%012x', n)"),
    };
    let numbers = match db.is_postgres() {
        true => format!("SELECT n FROM generate_series(1, {BACKLOG}) AS n"),
        false => format!(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {BACKLOG}) \
             SELECT n FROM numbers"
        ),
    };
    let mut statements = vec![format!("CREATE TABLE numbers AS {numbers}")];
    let (past, later) = (NOW - HOUR, NOW + 1_000 * HOUR);
    let statuses = ["queued", "scanning", "registered", "ready", "failed", "deleted", "quarantined"];
    for (kind, status) in statuses.into_iter().enumerate() {
        let ended = if status == "deleted" { "'owner'" } else { "NULL" };
        let quarantine = if status == "quarantined" { "'infected'" } else { "NULL" };
        statements.push(format!(
            "INSERT INTO files (id, tenant_id, user_id, file_name, size, blob_path, pipeline_status, version, \
             charged_bytes, retry_count, etag, end_reason, url_dead_at, next_check_at, created_at, updated_at, confirmed_at, \
             ready_at, failed_at, stages, stage, quarantine) \
             SELECT {id}, 'crowd', 'u', 'report.pdf', 1, 'uploads/crowd/u/{kind}' || n, \
             '{status}', 3, 0, 0, 'e', {ended}, 1, {later}, 1, {past}, 1, {past}, {past}, 'scan', 'scan', {quarantine} FROM numbers",
            id = id(kind),
        ));
    }
    let leased = format!("'o', {later}, {later}");
    let jobs = [
        (0, "file-scan", "waiting", past, "NULL, NULL, NULL", 0),
        (1, "file-scan", "leased", past, leased.as_str(), 0),
        (2, "file-scan", "waiting", later, "NULL, NULL, NULL", 0),
        (3, "file-scan", "waiting", later, "NULL, NULL, NULL", 1),
        (4, "file-scan", "dead", past, "NULL, NULL, NULL", 0),
        (5, CHECKS, "waiting", past, "NULL, NULL, NULL", 0),
        (6, CHECKS, "waiting", later, "NULL, NULL, NULL", 0),
    ];
    for (kind, queue, state, run_at, lease, lost) in jobs {
        statements.push(format!(
            "INSERT INTO jobs (id, queue, tenant_id, file_id, state, run_at, attempts, max_attempts, lease_token, \
             lease_owner, lease_until, deadline_at, lost_leases, created_at, updated_at) \
             SELECT {job}, '{queue}', 'crowd', {file}, '{state}', {run_at}, 0, 5, 0, {lease}, {lost}, 1, 1 FROM numbers",
            job = id(kind),
            file = id(kind % statuses.len()),
        ));
    }
    for (kind, at, exhausted) in [(0, past, 0), (1, later, 0), (2, later, 1)] {
        statements.push(format!(
            "INSERT INTO pending_cleanups (id, file_path, storage_type, reason, tenant_id, document_id, size, attempts, \
             max_attempts, created_at, next_attempt_at, finish_at, exhausted, lease_token, lease_until) \
             SELECT {id}, 'uploads/crowd/u/' || n, 'disk', 'deleted', 'crowd', {file}, 1, 0, 3, 1, {at}, {at}, {exhausted}, 0, 0 \
             FROM numbers",
            id = id(kind),
            file = id(5),
        ));
    }
    for (kind, destination) in ["quota", "broker", "webhook", "slack", "archive"].into_iter().enumerate() {
        for (due, at) in [(0, past), (1, later)] {
            statements.push(format!(
                "INSERT INTO outbox (id, destination, tenant_id, bytes, epoch, job_id, due_at, notification_id, subject, \
                 place, message, attempts, created_at, next_attempt_at) SELECT '{due}' || {id}, '{destination}', 'crowd', 1, 0, \
                 'j', 1, {id}, 's' || n, 1, '{{}}', 0, 1, {at} FROM numbers",
                id = id(kind),
            ));
        }
    }
    for (kind, at) in [(0, past), (1, later)] {
        statements.push(format!(
            "INSERT INTO deletion_log (id, key, objects, size, reason, tenant_id, file_id, deleted_at) \
             SELECT {id}, 'uploads/crowd/u/' || n, 1, 1, 'deleted', 'crowd', {id}, {at} FROM numbers",
            id = id(kind)
        ));
    }
    statements.push(format!(
        "INSERT INTO notifications (id, tenant_id, user_id, kind, message, data, created_at) \
         SELECT {}, 'crowd', 'u', 'file-ready', 'm', '{{}}', 1 FROM numbers",
        id(0)
    ));
    for (kind, status, ended) in [(0, "active", "NULL"), (1, "completed", "1")] {
        statements.push(format!(
            "INSERT INTO upload_batches (id, tenant_id, user_id, status, version, created_at, expires_at, ended_at) \
             SELECT {}, 'crowd', 'u', '{status}', 1, 1, {later}, {ended} FROM numbers",
            id(kind)
        ));
    }
    statements
}

/// The cost of each call in steps of SQLite.
pub(super) struct Meter {
    faults: Faults,
    /// PostgreSQL measures only the sum of all calls. Calls of `BOUNDED` are skipped there.
    pub(super) skips_bounded: bool,
    costs: RefCell<Vec<(&'static str, u64)>>,
}

impl Meter {
    pub(super) fn new(faults: Faults) -> Meter {
        Meter { faults, skips_bounded: false, costs: RefCell::default() }
    }

    /// Records the cost of the call that has just ended.
    pub(super) fn record(&self, call: &'static str) {
        let before: u64 = self.costs.borrow().iter().map(|(_, steps)| steps).sum();
        self.costs.borrow_mut().push((call, self.faults.steps() - before));
    }
}

impl Meter {
    /// The names of all calls that were measured.
    pub(super) fn calls(&self) -> BTreeSet<&'static str> {
        self.costs.borrow().iter().map(|(call, _)| *call).collect()
    }
}

/// What the reads of loops and lists cost: steps of SQLite for each call, and rows of PostgreSQL in total.
async fn read_costs(db: &TestDb) -> Vec<(&'static str, u64)> {
    let faults = Faults::counting_steps();
    let catalog = db.with_faults(faults.clone()).await;
    let before = rows_read(db).await;
    let meter = Meter { skips_bounded: db.is_postgres(), ..Meter::new(faults) };
    loops(&catalog, &meter).await;
    let scopes = [Scope::All, Scope::Tenant(tenant("crowd")), Scope::User(tenant("crowd"), user("u"))];
    lists(&catalog, &scopes, &meter).await;
    every_read::lookups(&catalog, &scopes, &meter).await;
    // PostgreSQL counts the reads of a session when it ends.
    catalog.close().await;
    let mut costs = meter.costs.into_inner();
    costs.push(("all", rows_read(db).await - before));
    costs
}

/// Rows that PostgreSQL has read so far, in tables and in indexes.
pub(super) async fn rows_read(db: &TestDb) -> u64 {
    if !db.is_postgres() {
        return 0;
    }
    let sql = "SELECT CAST((SELECT COALESCE(SUM(idx_tup_read), 0) FROM pg_stat_user_indexes) \
               + (SELECT COALESCE(SUM(seq_tup_read), 0) FROM pg_stat_user_tables) AS TEXT)";
    db.texts(sql).await.remove(0).parse().expect("a number")
}

/// Calls that may read more rows when there are more, and why.
const BOUNDED: [(&str, &str); 8] = [
    ("outbox_depth", "counts up to COUNTED_MAX"),
    ("count_active_batches", "counts up to COUNTED_MAX"),
    ("count_stuck", "counts up to COUNTED_MAX"),
    ("count_abandoned", "counts up to COUNTED_MAX"),
    ("cleanup_counts", "counts up to COUNTED_MAX"),
    ("due_cleanups", "counts up to COUNTED_MAX"),
    ("figures", "counts stuck files and active batches up to COUNTED_MAX"),
    ("candidates", "a search reads the vectors of its scope and has its own limit"),
];

/// A plan with an index may still read the whole index, so this test has real rows. Reading all rows of one kind costs
/// one row each on PostgreSQL, and at least four steps each on SQLite.
pub(super) async fn no_call_costs_more_with_a_large_backlog(db: &TestDb) {
    queued(db, &[Stage::Scan]).await;
    registered(&db.catalog, ("harbour", "ada"), 10).await;
    if db.is_postgres() {
        // PostgreSQL would scan tables of this size, but not tables of a million rows.
        let name = db.texts("SELECT current_database()").await.remove(0);
        db.sql(&format!("ALTER DATABASE {name} SET enable_seqscan = off")).await;
    }
    let small = read_costs(db).await;
    db.sql(&backlog(db).join("; ")).await;
    db.sql("ANALYZE").await;
    // First all due jobs get a rank. On PostgreSQL that takes many batches and leaves many dead rows.
    for _ in 0..2 {
        read_costs(db).await;
    }
    db.sql(if db.is_postgres() { "VACUUM" } else { "ANALYZE" }).await;
    let large = read_costs(db).await;
    let much = BACKLOG as u64 * if db.is_postgres() { 1 } else { 3 };
    let costlier: Vec<String> = small
        .iter()
        .zip(&large)
        .filter(|((call, before), (_, with_backlog))| {
            *with_backlog > before + much && !BOUNDED.iter().any(|(bounded, _)| bounded == call)
        })
        .map(|((call, before), (_, with_backlog))| {
            format!("{call}: {before} before, {with_backlog} with a backlog")
        })
        .collect();
    assert_eq!(costlier, Vec::<String>::new());
    // The rows would fail the audit.
    for table in LARGE.into_iter().chain(["quotas", "numbers"]) {
        db.sql(&format!("DELETE FROM {table}")).await;
    }
}

/// The reads of loops and lists; `every_write` has the writes.
pub(super) async fn no_read_scans_a_large_table(db: &TestDb) {
    let faults = Faults::at(0, Fault::Fail);
    let catalog = db.with_faults(faults.clone()).await;
    queued(db, &[Stage::Scan]).await;
    confirmed(&db.catalog, ("harbour", "ada"), 10).await;
    registered(&db.catalog, ("harbour", "ada"), 10).await;
    let meter = Meter::new(faults.clone());
    loops(&catalog, &meter).await;
    let scopes = [Scope::All, Scope::Tenant(tenant("harbour")), Scope::User(tenant("harbour"), user("ada"))];
    lists(&catalog, &scopes, &meter).await;
    every_read::lookups(&catalog, &scopes, &meter).await;
    every_read::assert_all_are_measured(&meter.calls());
    let scans = full_scans(db, faults.statements(), &ALLOWED_SCANS).await;
    assert!(scans.is_empty(), "{}", scans.join("\n\n"));
}

async fn loops(catalog: &Catalog, meter: &Meter) {
    let now = NOW + HOUR;
    for of in [
        Claimable::Suspects,
        Claimable::LastChance,
        Claimable::UntriedExcept(vec![tenant("quay")]),
        Claimable::Untried,
    ] {
        let claim = StageClaim { of, ..stages::claim(Stage::Scan, 1, now) };
        catalog.claim_stage(claim).await.expect("claimed");
        meter.record("claim_stage");
    }
    catalog.next_job_at(&["file-scan", "file-extract"]).await.expect("read");
    meter.record("next_job_at");
    catalog.has_last_chance(&[Stage::Scan], now).await.expect("read");
    meter.record("has_last_chance");
    catalog.expired_stage_jobs(now + HOUR, None, 10).await.expect("read");
    meter.record("expired_stage_jobs");
    let by = StageEndContext { actor: "a", plan: &plan(), now };
    catalog.end_expired_stage_jobs(Vec::new(), by, now).await.expect("answered");
    meter.record("end_expired_stage_jobs");
    catalog.claim_jobs(claim(10, now)).await.expect("claimed");
    meter.record("claim_jobs");
    catalog.claim_cleanups(&Scope::All, now, 10, 1).await.expect("claimed");
    meter.record("claim_cleanups");
    let of_tenant = Scope::Tenant(TenantId::new("harbour").expect("a tenant"));
    catalog.claim_cleanups(&of_tenant, now, 10, 1).await.expect("claimed");
    meter.record("claim_cleanups of a tenant");
    catalog.next_cleanup_at().await.expect("read");
    meter.record("next_cleanup_at");
    for destination in Destination::ALL {
        catalog.claim_outbox(destination, 10, now, now + HOUR).await.expect("claimed");
        meter.record("claim_outbox");
        catalog.next_outbox_at(destination).await.expect("read");
        meter.record("next_outbox_at");
        if !meter.skips_bounded {
            catalog.outbox_depth(destination).await.expect("read");
            meter.record("outbox_depth");
        }
    }
    for status in [Status::Registered, Status::Deleted] {
        catalog.files_to_check(status, now, None, 10).await.expect("read");
        meter.record("files_to_check");
    }
    let abandoned = AbandonedRule { unchanged_since: now, now, min_rate_bytes: 1 };
    catalog.abandoned_uploads(abandoned, None, 10).await.expect("read");
    meter.record("abandoned_uploads");
    for status in [FailedStatus::Failed, FailedStatus::Quarantined] {
        catalog.files_failed_by(status, now, None, 10).await.expect("read");
        meter.record("files_failed_by");
    }
    catalog.overdue_batches(now, None, 10).await.expect("read");
    meter.record("overdue_batches");
    catalog.tenants("", 10).await.expect("read");
    meter.record("tenants");
    catalog.object_rows("uploads/", "uploads0", 10).await.expect("read");
    meter.record("object_rows");
}

async fn lists(catalog: &Catalog, scopes: &[Scope], meter: &Meter) {
    let now = NOW + HOUR;
    for scope in scopes {
        catalog.files(scope, None, 10).await.expect("read");
        meter.record("files");
        catalog.dead_letters(scope, None, 10).await.expect("read");
        meter.record("dead_letters");
        catalog.pending_cleanups(scope, None, 10).await.expect("read");
        meter.record("pending_cleanups");
        catalog.deletions(scope, NOW, None, 10).await.expect("read");
        meter.record("deletions");
        catalog.stuck_files(scope, (now, now), None, 10).await.expect("read");
        meter.record("stuck_files");
        catalog.status_counts(scope).await.expect("read");
        meter.record("status_counts");
        catalog.trend(scope, now).await.expect("read");
        meter.record("trend");
        catalog.orphans(scope, 3).await.expect("read");
        meter.record("orphans");
        catalog.missing_blobs(scope, 3).await.expect("read");
        meter.record("missing_blobs");
        if meter.skips_bounded {
            continue;
        }
        catalog.count_active_batches(scope).await.expect("read");
        meter.record("count_active_batches");
        let mut candidates = catalog.candidates(scope.clone(), ["model", "other"], &[1.0, 0.0], 5);
        while candidates.next_page().await.expect("read").is_some() {}
        meter.record("candidates");
    }
    let quiet = Scope::Tenant(tenant("without deletes"));
    catalog.deletions(&quiet, 0, None, 10).await.expect("read");
    meter.record("deletions of a quiet tenant");
    catalog.notifications(&tenant("harbour"), &user("ada"), None, 10).await.expect("read");
    meter.record("notifications");
    catalog.quotas("", 10, LIMIT).await.expect("read");
    meter.record("quotas");
}
