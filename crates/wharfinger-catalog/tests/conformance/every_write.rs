//! Every write of the catalog, failed at each of its statements and at its commit. After each failure the database is
//! unchanged, and in the end the same call succeeds. The list of writes is read from the sources, so that a new write
//! without a call here fails the test.

use std::collections::BTreeSet;

use wharfinger_calls::faults::{Fault, Faults};
use wharfinger_catalog::{
    AbortedUpload, BatchEnding, Catalog, ChunkRow, ChunkVector, CleanupOutcome, Destination, LeasedStageJob,
    MoveQuota, NewJob, QuotaOwner, Recovery, RedriveOutcome, Registration, Scope, StageEndContext,
};
use wharfinger_lifecycle::file::{self, File, late_write_cleanup};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::processing::PipelinePlan;
use wharfinger_lifecycle::quarantine::QuarantineCause;
use wharfinger_lifecycle::recovery::RecoveryTrigger;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, StageOutput, TextPart};
use wharfinger_lifecycle::state::Status;
use wharfinger_lifecycle::tenant_policy::TenantPolicyChange;

use super::audit_log;
use super::batches::new_batch;
use super::failing_catalog::{FailingCatalog, short};
use super::query_plans::full_scans;
use super::sample::{
    CHECKS, HOUR, LIMIT, NOW, POLICY, REFUSING, SECOND, URL_DEAD_AT, WORK, claim, committed, confirm,
    deleted, file_of, new_job, pin, quarantined, registered, registration, tenant, with_key,
};
use super::searching::{embedded, some_vectors};
use super::source_files::source_files;
use super::sweep_writes::{orphan_scans, sweeps};
use super::test_db::{TestDb, dump_at, open};
use super::{service_keys, stages};

const ADA: (&str, &str) = ("harbour", "ada");
const LATER: i64 = NOW + 10 * SECOND;
const DAY: i64 = 24 * HOUR;
const LEASE: i64 = 60 * SECOND;
/// No write makes as many calls as this.
pub(super) const CALLS_MAX: u64 = 500;
/// Writes that happen only with pgvector.
const PGVECTOR_WRITES: [&str; 2] = ["pgvector::AddColumn", "vector_copies::CopyVectors"];

/// Writes that scan a table by design.
const ALLOWED_SCANS: [(&str, &str); 1] =
    [("DELETE FROM outbox WHERE destination", "empties a destination that is no longer configured")];

/// All types of the sources that implement `Write`.
fn writes_of_the_sources() -> BTreeSet<String> {
    let mut writes = BTreeSet::new();
    for (path, text) in source_files() {
        let Some(module) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        let types = text.lines().filter_map(|line| line.strip_prefix("impl Write for ")?.strip_suffix(" {"));
        writes.extend(types.map(|name| format!("{module}::{name}")));
    }
    writes
}

pub(super) async fn a_failed_write_changes_nothing(db: &TestDb) {
    let mut failing = FailingCatalog::new(db).await;
    registrations(&mut failing).await;
    changes(&mut failing).await;
    jobs(&mut failing).await;
    pipeline(&mut failing).await;
    cleanups(&mut failing).await;
    outbox(&mut failing).await;
    quotas_and_facts(&mut failing).await;
    sweeps(&mut failing).await;
    orphan_scans(&mut failing).await;
    service_keys::fail_writes(&mut failing).await;
    audit_log::fail_writes(&mut failing).await;
    purging(&mut failing).await;
    let scans = full_scans(db, failing.statements(), &ALLOWED_SCANS).await;
    assert!(scans.is_empty(), "{}", scans.join("\n\n"));
    let mut written = failing.written;
    // SQLite does this write in the claim. On PostgreSQL `fail_each_call` fails it after the claim.
    written.insert("fair::RaiseVirtualTime".into());
    // The other tests of this file fail these writes.
    written.extend(["schema::ApplyStep", "schema::AddIndexes"].map(String::from));
    written.extend(PGVECTOR_WRITES.map(String::from));
    assert_eq!(written, writes_of_the_sources());
}

