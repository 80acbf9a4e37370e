//! How statements are carried out on tables of a million rows: none that a loop, a list or a write sends reads a large table
//! from one end to the other.

use wharfinger_backends::catalog::{Abandoned, Catalog, Claimable, Destination, EndBy, Scope, StageClaim};
use wharfinger_backends::faults::{Fault, Faults};
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;

use super::sample::{HOUR, LIMIT, NOW, claim, confirmed, registered, tenant, user};
use super::site::Site;
use super::stages::{self, plan, queued};

/// Tables that grow with files, tenants or events.
const LARGE: [&str; 15] = [
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
];

/// Statements that look through a table by design, by how they begin, with the reason.
const MEANT: [(&str, &str); 6] = [
    ("SELECT COUNT(*) AS pending", "counts for an operator, at most every few seconds"),
    ("SELECT status, stage, CAST(SUM(files)", "adds up one counter of each user"),
    ("SELECT CAST(COALESCE(SUM(changes), 0)", "adds up one counter of each user"),
    ("SELECT table_name, COUNT(*)", "of few rows"),
    ("DELETE FROM outbox WHERE destination", "a destination that is switched off is emptied"),
    ("UPDATE files SET failed_at", "at a start, and only where none is dated"),
];

fn is_meant(statement: &str) -> bool {
    MEANT.iter().any(|(begins, _)| statement.starts_with(begins))
}

/// Statements that read a large table from one end to the other, with their plans.
pub(super) async fn slow(site: &Site, statements: Vec<String>) -> Vec<String> {
    let wanted = statements.into_iter().filter(|statement| {
        let verb = statement.split_whitespace().next().unwrap_or_default();
        matches!(verb, "SELECT" | "WITH" | "UPDATE" | "DELETE") && !is_meant(statement)
    });
    let (mut slow, wanted) = (Vec::new(), wanted.collect::<Vec<_>>());
    let count = wanted.len();
    let plans = site.plans_of_a_million(wanted).await;
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
            slow.push(format!("{statement}\n    {}", plan.join("\n    ")));
        }
    }
    slow
}

/// What loops and lists read; what they write is in `every_write`.
pub(super) async fn no_read_looks_through_a_large_table(site: &Site) {
    let faults = Faults::at(0, Fault::Fail);
    let catalog = site.faulty(faults.clone()).await;
    let file = queued(site, &[Stage::Scan]).await;
    confirmed(&site.catalog, ("harbour", "ada"), 10).await;
    registered(&site.catalog, ("harbour", "ada"), 10).await;
    loops(&catalog).await;
    lists(
        &catalog,
        &[Scope::All, Scope::Tenant(tenant("harbour")), Scope::User(tenant("harbour"), user("ada"))],
    )
    .await;
    catalog.history(file.id).await.expect("read");
    let slow = slow(site, faults.statements()).await;
    assert!(slow.is_empty(), "{}", slow.join("\n\n"));
}

async fn loops(catalog: &Catalog) {
    let now = NOW + HOUR;
    for of in [
        Claimable::Suspects,
        Claimable::LastChance,
        Claimable::UntriedOfOthers(vec![tenant("quay")]),
        Claimable::Untried,
    ] {
        let claim = StageClaim { of, ..stages::claim(Stage::Scan, 1, now) };
        catalog.claim_stage(claim).await.expect("claimed");
    }
    catalog.next_job_at(&["file-scan", "file-extract"]).await.expect("read");
    catalog.has_last_chance(&[Stage::Scan], now).await.expect("read");
    catalog.lost_stages(now + HOUR, None, 10).await.expect("read");
    let by = EndBy { actor: "a", plan: &plan(), now };
    catalog.take_back_stages(Vec::new(), by, now).await.expect("answered");
    catalog.claim_jobs(claim(10, now)).await.expect("claimed");
    catalog.claim_cleanups(now, 10, 1).await.expect("claimed");
    let of_tenant = Scope::Tenant(TenantId::new("harbour").expect("a tenant"));
    catalog.claim_cleanups_of(&of_tenant, now, 10, 1).await.expect("claimed");
    catalog.next_cleanup_at().await.expect("read");
    for destination in Destination::ALL {
        catalog.claim_outbox(destination, 10, now, now + HOUR).await.expect("claimed");
        catalog.next_outbox_at(destination).await.expect("read");
        catalog.outbox_depth(destination).await.expect("read");
    }
    for status in [Status::Registered, Status::Deleted] {
        catalog.files_to_look_at(status, now, None, 10).await.expect("read");
    }
    let abandoned = Abandoned { quiet_since: now, now, min_rate_bytes: 1 };
    catalog.files_abandoned(abandoned, None, 10).await.expect("read");
    catalog.files_failed_by(now, None, 10).await.expect("read");
    catalog.overdue_batches(now, None, 10).await.expect("read");
    catalog.tenants("", 10).await.expect("read");
    catalog.object_rows("uploads/", "uploads0", 10).await.expect("read");
}

async fn lists(catalog: &Catalog, scopes: &[Scope]) {
    let now = NOW + HOUR;
    for scope in scopes {
        catalog.files(scope, None, 10).await.expect("read");
        catalog.dead_letters(scope, None, 10).await.expect("read");
        catalog.pending_cleanups(scope, None, 10).await.expect("read");
        catalog.stuck_files(scope, (now, now), None, 10).await.expect("read");
        catalog.status_counts(scope).await.expect("read");
        catalog.count_active_batches(scope).await.expect("read");
        catalog.trend(scope, now).await.expect("read");
        catalog.orphans(scope, 3).await.expect("read");
        catalog.missing_blobs(scope, 3).await.expect("read");
        let mut candidates = catalog.candidates(scope.clone(), &[1.0, 0.0], 5);
        while candidates.next_page().await.expect("read").is_some() {}
    }
    catalog.notifications(&tenant("harbour"), &user("ada"), None, 10).await.expect("read");
    catalog.quotas("", 10, LIMIT).await.expect("read");
}
