//! Batches: opened completely or not at all, ended once, and never ended without a file that is being added.

use std::time::Instant;

use wharfinger_catalog::{
    BatchEndOutcome, BatchEnding, BatchUse, Catalog, JobClaim, NewFile, RegisterOutcome, Registration,
    fresh_id,
};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::batch::{self, Batch, BatchError, BatchStatus};
use wharfinger_lifecycle::file::{self, File};
use wharfinger_lifecycle::id::{BatchId, FileId};
use wharfinger_lifecycle::quota::Quota;
use wharfinger_lifecycle::state::Status;

use super::sample::{
    CHECKS, HOUR, LIMIT, NOW, POLICY, REFUSING, SECOND, committed, confirm, file_of, registration,
    registration_at, tenant, user, with_key,
};
use super::test_db::{TestDb, all_at_once};

const ADA: (&str, &str) = ("harbour", "ada");
const BEN: (&str, &str) = ("harbour", "ben");
const DAY: i64 = 24 * HOUR;

fn batch_at(owner: (&str, &str), now: UnixMs) -> Batch {
    batch::open(BatchId(fresh_id(now)), tenant(owner.0), user(owner.1), DAY, now)
}

/// A batch with a file of each size, in the order of their ids.
pub(super) fn new_batch(owner: (&str, &str), sizes: &[u64]) -> (Batch, Registration) {
    let batch = batch_at(owner, NOW);
    let mut files: Vec<NewFile> = sizes
        .iter()
        .flat_map(|size| registration(owner, *size).files)
        .map(|new| adopted(&batch, new))
        .collect();
    files.sort_by_key(|new| new.file.id);
    let opens = BatchUse::New(batch.clone());
    (batch, Registration { files, batch: opens, ..registration(owner, 0) })
}

fn adopted(batch: &Batch, new: NewFile) -> NewFile {
    let file = batch.add_file(new.file, &POLICY);
    let mut check = new.check;
    check.run_at = file.next_check_at.expect("a registered file has a next check");
    NewFile { file, check, ..new }
}

fn joining(owner: (&str, &str), batch: &Batch, now: UnixMs) -> Registration {
    let mut wanted = registration_at(owner, 10, now);
    wanted.files = wanted.files.into_iter().map(|new| adopted(batch, new)).collect();
    Registration { batch: BatchUse::Existing(batch.id), ..wanted }
}

async fn opened(catalog: &Catalog, sizes: &[u64]) -> (Batch, Vec<File>) {
    let (batch, wanted) = new_batch(ADA, sizes);
    let files = wanted.files.iter().map(|new| new.file.clone()).collect();
    assert_eq!(catalog.register(wanted).await.expect("answered"), RegisterOutcome::Created);
    (batch, files)
}

async fn end(catalog: &Catalog, batch: &Batch, ending: BatchEnding, now: UnixMs) -> BatchEndOutcome {
    catalog.end_batch(batch.id, ending, "clerk", now).await.expect("answered")
}

fn refused(batch: &Batch, refusal: BatchError) -> BatchEndOutcome {
    BatchEndOutcome::Refused { batch: batch.clone(), refusal }
}

/// Claims the checks that are due at `now` and returns their files.
async fn due_checks(catalog: &Catalog, now: UnixMs) -> Vec<FileId> {
    let claim = JobClaim {
        queue: CHECKS,
        owner: "worker".into(),
        limit: 100,
        lease_ms: SECOND,
        deadline_ms: SECOND,
        now,
    };
    let mut files: Vec<FileId> =
        catalog.claim_jobs(claim).await.expect("claimed").into_iter().filter_map(|job| job.file).collect();
    files.sort();
    files
}

pub(super) async fn opening_a_batch_writes_all_its_rows(db: &TestDb) {
    let (batch, files) = opened(&db.catalog, &[10, 0, 30]).await;
    let another = db.another_handle().await;
    assert_eq!(another.batch(batch.id).await.expect("read"), Some(batch.clone()));
    assert_eq!(another.batch_files(batch.id, None, 10).await.expect("read"), files);
    let rest = another.batch_files(batch.id, Some(files[0].id), 1).await.expect("read");
    assert_eq!(rest, files[1..2]);
    for file in &files {
        assert_eq!(another.history(file.id).await.expect("read").len(), 1);
    }
    assert_eq!(db.texts("SELECT key FROM objects").await.len(), 3);
    assert_eq!(another.next_job_at(&[CHECKS]).await.expect("read"), Some(NOW + DAY + 60 * SECOND));
    assert_eq!(
        another.quota(&tenant("harbour"), LIMIT).await.expect("read"),
        Quota { limit_bytes: LIMIT, used_bytes: 40, reserved_bytes: 40 }
    );
    // An empty batch is charged nothing and adds no tenant.
    let (empty, wanted) = new_batch(("wharf", "eve"), &[]);
    assert_eq!(db.catalog.register(wanted).await.expect("answered"), RegisterOutcome::Created);
    assert_eq!(another.batch_files(empty.id, None, 10).await.expect("read"), []);
    let (_, by_broker) = new_batch(ADA, &[1, 2]);
    let by_broker = Registration { by_broker: true, ..by_broker };
    assert_eq!(db.catalog.register(by_broker).await.expect("answered"), RegisterOutcome::Created);
    assert_eq!(db.texts("SELECT job_id FROM outbox").await.len(), 2);
}