/// The same for a migration of an empty database.
pub(super) async fn a_failed_migration_leaves_no_partial_step(db: &TestDb) {
    let url = db.empty_database();
    let faults = Faults::at(0, Fault::Fail);
    let catalog = open(&url, faults.clone()).await;
    let empty = dump_at(&url).await;
    for n in 1..CALLS_MAX {
        faults.rearm_at(n, Fault::Fail);
        let outcome = catalog.migrate(NOW).await;
        match outcome {
            Ok(steps) => {
                assert!(!steps.is_empty() && n > 50, "{n} calls for the steps {steps:?}");
                return;
            }
            Err(_) => {
                let left = dump_at(&url).await;
                // The step may be committed although a later call failed. The next migration continues from there.
                if left != empty {
                    let whole = db.dump().await;
                    assert!(left.keys().eq(whole.keys()), "a failure at call {n} left a partial step");
                    faults.rearm_at(0, Fault::Fail);
                    assert_eq!(catalog.migrate(NOW).await.expect("migrated"), Vec::<i64>::new());
                    assert!(n > 50, "{n} calls");
                    return;
                }
            }
        }
    }
    panic!("the migration did not succeed after {CALLS_MAX} calls");
}

/// The same for writes that happen only with pgvector.
pub(super) async fn a_failed_write_of_pgvector_changes_nothing(db: &TestDb) {
    db.sql("ALTER TABLE chunks DROP COLUMN embedding").await;
    embedded(&db.another_handle().await, ADA, &some_vectors(3, 4)).await;
    let faults = Faults::at(0, Fault::Fail);
    let catalog = db.with_faults(faults.clone()).await;
    let mut written = BTreeSet::new();
    let columns =
        "SELECT CAST(COUNT(*) AS TEXT) FROM information_schema.columns WHERE column_name = 'embedding'";
    let before = db.texts(columns).await;
    // A migration succeeds although it cannot prepare pgvector.
    for n in 1..CALLS_MAX {
        faults.rearm_at(n, Fault::Fail);
        let _ = catalog.migrate(NOW).await;
        let Some(call) = faults.hit() else { break };
        let Some(write) = faults.last_write().map(short) else { continue };
        // After the column is added, only the index can fail.
        if write == PGVECTOR_WRITES[0] && !catalog.has_pgvector() {
            assert_eq!(db.texts(columns).await, before, "{write} failed at call {n}, {call}");
        }
        written.insert(write);
    }
    assert!(catalog.has_pgvector());
    let copied = "SELECT CAST(COUNT(embedding) AS TEXT) FROM chunks";
    for n in 1..CALLS_MAX {
        faults.rearm_at(n, Fault::Fail);
        let outcome = catalog.copy_vectors(None).await;
        let Some(call) = faults.hit() else {
            outcome.expect("copied").expect("a place to continue from");
            break;
        };
        assert_eq!(db.texts(copied).await, ["0"], "failed at call {n}, {call}");
        written.insert(short(faults.last_write().expect("a write has begun")));
    }
    assert_eq!(db.texts(copied).await, ["3"]);
    assert!(PGVECTOR_WRITES.iter().all(|write| written.contains(*write)), "{written:?}");
}

async fn registrations(failing: &mut FailingCatalog<'_>) {
    let mut wanted = with_key(registration(ADA, 10), "key", "body");
    wanted.by_broker = true;
    failing.fail_each_call(async |catalog| catalog.register(wanted.clone()).await).await;
    let (batch, wanted) = new_batch(ADA, &[10, 20]);
    let files: Vec<File> = wanted.files.iter().map(|new| new.file.clone()).collect();
    let wanted = Registration { by_broker: true, ..with_key(wanted, "batch", "body") };
    failing.fail_each_call(async |catalog| catalog.register(wanted.clone()).await).await;

    let set = async |catalog: &Catalog| catalog.set_upload_id(&files[0].key, None, "upload".into()).await;
    assert!(failing.fail_each_call(set).await);
    let fresh = || files.iter().map(|file| file::reissue(file, &POLICY, NOW + HOUR).expect("registered"));
    let raised =
        failing.fail_each_call(async |catalog| catalog.commit_all(fresh().collect(), "clerk").await).await;
    assert_eq!(raised.len(), 2);
    let expire = async |catalog: &Catalog| {
        catalog.end_batch(batch.id, BatchEnding::Expired, "sweep", batch.expires_at).await
    };
    failing.fail_each_call(expire).await;
}

