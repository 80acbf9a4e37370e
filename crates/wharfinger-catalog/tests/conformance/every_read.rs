//! The reads of the catalog outside of loops and lists: figures and lookups by a key. The list of reads comes from the
//! sources, so that a new read that is not measured fails the test in `query_plans`.

use std::collections::BTreeSet;

use wharfinger_catalog::{AbandonedRule, Catalog, Scope, fresh_id};
use wharfinger_lifecycle::id::{BatchId, FileId, JobId};
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::stage::Stage;

use super::query_plans::Meter;
use super::sample::{HOUR, LIMIT, NOW, file_of, registration, tenant, user, with_key};
use super::source_files::source_files;

/// Calls that need no measurement here, and why.
const NOT_MEASURED: [(&str, &str); 16] = [
    ("open", "called at the start"),
    ("open_with_timeout", "called at the start"),
    ("close", "called at the end"),
    ("migrate", "a migration may read all rows"),
    ("missing_indexes", "reads the database's own tables"),
    ("check_may_migrate", "reads the database's own tables"),
    ("foreign_tables", "reads the database's own tables"),
    ("schema_step", "reads one row"),
    ("pgvector", "reads the database's own tables"),
    ("vectors_to_copy", "only `doctor` calls it, and it has its own index"),
    ("ping", "reads no table"),
    ("server_time", "reads no table"),
    ("next_page", "measured as `candidates`"),
    ("audit", "measured with `audit_with`"),
    ("audit_with", "reads all rows by design; `audit_costs` measures it"),
    ("rank_due", "writes, through `rank_queue`"),
];

/// All public calls of the sources that do not call `write`.
fn reads_of_the_sources() -> BTreeSet<String> {
    let mut reads = BTreeSet::new();
    for (_, text) in source_files() {
        for call in text.split("\n    pub async fn ").skip(1) {
            let body = call.split("\n    }\n").next().unwrap_or(call);
            let name = body.split(['(', '<']).next().unwrap_or(body);
            if !body.contains("self.write(") {
                reads.insert(name.to_owned());
            }
        }
    }
    reads
}

/// Each read is measured, or named in `NOT_MEASURED` with the reason.
pub(super) fn assert_all_are_measured(measured: &BTreeSet<&'static str>) {
    let elsewhere: BTreeSet<&str> = NOT_MEASURED.iter().map(|(call, _)| *call).collect();
    let reads = reads_of_the_sources();
    let left_out: Vec<&String> = reads
        .iter()
        .filter(|call| !measured.contains(call.as_str()) && !elsewhere.contains(call.as_str()))
        .collect();
    assert!(left_out.is_empty(), "not measured: {left_out:?}");
    let gone: Vec<&&str> = elsewhere.iter().filter(|call| !reads.contains(**call)).collect();
    assert!(gone.is_empty(), "no longer in the sources: {gone:?}");
}

/// Figures of each scope, and lookups by ids.
pub(super) async fn lookups(catalog: &Catalog, scopes: &[Scope], meter: &Meter) {
    if !meter.skips_bounded {
        counts(catalog, scopes, meter).await;
    }
    for scope in scopes {
        catalog.files_revision(scope).await.expect("read");
        meter.record("files_revision");
        catalog.dead_letter(scope, JobId(fresh_id(NOW))).await.expect("read");
        meter.record("dead_letter");
    }
    by_id(catalog, meter).await;
    of_tenants(catalog, meter).await;
    catalog.waiting_stages(&Stage::ALL, NOW).await.expect("read");
    meter.record("waiting_stages");
    catalog.sweeps().await.expect("read");
    meter.record("sweeps");
    catalog.sweep_ended_at("quota-sync").await.expect("read");
    meter.record("sweep_ended_at");
    catalog.sweep_runs("quota-sync", None, 10).await.expect("read");
    meter.record("sweep_runs");
    catalog.unreadable_rows(10).await.expect("read");
    meter.record("unreadable_rows");
    catalog.count_unreadable().await.expect("read");
    meter.record("count_unreadable");
    catalog.service_key("none").await.expect("read");
    meter.record("service_key");
    catalog.service_keys(None, 10).await.expect("read");
    meter.record("service_keys");
    for of in [None, Some(&tenant("harbour"))] {
        catalog.audit_log(of, None, 10).await.expect("read");
        meter.record("audit_log");
    }
    catalog.fact("lease_key").await.expect("read");
    meter.record("fact");
    catalog.unfinished_scan().await.expect("read");
    meter.record("unfinished_scan");
    catalog.last_scan_at().await.expect("read");
    meter.record("last_scan_at");
    catalog.found_keys("scan", 10).await.expect("read");
    meter.record("found_keys");
    catalog.orphan_cleanup_counts("scan").await.expect("read");
    meter.record("orphan_cleanup_counts");
    catalog.sample_keys().await.expect("read");
    meter.record("sample_keys");
}