pub(super) async fn a_refused_batch_writes_nothing(db: &TestDb) {
    opened(&db.catalog, &[100]).await;
    db.catalog.set_limit(&tenant("harbour"), 1_000).await.expect("set");
    let before = db.dump().await;
    let (_, wanted) = new_batch(ADA, &[300, 300, 301]);
    let wanted = with_key(wanted, "key", "body");
    let exceeded = RegisterOutcome::QuotaExceeded { used_bytes: 100, limit_bytes: 1_000 };
    assert_eq!(db.catalog.register(wanted).await.expect("answered"), exceeded);
    let (_, wanted) = new_batch(ADA, &[200, 201]);
    let wanted = Registration { unconfirmed_limit_percent: 50, ..wanted };
    let held = RegisterOutcome::UnconfirmedLimit { held_bytes: 100, limit_bytes: 500 };
    assert_eq!(db.catalog.register(wanted).await.expect("answered"), held);
    // The last of many files has the check id of the first.
    let (_, mut wanted) = new_batch(ADA, &[1; 600]);
    wanted.files[599].check_id = wanted.files[0].check_id;
    db.catalog.register(wanted).await.expect_err("one id twice");
    assert_eq!(db.dump().await, before, "not even its key");
    let (_, fits) = new_batch(ADA, &[300, 300, 300]);
    assert_eq!(db.catalog.register(fits).await.expect("answered"), RegisterOutcome::Created);
}

pub(super) async fn a_key_creates_one_batch(db: &TestDb) {
    let (batch, wanted) = new_batch(ADA, &[10, 10]);
    let first = db.catalog.register(with_key(wanted, "key", "body")).await.expect("answered");
    assert_eq!(first, RegisterOutcome::Created);
    let before = db.dump().await;
    let again = with_key(new_batch(ADA, &[10, 10]).1, "key", "body");
    let idempotency_key = again.idempotency_key.clone().expect("it has a key");
    assert_eq!(db.catalog.register(again).await.expect("answered"), RegisterOutcome::Repeated(batch.id.0));
    let known = db.catalog.key_answer((&tenant("harbour"), &user("ada")), &idempotency_key, NOW).await;
    assert_eq!(known.expect("read"), Some(RegisterOutcome::Repeated(batch.id.0)));
    let other = with_key(new_batch(ADA, &[10]).1, "key", "another body");
    assert_eq!(db.catalog.register(other).await.expect("answered"), RegisterOutcome::KeyMismatch);
    assert_eq!(db.dump().await, before);
}

pub(super) async fn a_batch_can_have_ten_thousand_files(db: &TestDb) {
    let (batch, wanted) = new_batch(ADA, &vec![7; 10_000]);
    let ids: Vec<FileId> = wanted.files.iter().map(|new| new.file.id).collect();
    let started = Instant::now();
    assert_eq!(db.catalog.register(wanted).await.expect("answered"), RegisterOutcome::Created);
    let opened = started.elapsed();
    let files = db.catalog.batch_files(batch.id, None, 20_000).await.expect("read");
    assert_eq!(files.iter().map(|file| file.id).collect::<Vec<_>>(), ids);
    let started = Instant::now();
    let fresh: Vec<_> =
        files.iter().map(|file| file::reissue(file, &POLICY, NOW + HOUR).expect("registered")).collect();
    assert_eq!(db.catalog.commit_all(fresh, "clerk").await.expect("raised").len(), 10_000);
    let raised = started.elapsed();
    let started = Instant::now();
    let ended = end(&db.catalog, &batch, BatchEnding::Cancelled, NOW + HOUR).await;
    assert!(matches!(ended, BatchEndOutcome::Ended { unconfirmed: 10_000, .. }), "{ended:?}");
    let cancelled = started.elapsed();
    println!("10,000 files: opened {opened:?}, URLs raised {raised:?}, cancelled {cancelled:?}");
}