async fn changes(failing: &mut FailingCatalog<'_>) {
    let catalog = failing.db.catalog.clone();
    let waiting = registered(&catalog, ADA, 10).await;
    let ready = confirm(&waiting);
    failing.fail_each_call(async |catalog| catalog.commit(ready.clone(), "clerk").await).await;
    let changed = quarantined(&ready.after, "changed", LATER);
    failing.fail_each_call(async |catalog| catalog.commit(changed.clone(), "clerk").await).await;
    let gone = file::delete(&changed.after, &REFUSING, LATER).expect("deletable");
    failing.fail_each_call(async |catalog| catalog.commit(gone.clone(), "clerk").await).await;
    let late = registered(&catalog, ADA, 10).await;
    let reclaimed = file::reclaim(&late, "late", &POLICY, URL_DEAD_AT).expect("reclaimable");
    failing.fail_each_call(async |catalog| catalog.commit(reclaimed.clone(), "clerk").await).await;
    let postponed =
        file::reissue(&registered(&catalog, ADA, 10).await, &POLICY, NOW + HOUR).expect("registered");
    failing.fail_each_call(async |catalog| catalog.commit(postponed.clone(), "clerk").await).await;

    let mut ends = Vec::new();
    for owner in [ADA, ("quay", "ben"), ADA] {
        let file = registered(&catalog, owner, 10).await;
        ends.push(file::reclaim(&file, "late", &POLICY, URL_DEAD_AT).expect("reclaimable"));
    }
    let ended = failing.fail_each_call(async |catalog| catalog.commit_all(ends.clone(), "sweep").await).await;
    assert_eq!(ended.len(), 3);
}

async fn jobs(failing: &mut FailingCatalog<'_>) {
    let new = || (0..6).map(|n| new_job(if n < 3 { "a" } else { "b" }, NOW)).collect::<Vec<NewJob>>();
    let ids = failing.fail_each_call(async |catalog| catalog.enqueue(new(), NOW).await).await;
    let two = async |catalog: &Catalog| catalog.claim_jobs(claim(2, NOW)).await;
    let held = failing.fail_each_call(two).await;
    failing.fail_each_call(two).await;
    let these = async |catalog: &Catalog| catalog.claim_jobs_by_id(claim(6, NOW), ids.clone()).await;
    assert_eq!(failing.fail_each_call(these).await.len(), 2);
    let [first, second] = held.as_slice() else { panic!("{held:?}") };
    let beat =
        async |catalog: &Catalog| catalog.heartbeat_job(first.id, first.token, LEASE, NOW + SECOND).await;
    failing.fail_each_call(beat).await;
    let fail = async |catalog: &Catalog| {
        catalog.fail_job(second.id, second.token, "no", Some(NOW + HOUR), NOW + SECOND).await
    };
    failing.fail_each_call(fail).await;
    let done = vec![(first.id, first.token)];
    failing.fail_each_call(async |catalog| catalog.complete_jobs(done.clone()).await).await;
    let late = NOW + HOUR;
    let end_expired = async |catalog: &Catalog| catalog.end_expired_jobs(WORK, late, late, 10).await;
    assert_eq!(failing.fail_each_call(end_expired).await.len(), 4);
}

fn by(plan: &PipelinePlan, now: i64) -> StageEndContext<'_> {
    StageEndContext { actor: "worker:a", plan, now }
}

fn by_recovery(plan: &PipelinePlan, now: i64) -> StageEndContext<'_> {
    StageEndContext { actor: "recovery", plan, now }
}