/// Counts, which read more rows when there are more, up to a bound.
async fn counts(catalog: &Catalog, scopes: &[Scope], meter: &Meter) {
    let now = NOW + HOUR;
    for scope in scopes {
        catalog.count_stuck(scope, now).await.expect("read");
        meter.record("count_stuck");
        let abandoned = AbandonedRule { unchanged_since: now, now, min_rate_bytes: 1 };
        catalog.count_abandoned(scope, abandoned).await.expect("read");
        meter.record("count_abandoned");
        catalog.cleanup_counts(scope).await.expect("read");
        meter.record("cleanup_counts");
        catalog.figures(scope, now, now).await.expect("read");
        meter.record("figures");
    }
    catalog.due_cleanups(now).await.expect("read");
    meter.record("due_cleanups");
}

async fn by_id(catalog: &Catalog, meter: &Meter) {
    let (file, job, batch) = (FileId(fresh_id(NOW)), JobId(fresh_id(NOW)), BatchId(fresh_id(NOW)));
    let key = ObjectKey::parse("uploads/harbour/ada/none").expect("a key");
    catalog.file(file).await.expect("read");
    meter.record("file");
    catalog.files_by_id(&[file]).await.expect("read");
    meter.record("files_by_id");
    catalog.history(file).await.expect("read");
    meter.record("history");
    catalog.text_parts(file).await.expect("read");
    meter.record("text_parts");
    catalog.stage_outputs(&[file]).await.expect("read");
    meter.record("stage_outputs");
    catalog.chunks(file, 0, 10).await.expect("read");
    meter.record("chunks");
    catalog.chunks_to_embed(file, "model", 0, 10).await.expect("read");
    meter.record("chunks_to_embed");
    catalog.chunk_count(file).await.expect("read");
    meter.record("chunk_count");
    catalog.chunk_bytes(file, "model").await.expect("read");
    meter.record("chunk_bytes");
    catalog.leased_stage_job(job, 1).await.expect("read");
    meter.record("leased_stage_job");
    catalog.waiting_checks(&[job]).await.expect("read");
    meter.record("waiting_checks");
    catalog.batch(batch).await.expect("read");
    meter.record("batch");
    catalog.batch_files(batch, None, 10).await.expect("read");
    meter.record("batch_files");
    catalog.has_object(&key).await.expect("read");
    meter.record("has_object");
    catalog.upload_id(&key).await.expect("read");
    meter.record("upload_id");
    catalog.keys_with_cleanup(&[key.as_str()]).await.expect("read");
    meter.record("keys_with_cleanup");
    catalog.notifications_by_id(&[fresh_id(NOW)]).await.expect("read");
    meter.record("notifications_by_id");
    let registration = with_key(registration(("harbour", "ada"), 10), "a key", "a fingerprint");
    let idempotency_key = registration.idempotency_key.as_ref().expect("its key");
    let owner = (&file_of(&registration).tenant, &file_of(&registration).user);
    catalog.key_answer(owner, idempotency_key, NOW).await.expect("read");
    meter.record("key_answer");
}

async fn of_tenants(catalog: &Catalog, meter: &Meter) {
    let crowd = tenant("crowd");
    catalog.quota_state(&crowd).await.expect("read");
    meter.record("quota_state");
    catalog.tombstone_count(&crowd).await.expect("read");
    meter.record("tombstone_count");
    catalog.tenants_in_redis("", 10).await.expect("read");
    meter.record("tenants_in_redis");
    catalog.quota(&crowd, LIMIT).await.expect("read");
    meter.record("quota");
    catalog.quota_drift(&crowd).await.expect("read");
    meter.record("quota_drift");
    catalog.tenant_policy(&crowd).await.expect("read");
    meter.record("tenant_policy");
    catalog.notifications(&crowd, &user("u"), None, 10).await.expect("read");
    meter.record("notifications");
}