pub(super) async fn a_file_joins_only_an_active_batch_of_its_owner(db: &TestDb) {
    let (batch, files) = opened(&db.catalog, &[10]).await;
    let joined = joining(ADA, &batch, NOW + SECOND);
    let second = file_of(&joined).clone();
    assert_eq!(db.catalog.register(joined).await.expect("answered"), RegisterOutcome::Created);
    let listed = db.catalog.batch_files(batch.id, None, 10).await.expect("read");
    assert_eq!(listed, [files[0].clone(), second]);

    let before = db.dump().await;
    let register = async |wanted: Registration| db.catalog.register(wanted).await.expect("answered");
    assert_eq!(register(joining(BEN, &batch, NOW)).await, RegisterOutcome::NoBatch);
    assert_eq!(register(joining(("wharf", "ada"), &batch, NOW)).await, RegisterOutcome::NoBatch);
    assert_eq!(register(joining(ADA, &batch_at(ADA, NOW), NOW)).await, RegisterOutcome::NoBatch);
    let over = RegisterOutcome::BatchClosed(BatchError::PastExpiry);
    assert_eq!(register(with_key(joining(ADA, &batch, NOW + DAY), "key", "body")).await, over);
    assert_eq!(db.dump().await, before, "a refusal writes nothing, not even its key");
    end(&db.catalog, &batch, BatchEnding::Cancelled, NOW + SECOND).await;
    let cancelled = RegisterOutcome::BatchClosed(BatchError::Ended(BatchStatus::Cancelled));
    assert_eq!(register(joining(ADA, &batch, NOW + SECOND)).await, cancelled);
}

pub(super) async fn a_batch_ends_once(db: &TestDb) {
    assert_eq!(
        end(&db.catalog, &batch_at(ADA, NOW), BatchEnding::Cancelled, NOW).await,
        BatchEndOutcome::NotFound
    );
    for ending in [BatchEnding::Completed, BatchEnding::Cancelled, BatchEnding::Expired] {
        let (batch, files) = opened(&db.catalog, &[10]).await;
        committed(&db.catalog, confirm(&files[0])).await;
        let not_yet = end(&db.catalog, &batch, BatchEnding::Expired, NOW + DAY - 1).await;
        assert_eq!(not_yet, refused(&batch, BatchError::NotExpired));
        let answer = end(&db.catalog, &batch, ending, NOW + DAY).await;
        let BatchEndOutcome::Ended { batch: after, unconfirmed: 0 } = answer else { panic!("{answer:?}") };
        assert_eq!((after.version, after.ended_at), (2, Some(NOW + DAY)));
        let before = db.dump().await;
        for again in [BatchEnding::Completed, BatchEnding::Cancelled, BatchEnding::Expired] {
            let answer = end(&db.catalog, &batch, again, NOW + 2 * DAY).await;
            assert_eq!(answer, refused(&after, BatchError::Ended(after.status)));
        }
        assert_eq!(db.dump().await, before);
        assert_eq!(db.catalog.batch(batch.id).await.expect("read"), Some(after));
    }
}

pub(super) async fn ending_a_batch_makes_unconfirmed_files_due(db: &TestDb) {
    let (batch, files) = opened(&db.catalog, &[1, 2, 4]).await;
    let (_, others) = opened(&db.catalog, &[8]).await;
    let kept = committed(&db.catalog, confirm(&files[0])).await;
    assert_eq!(due_checks(&db.catalog, NOW + HOUR).await, []);
    let answer = end(&db.catalog, &batch, BatchEnding::Cancelled, NOW + HOUR).await;
    assert!(matches!(answer, BatchEndOutcome::Ended { unconfirmed: 2, .. }), "{answer:?}");
    assert_eq!(db.catalog.file(kept.id).await.expect("read"), Some(kept));
    for file in &files[1..] {
        let after = db.catalog.file(file.id).await.expect("read").expect("there");
        assert_eq!((after.status, after.next_check_at), (Status::Registered, Some(NOW + HOUR)));
        // A confirm that read the file before is refused.
        db.catalog.commit(confirm(file), "clerk").await.expect_err("stale");
    }
    assert_eq!(due_checks(&db.catalog, NOW + HOUR).await, [files[1].id, files[2].id]);
    let due = db.catalog.files_to_check(Status::Registered, NOW + HOUR, None, 10).await.expect("read");
    assert_eq!(due.len(), 2, "the other batch is unchanged");
    assert_eq!(db.catalog.file(others[0].id).await.expect("read"), Some(others[0].clone()));
    // A leased check becomes due too.
    let (batch, files) = opened(&db.catalog, &[1]).await;
    assert_eq!(due_checks(&db.catalog, NOW + 2 * DAY).await.len(), 2);
    end(&db.catalog, &batch, BatchEnding::Expired, NOW + 2 * DAY).await;
    assert_eq!(due_checks(&db.catalog, NOW + 2 * DAY).await, [files[0].id]);
}