/// A file with text, chunks and vectors, each outcome of a stage, expired leases, recoveries and dead letters.
async fn pipeline(failing: &mut FailingCatalog<'_>) {
    let db = failing.db;
    let plan = stages::plan();
    for _ in 0..10 {
        stages::queued(db, &[Stage::Extract, Stage::Embed]).await;
    }
    let see = async |catalog: &Catalog| catalog.see_stage_workers(&[Stage::Scan, Stage::Extract], NOW).await;
    failing.fail_each_call(see).await;
    let take = stages::claim(Stage::Extract, 10, NOW + SECOND);
    let rank = async |catalog: &Catalog| catalog.rank_due(Stage::Extract, NOW + SECOND).await;
    assert_eq!(failing.fail_each_call(rank).await, 10);
    let claim_stage =
        async |catalog: &Catalog| catalog.claim_stage(take.clone()).await.map_err(|failed| failed.error);
    let held = failing.fail_each_call(claim_stage).await;
    assert_eq!(held.len(), 10);

    // A claim whose answer was lost.
    let lost = stages::queued(db, &[Stage::Chunk]).await;
    let mut lost_claim =
        db.catalog.claim_stage(stages::claim(Stage::Chunk, 1, NOW + SECOND)).await.expect("claimed");
    assert_eq!(lost_claim.pop().map(|held| held.file.id), Some(lost.id));
    let claim_id = db.texts("SELECT claim_id FROM jobs WHERE queue = 'file-chunk'").await.remove(0);
    let release =
        async |catalog: &Catalog| catalog.release_claim(&claim_id, by_recovery(&plan, NOW + SECOND)).await;
    assert_eq!(failing.fail_each_call(release).await, 1);
    let chunked =
        db.catalog.claim_stage(stages::claim(Stage::Chunk, 1, NOW + SECOND)).await.expect("claimed");
    let ends =
        chunked.iter().map(|held| stages::end(held, AttemptOutcome::Done(StageOutput::default()))).collect();
    db.catalog.end_stages(ends, by(&plan, NOW + SECOND)).await.expect("ended");

    let lease = |held: &LeasedStageJob| (held.job.id, held.job.token);
    let (job, token) = lease(&held[0]);
    let begin = async |catalog: &Catalog| catalog.begin_storing_output(job, token, NOW + HOUR).await;
    assert!(failing.fail_each_call(begin).await);
    let file = &held[0].file;
    let key = ObjectKey::text_part(&file.key, job, token, 0);
    let keys = vec![key.clone()];
    let add = async |catalog: &Catalog| {
        catalog.add_derived_objects((job, token), file.id, keys.clone(), LATER).await
    };
    assert!(failing.fail_each_call(add).await);
    let text = vec![TextPart { key, pin: pin(), bytes: 4 }];
    let output = StageOutput { details: Some("{}".into()), text: Some(text) };
    let nothing = StageOutput { text: Some(Vec::new()), ..output.clone() };
    let ends = [
        AttemptOutcome::Done(output),
        AttemptOutcome::Retry { why: "busy".into(), at: LATER + HOUR },
        AttemptOutcome::Postponed { why: "away".into(), at: LATER + HOUR },
        AttemptOutcome::Failed { why: "unreadable".into() },
        AttemptOutcome::Quarantined { cause: QuarantineCause::Infected, why: "infected".into() },
        AttemptOutcome::Released,
        AttemptOutcome::Unsupported { why: "a picture".into(), output: nothing },
        AttemptOutcome::Failed { why: "encrypted".into() },
        AttemptOutcome::Failed { why: "corrupted".into() },
    ];
    let ends: Vec<_> = held.iter().zip(ends).map(|(held, how)| stages::end(held, how)).collect();
    let end = async |catalog: &Catalog| catalog.end_stages(ends.clone(), by(&plan, LATER)).await;
    assert_eq!(failing.fail_each_call(end).await.len(), 9);

    let embed = stages::claimed(db, Stage::Embed, LATER).await;
    let chunks = |text: &str| vec![ChunkRow { ordinal: 0, text: text.into(), start: 0, end: 4 }];
    let put = async |catalog: &Catalog| {
        catalog.put_chunks(lease(&embed), embed.file.id, chunks("text"), true).await
    };
    assert!(failing.fail_each_call(put).await);
    let vectors = vec![ChunkVector { ordinal: 0, vector: vec![1.0, 2.0] }];
    let set = async |catalog: &Catalog| {
        catalog.set_vectors(lease(&embed), embed.file.id, vectors.clone(), "model").await
    };
    assert!(failing.fail_each_call(set).await);
    let ready = vec![stages::end(&embed, stages::done())];
    failing.fail_each_call(async |catalog| catalog.end_stages(ready.clone(), by(&plan, LATER)).await).await;

    let late = LATER + HOUR;
    let lost = vec![held[9].job.id];
    let end_expired =
        async |catalog: &Catalog| catalog.end_expired_stage_jobs(lost.clone(), by(&plan, late), late).await;
    assert_eq!(failing.fail_each_call(end_expired).await.len(), 1);
    recoveries(failing).await;
    let letter = db.catalog.dead_letters(&Scope::All, None, 10).await.expect("read").remove(0);
    let redrive =
        async |catalog: &Catalog| catalog.redrive(letter.clone(), "operator", &plan, None, late).await;
    assert_eq!(failing.fail_each_call(redrive).await, RedriveOutcome::Done(Status::Queued));
    let letters = async || db.catalog.dead_letters(&Scope::All, None, 10).await.expect("read");
    for (configured, status) in [(vec![Stage::Embed], Status::Queued), (vec![], Status::Ready)] {
        let letter =
            letters().await.into_iter().find(|letter| letter.stage == Stage::Extract).expect("a letter");
        let later = PipelinePlan { stages: configured, ..plan.clone() };
        let redrive =
            async |catalog: &Catalog| catalog.redrive(letter.clone(), "operator", &later, None, late).await;
        assert_eq!(failing.fail_each_call(redrive).await, RedriveOutcome::Done(status));
    }
    let letter = letters().await.remove(0);
    let discard = async |catalog: &Catalog| catalog.discard(letter.clone(), "operator", late).await;
    assert!(failing.fail_each_call(discard).await);
    // A ready file with all outputs of its stages.
    let whole = db.catalog.file(embed.file.id).await.expect("read").expect("it is there");
    let gone = file::delete(&whole, &REFUSING, late).expect("deletable");
    failing.fail_each_call(async |catalog| catalog.commit(gone.clone(), "clerk").await).await;
}

/// One file fails and one is queued again in the same transaction.
async fn recoveries(failing: &mut FailingCatalog<'_>) {
    let db = failing.db;
    let files = [
        stages::queued(db, &[Stage::Scan]).await.id,
        stages::queued(db, &[Stage::Scan]).await.id,
        stages::queued(db, &[Stage::Scan]).await.id,
    ];
    let held = db.catalog.claim_stage(stages::claim(Stage::Scan, 3, NOW + SECOND)).await.expect("claimed");
    assert_eq!(held.len(), 3);
    db.sql(&format!("UPDATE files SET retry_count = 1 WHERE id = '{}'", files[0])).await;
    let plan = PipelinePlan { stuck_retries_max: 1, ..stages::plan() };
    let recovery = Recovery {
        files: files[..2].to_vec(),
        trigger: RecoveryTrigger::Overdue,
        actor: "recovery".into(),
        plan,
        now: NOW + HOUR,
    };
    failing.fail_each_call(async |catalog| catalog.recover(recovery.clone()).await).await;
    let scheduled = held.iter().find(|held| held.file.id == files[2]).expect("it was claimed");
    let retry = AttemptOutcome::Retry { why: "busy".into(), at: LATER + DAY };
    stages::ended(db, scheduled, retry, LATER).await;
    let id: FileId = files[2];
    failing.fail_each_call(async |catalog| catalog.make_due_now(id, LATER).await).await;
}