pub(super) async fn an_expired_batch_notifies_its_owner_once(db: &TestDb) {
    let (batch, files) = opened(&db.catalog, &[1, 2, 4, 8, 16]).await;
    committed(&db.catalog, confirm(&files[0])).await;
    committed(&db.catalog, file::delete(&files[1], &REFUSING, NOW + SECOND).expect("deletable")).await;
    let late = NOW + DAY + 60 * SECOND;
    committed(&db.catalog, file::reclaim(&files[2], "late", &POLICY, late).expect("reclaimable")).await;
    let endings = [BatchEnding::Expired; 4].map(|ending| {
        let (catalog, id) = (db.catalog.clone(), batch.id);
        async move { catalog.end_batch(id, ending, "clerk", late).await.expect("answered") }
    });
    let answers = all_at_once(endings).await;
    let ended =
        answers.iter().filter(|answer| matches!(answer, BatchEndOutcome::Ended { unconfirmed: 2, .. }));
    assert_eq!(ended.count(), 1, "{answers:?}");
    let notices = db.catalog.notifications(&tenant("harbour"), &user("ada"), None, 10).await.expect("read");
    let notices: Vec<_> = notices.into_iter().filter(|notice| notice.kind != "file-ready").collect();
    let [notice] = &notices[..] else { panic!("{notices:?}") };
    assert_eq!(notice.kind, "batch-expired");
    assert_eq!(notice.batch_id, Some(batch.id.to_string()));
    assert_eq!((&notice.file_id, &notice.file_name), (&None, &None));
    let data: serde_json::Value = serde_json::from_str(&notice.data).expect("JSON");
    assert_eq!(data["confirmedFiles"], 1);
    assert_eq!(data["removedFiles"], 3);
    assert_eq!(data["sizeReclaimed"], files[2..].iter().map(|file| file.size).sum::<u64>());
    assert!(notice.message.contains("3 unconfirmed files"), "{}", notice.message);
}

pub(super) async fn a_batch_completes_only_without_unconfirmed_files(db: &TestDb) {
    let (batch, files) = opened(&db.catalog, &[1, 2, 4]).await;
    let complete = async || end(&db.catalog, &batch, BatchEnding::Completed, NOW + HOUR).await;
    assert_eq!(complete().await, refused(&batch, BatchError::Unconfirmed(3)));
    committed(&db.catalog, confirm(&files[0])).await;
    committed(&db.catalog, confirm(&files[1])).await;
    assert_eq!(complete().await, refused(&batch, BatchError::Unconfirmed(1)));
    committed(&db.catalog, file::delete(&files[2], &REFUSING, NOW + SECOND).expect("deletable")).await;
    let answer = complete().await;
    assert!(
        matches!(&answer, BatchEndOutcome::Ended { batch, unconfirmed: 0 } if batch.status == BatchStatus::Completed)
    );

    let (batch, files) = opened(&db.catalog, &[1]).await;
    committed(&db.catalog, file::reclaim(&files[0], "late", &POLICY, NOW + DAY).expect("reclaimable")).await;
    let answer = end(&db.catalog, &batch, BatchEnding::Completed, NOW + DAY).await;
    assert_eq!(answer, refused(&batch, BatchError::Unconfirmed(1)), "what was reclaimed was not confirmed");
    let (empty, wanted) = new_batch(ADA, &[]);
    db.catalog.register(wanted).await.expect("answered");
    let answer = end(&db.catalog, &empty, BatchEnding::Completed, NOW).await;
    assert!(matches!(answer, BatchEndOutcome::Ended { .. }), "{answer:?}");
}

/// Eight files are added while the batch ends. A file added before makes a completion fail, or becomes due. No file is
/// added after the end.
pub(super) async fn a_batch_that_ends_misses_no_added_file(db: &TestDb) {
    for ending in [BatchEnding::Cancelled, BatchEnding::Completed].repeat(8) {
        let (batch, files) = opened(&db.catalog, &[1]).await;
        committed(&db.catalog, confirm(&files[0])).await;
        let adding = (0..8).map(|_| {
            let (catalog, wanted) = (db.catalog.clone(), joining(ADA, &batch, NOW));
            async move { catalog.register(wanted).await.expect("answered") == RegisterOutcome::Created }
        });
        let (catalog, id) = (db.catalog.clone(), batch.id);
        let ended =
            tokio::spawn(async move { catalog.end_batch(id, ending, "clerk", NOW).await.expect("answered") });
        let added = all_at_once(adding).await.into_iter().filter(|added| *added).count();
        let ended = ended.await.expect("no panic");
        let after = db.catalog.batch(batch.id).await.expect("read").expect("there");
        let waiting: Vec<File> = db.catalog.batch_files(batch.id, None, 100).await.expect("read");
        let waiting: Vec<File> = waiting.into_iter().filter(|f| f.status == Status::Registered).collect();
        assert_eq!(waiting.len(), added);
        match (ending, ended) {
            (BatchEnding::Cancelled, BatchEndOutcome::Ended { unconfirmed, .. }) => {
                assert_eq!(unconfirmed as usize, added, "all files that were added are due");
                assert!(waiting.iter().all(|file| file.next_check_at == Some(NOW)));
            }
            (_, BatchEndOutcome::Ended { batch, .. }) => {
                assert_eq!((batch.status, added), (BatchStatus::Completed, 0));
            }
            (_, BatchEndOutcome::Refused { refusal, .. }) => {
                assert!(matches!(refusal, BatchError::Unconfirmed(1..)), "{refusal:?}");
                assert_eq!((after.status, added), (BatchStatus::Active, 8));
            }
            (_, BatchEndOutcome::NotFound) => panic!("the batch is there"),
        }
    }
}

pub(super) async fn fresh_urls_are_only_for_unchanged_files(db: &TestDb) {
    let (batch, files) = opened(&db.catalog, &[1, 2, 4]).await;
    let now = NOW + HOUR;
    let fresh = || files.iter().map(|file| file::reissue(file, &POLICY, now).expect("registered")).collect();
    committed(&db.catalog, confirm(&files[1])).await;
    let mut raised = db.catalog.commit_all(fresh(), "clerk").await.expect("raised");
    raised.sort();
    assert_eq!(raised, [files[0].id, files[2].id]);
    let wanted = file::reissue(&files[2], &POLICY, now).expect("registered").after;
    assert_eq!(db.catalog.file(files[2].id).await.expect("read"), Some(wanted));
    assert_eq!(db.catalog.commit_all(fresh(), "clerk").await.expect("raised"), []);
    assert_eq!(db.catalog.commit_all(Vec::new(), "clerk").await.expect("raised"), []);
    end(&db.catalog, &batch, BatchEnding::Cancelled, now).await;
}

pub(super) async fn overdue_batches_are_found_oldest_first(db: &TestDb) {
    let mut batches = Vec::new();
    for later in [3, 1, 2] {
        let mut wanted = registration_at(ADA, 0, NOW + later);
        let batch = batch_at(ADA, NOW + later);
        wanted.files.clear();
        let opens = Registration { batch: BatchUse::New(batch.clone()), ..wanted };
        db.catalog.register(opens).await.expect("answered");
        batches.push(batch);
    }
    batches.sort_by_key(|batch| batch.expires_at);
    let found = async |now, after, limit| db.catalog.overdue_batches(now, after, limit).await.expect("read");
    let place = |batch: &Batch| (batch.expires_at, batch.id);
    assert_eq!(found(NOW + DAY, None, 10).await, []);
    assert_eq!(found(NOW + DAY + 2, None, 10).await, [place(&batches[0]), place(&batches[1])]);
    let first = found(NOW + 2 * DAY, None, 1).await;
    assert_eq!(found(NOW + 2 * DAY, first.last().copied(), 1).await, [place(&batches[1])]);
    end(&db.catalog, &batches[0], BatchEnding::Completed, NOW).await;
    assert_eq!(found(NOW + DAY + 2, None, 10).await, [place(&batches[1])]);
}

pub(super) async fn an_ended_batch_is_purged_with_its_last_file(db: &TestDb) {
    let (batch, files) = opened(&db.catalog, &[1, 2]).await;
    end(&db.catalog, &batch, BatchEnding::Cancelled, NOW + SECOND).await;
    for (file, is_there) in files.iter().zip([true, false]) {
        let read = db.catalog.file(file.id).await.expect("read").expect("there");
        let gone = file::reclaim(&read, "cancelled", &REFUSING, NOW + SECOND).expect("reclaimable");
        let tombstone = committed(&db.catalog, gone).await;
        db.sql(&format!("DELETE FROM pending_cleanups WHERE document_id = '{}'", file.id)).await;
        assert!(!db.catalog.purge_tombstones(vec![tombstone]).await.expect("purged").is_empty());
        assert_eq!(db.catalog.batch(batch.id).await.expect("read").is_some(), is_there);
    }
}