async fn cleanups(failing: &mut FailingCatalog<'_>) {
    let catalog = failing.db.catalog.clone();
    for policy in [&REFUSING, &POLICY, &POLICY, &POLICY] {
        deleted(&catalog, ADA, 10, policy).await;
    }
    let now = LATER + DAY;
    // On PostgreSQL ranks are written in their own transactions before the claim.
    assert_eq!(catalog.claim_cleanups(&Scope::All, now, 0, LEASE).await.expect("ranked"), []);
    let claims = failing
        .fail_each_call(async |catalog| catalog.claim_cleanups(&Scope::All, now, 100, LEASE).await)
        .await;
    let retry_at = now + HOUR;
    let outcomes = [
        CleanupOutcome::Deleted,
        CleanupOutcome::Refused { error: "no".into(), retry_at },
        CleanupOutcome::StoreDown { error: "away".into(), retry_at },
    ];
    let outcomes: Vec<_> = claims.into_iter().zip(outcomes.into_iter().cycle()).collect();
    failing
        .fail_each_call(async |catalog| catalog.record_cleanup_outcomes(outcomes.clone(), now).await)
        .await;
    let retry = async |catalog: &Catalog| catalog.retry_cleanups_now(&Scope::All, now).await;
    assert!(failing.fail_each_call(retry).await > 0);
    let file = deleted(&catalog, ADA, 10, &REFUSING).await;
    let cleanup = late_write_cleanup(&file, &POLICY, NOW).expect("it has ended");
    let again =
        async |catalog: &Catalog| catalog.repeat_cleanup(file.clone(), cleanup.clone(), NOW + SECOND).await;
    failing.fail_each_call(again).await;
}

async fn outbox(failing: &mut FailingCatalog<'_>) {
    let now = LATER + DAY;
    let catalog = failing.db.catalog.clone();
    let ranked = catalog.claim_outbox(Destination::Webhook, 0, now, now + HOUR).await;
    assert_eq!(ranked.expect("ranked"), []);
    let take =
        async |catalog: &Catalog| catalog.claim_outbox(Destination::Webhook, 100, now, now + HOUR).await;
    let lines = failing.fail_each_call(take).await;
    let mut ids: Vec<String> = lines.into_iter().map(|line| line.id).collect();
    let delivered = vec![ids.pop().expect("a notice was written")];
    assert!(!ids.is_empty());
    let delay = async |catalog: &Catalog| catalog.delay_outbox(ids.clone(), "away", now + DAY).await;
    failing.fail_each_call(delay).await;
    failing.fail_each_call(async |catalog| catalog.outbox_delivered(delivered.clone()).await).await;
    failing.fail_each_call(async |catalog| catalog.purge_outbox(Destination::Archive).await).await;
}

async fn quotas_and_facts(failing: &mut FailingCatalog<'_>) {
    let harbour = tenant("harbour");
    failing.fail_each_call(async |catalog| catalog.set_limit(&harbour, 2 * LIMIT).await).await;
    let rate = TenantPolicyChange { requests_per_second: Some(Some(7)), ..TenantPolicyChange::default() };
    let set = async |catalog: &Catalog| catalog.set_tenant_policy(&harbour, rate.clone(), NOW).await;
    assert_eq!(failing.fail_each_call(set).await.requests_per_second, Some(7));
    failing.db.sql("UPDATE quotas SET used_bytes = used_bytes + 7 WHERE tenant_id = 'harbour'").await;
    let drift = failing.fail_each_call(async |catalog| catalog.rebuild_quota(&harbour, LIMIT).await).await;
    assert_eq!(drift.map(|drift| drift.drift_bytes), Some(7));
    let at_redis = registered(&failing.db.catalog, ADA, 10).await;
    for to in [QuotaOwner::Redis, QuotaOwner::Database] {
        let wanted =
            MoveQuota { tenant: harbour.clone(), to, after_epoch: 0, default_limit_bytes: LIMIT, now: NOW };
        failing.fail_each_call(async |catalog| catalog.move_quota(wanted.clone()).await).await;
        if to == QuotaOwner::Redis {
            let gone = file::delete(&at_redis, &REFUSING, LATER).expect("deletable");
            failing.fail_each_call(async |catalog| catalog.commit(gone.clone(), "clerk").await).await;
        }
    }
    failing.fail_each_call(async |catalog| catalog.get_or_set_fact("mark", "1").await).await;
    failing.fail_each_call(async |catalog| catalog.set_fact("mark", "2").await).await;
    failing.fail_each_call(async |catalog| catalog.increment_fact("mark").await).await;
}

async fn purging(failing: &mut FailingCatalog<'_>) {
    let db = failing.db;
    db.sql("INSERT INTO queue_tenants (queue, tenant_id, last_rank) VALUES ('q', '', 9), ('q', 't', 1)")
        .await;
    assert!(failing.fail_each_call(async |catalog| catalog.purge_queue_tenants(10).await).await > 0);
    db.sql("INSERT INTO unreadable_rows (table_name, row_id, error) VALUES ('files', 'gone', 'x')").await;
    assert_eq!(failing.fail_each_call(async |catalog| catalog.recheck_unreadable().await).await, 0);
    db.sql(
        "INSERT INTO notifications (id, tenant_id, user_id, kind, message, data, created_at) \
        VALUES ('no-id', 'harbour', 'ada', 'k', 'm', '{}', 0)",
    )
    .await;
    let list = async |catalog: &Catalog| {
        let (tenant, user) =
            (tenant("harbour"), wharfinger_lifecycle::id::UserId::new("ada").expect("a user"));
        catalog.notifications(&tenant, &user, None, 10).await
    };
    failing.fail_each_call_of_list(list).await;
    db.sql("DELETE FROM notifications WHERE id = 'no-id'").await;
    let late = NOW + 1_000 * DAY;
    let purged = failing.fail_each_call(async |catalog| catalog.purge_notifications(late, 10).await).await;
    assert!(purged > 0);
    assert!(failing.fail_each_call(async |catalog| catalog.purge_expired_keys(late, 10).await).await > 0);
    assert!(failing.fail_each_call(async |catalog| catalog.purge_outcomes(late).await).await > 0);
    let key = ObjectKey::parse("uploads/t/u/00000000-0000-7000-8000-000000000000").expect("a key");
    let aborted = AbortedUpload { key, file: None, ordered_by: "a sweep" };
    failing.fail_each_call(async |catalog| catalog.log_aborted_upload(aborted.clone(), NOW).await).await;
    assert!(failing.fail_each_call(async |catalog| catalog.purge_deletion_log(late, 10).await).await > 0);
    assert!(failing.fail_each_call(async |catalog| catalog.purge_zero_counters(3).await).await > 0);
    db.sql("INSERT INTO upload_batches (id, tenant_id, user_id, status, version, created_at, expires_at, ended_at) \
        VALUES ('01977420-dc00-7639-b4cc-0216978d32b7', 't', 'u', 'completed', 2, 0, 1, 1)").await;
    let (gone, _) =
        failing.fail_each_call(async |catalog| catalog.purge_empty_batches(None, late, 10).await).await;
    assert_eq!(gone, 1);
    db.sql(
        "INSERT INTO outbox (id, destination, tenant_id, message, attempts, created_at, next_attempt_at) \
        VALUES ('old', 'archive', 't', '{}', 0, 1, 1)",
    )
    .await;
    let drop = async |catalog: &Catalog| catalog.purge_old_outbox_lines(Destination::Archive, 2, 10).await;
    assert_eq!(failing.fail_each_call(drop).await, 1);

    let (batch, wanted) = new_batch(ADA, &[10]);
    let batched = file_of(&wanted).id;
    db.catalog.register(wanted).await.expect("registered");
    db.catalog.end_batch(batch.id, BatchEnding::Cancelled, "clerk", LATER).await.expect("cancelled");
    let batched = db.catalog.file(batched).await.expect("read").expect("it is there");
    let mut tombstones = vec![
        committed(&db.catalog, file::reclaim(&batched, "cancelled", &REFUSING, LATER).expect("reclaimable"))
            .await,
    ];
    for _ in 0..2 {
        tombstones.push(deleted(&db.catalog, ADA, 10, &REFUSING).await);
    }
    for file in &tombstones {
        db.sql(&format!("DELETE FROM pending_cleanups WHERE document_id = '{}'", file.id)).await;
    }
    let gone =
        failing.fail_each_call(async |catalog| catalog.purge_tombstones(tombstones.clone()).await).await;
    assert_eq!(gone.len(), 3);

    // The jobs of files that this test deleted by SQL.
    db.sql(&format!("DELETE FROM jobs WHERE queue = '{CHECKS}' AND file_id NOT IN (SELECT id FROM files)"))
        .await;
}
