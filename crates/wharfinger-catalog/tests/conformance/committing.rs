//! Committing changes: the file, its history, jobs, cleanup, notice, quota and counters in one transaction, and only if
//! the file has not changed since it was read.

use wharfinger_catalog::{CatalogError, HistoryLine, Scope};
use wharfinger_lifecycle::file::{self, Change, CheckAction, File};
use wharfinger_lifecycle::processing::PipelinePlan;
use wharfinger_lifecycle::quota::Quota;
use wharfinger_lifecycle::state::Status;

use super::sample::{
    CHECKS, HOUR, LIMIT, NOW, POLICY, REFUSING, SECOND, URL_DEAD_AT, claim, committed, confirm, confirmed,
    deleted, pin, quarantined, registered, tenant, user,
};
use super::test_db::{CLEANUP_ATTEMPTS_MAX, TestDb, all_at_once};

const ADA: (&str, &str) = ("harbour", "ada");

async fn quota(db: &TestDb) -> (u64, u64) {
    let Quota { used_bytes, reserved_bytes, .. } =
        db.catalog.quota(&tenant("harbour"), LIMIT).await.expect("read");
    (used_bytes, reserved_bytes)
}

async fn steps(db: &TestDb, file: &File) -> Vec<(Option<Status>, Status, String)> {
    let lines = db.catalog.history(file.id).await.expect("read");
    lines.into_iter().map(|line: HistoryLine| (line.from, line.to, line.reason)).collect()
}

async fn next_check_job_at(db: &TestDb) -> Option<i64> {
    db.catalog.next_job_at(&[CHECKS]).await.expect("read")
}

async fn stored(db: &TestDb, file: &File) -> File {
    db.catalog.file(file.id).await.expect("read").expect("the file is there")
}

fn step(from: Status, to: Status, reason: &str) -> (Option<Status>, Status, String) {
    (Some(from), to, reason.to_owned())
}

fn first_step() -> (Option<Status>, Status, String) {
    (None, Status::Registered, "registered".to_owned())
}

pub(super) async fn confirming_is_one_transaction(db: &TestDb) {
    let file = registered(&db.catalog, ADA, 100).await;
    let after = committed(&db.catalog, confirm(&file)).await;
    assert_eq!(stored(db, &file).await, after);
    assert_eq!(
        steps(db, &file).await,
        [
            first_step(),
            step(Status::Registered, Status::Uploaded, "confirmed"),
            step(Status::Uploaded, Status::Ready, "no stages"),
        ]
    );
    let last = db.catalog.history(file.id).await.expect("read").pop().expect("three lines");
    assert_eq!((last.at, last.actor.as_str()), (NOW + SECOND, "clerk"));
    assert_eq!(next_check_job_at(db).await, None, "its delayed check is gone");
    assert_eq!(quota(db).await, (100, 0), "still charged, no longer reserved");
    let counts = db.catalog.status_counts(&Scope::All).await.expect("read").by_status;
    let alive: Vec<_> = counts.into_iter().filter(|(_, files)| *files > 0).collect();
    assert_eq!(alive, [(Status::Ready, 1)]);
    assert_eq!(db.catalog.next_cleanup_at().await.expect("read"), None);
}

pub(super) async fn deleting_is_one_transaction(db: &TestDb) {
    let file = confirmed(&db.catalog, ADA, 100).await;
    let change = file::delete(&file, &REFUSING, NOW + 2 * SECOND).expect("deletable");
    let after = committed(&db.catalog, change).await;
    assert_eq!(stored(db, &file).await, after);
    assert_eq!(
        steps(db, &file).await.pop(),
        Some(step(Status::Ready, Status::Deleted, "deleted")),
        "the history ends with the delete"
    );
    assert_eq!(quota(db).await, (0, 0));
    let pending = db.catalog.pending_cleanups(&Scope::All, None, 10).await.expect("read");
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].file_path, file.key.as_str());
    assert_eq!(pending[0].reason, "deleted");
    assert_eq!(pending[0].document_id, file.id.to_string());
    assert_eq!((pending[0].attempts, pending[0].max_attempts), (0, i64::from(CLEANUP_ATTEMPTS_MAX)));
    assert_eq!((pending[0].created_at, pending[0].last_attempt_at), (NOW + 2 * SECOND, None));
    assert_eq!(
        db.texts("SELECT storage_type || ' ' || CAST(size AS TEXT) FROM pending_cleanups").await,
        ["disk 100"]
    );
    assert_eq!(db.catalog.next_cleanup_at().await.expect("read"), Some(NOW + 2 * SECOND));
}

pub(super) async fn a_deleted_file_is_charged_until_its_url_expires(db: &TestDb) {
    let file = deleted(&db.catalog, ADA, 100, &POLICY).await;
    assert_eq!(quota(db).await, (100, 100));
    assert_eq!(next_check_job_at(db).await, None);

    let due = db.catalog.files_to_check(Status::Deleted, URL_DEAD_AT, None, 10).await.expect("read");
    assert_eq!(due, [(URL_DEAD_AT, file.id)]);
    let CheckAction::Refund(refund) = file::check(&file, &POLICY, URL_DEAD_AT) else {
        panic!("a refund is due")
    };
    let refunded = committed(&db.catalog, *refund.clone()).await;
    assert_eq!(quota(db).await, (0, 0));
    assert_eq!(stored(db, &refunded).await, refunded);
    assert_eq!(steps(db, &refunded).await.len(), 2, "a refund adds no line to the history");

    let twice = db.catalog.commit(*refund, "clerk").await.expect_err("refunded once");
    assert!(matches!(twice, CatalogError::Stale), "{twice}");
    assert_eq!(quota(db).await, (0, 0));
}

pub(super) async fn reclaiming_notifies_the_owner(db: &TestDb) {
    let file = registered(&db.catalog, ADA, 100).await;
    let change = file::reclaim(&file, "not confirmed", &POLICY, URL_DEAD_AT).expect("reclaimable");
    let after = committed(&db.catalog, change).await;
    assert_eq!(stored(db, &file).await, after);
    assert_eq!(quota(db).await, (0, 0));
    assert_eq!(next_check_job_at(db).await, None);
    let pending = db.catalog.pending_cleanups(&Scope::All, None, 10).await.expect("read");
    assert_eq!(pending.iter().map(|row| row.reason.as_str()).collect::<Vec<_>>(), ["reclaimed"]);

    let notices = db.catalog.notifications(&tenant("harbour"), &user("ada"), None, 10).await.expect("read");
    assert_eq!(notices.len(), 1);
    assert_eq!(notices[0].kind, "file-cleaned-up");
    assert_eq!(notices[0].file_id, Some(file.id.to_string()));
    assert_eq!(notices[0].file_name.as_deref(), Some("report.pdf"));
    assert_eq!(notices[0].created_at, URL_DEAD_AT);
    assert_eq!(notices[0].data, r#"{"reason":"not confirmed","sizeReclaimed":100}"#);
}

pub(super) async fn quarantine_keeps_the_charge_and_the_bytes(db: &TestDb) {
    let file = confirmed(&db.catalog, ADA, 100).await;
    let change = quarantined(&file, "object changed", NOW + HOUR);
    let after = committed(&db.catalog, change).await;
    assert_eq!(stored(db, &file).await, after);
    assert_eq!(after.error.as_deref(), Some("object changed"));
    assert_eq!(quota(db).await, (100, 0));
    assert_eq!(db.catalog.next_cleanup_at().await.expect("read"), None);
    let notices = db.catalog.notifications(&tenant("harbour"), &user("ada"), None, 10).await.expect("read");
    assert_eq!(
        notices.iter().map(|notice| notice.kind.as_str()).collect::<Vec<_>>(),
        ["file-quarantined", "file-ready"]
    );
}

pub(super) async fn a_fresh_url_moves_the_next_check_and_its_job(db: &TestDb) {
    let file = registered(&db.catalog, ADA, 100).await;
    let other = registered(&db.catalog, ADA, 100).await;
    let change = file::reissue(&file, &POLICY, NOW + 5 * SECOND).expect("still registered");
    let after = committed(&db.catalog, change).await;
    assert_eq!(stored(db, &file).await, after);
    assert_eq!(after.next_check_at, Some(URL_DEAD_AT + 5 * SECOND));
    let mut checks =
        db.texts("SELECT CAST(run_at AS TEXT) || ' ' || file_id FROM jobs ORDER BY run_at").await;
    checks.sort();
    assert_eq!(
        checks,
        [format!("{URL_DEAD_AT} {}", other.id), format!("{} {}", URL_DEAD_AT + 5 * SECOND, file.id)],
        "only this file's check moves"
    );

    let deferred = committed(&db.catalog, file::defer(&after, URL_DEAD_AT + 9 * SECOND, URL_DEAD_AT)).await;
    assert_eq!(stored(db, &file).await, deferred);
    assert_eq!(
        db.texts(&format!("SELECT CAST(run_at AS TEXT) FROM jobs WHERE file_id = '{}'", file.id)).await,
        [(URL_DEAD_AT + 9 * SECOND).to_string()]
    );
    assert_eq!(steps(db, &file).await, [first_step()], "neither adds a line to the history");
}

/// The worker of the check loses its lease, so it cannot end the check that was postponed.
pub(super) async fn a_postponed_check_loses_its_lease_and_waits_again(db: &TestDb) {
    let file = registered(&db.catalog, ADA, 100).await;
    let mut wanted = claim(1, URL_DEAD_AT);
    wanted.queue = CHECKS;
    let leased = db.catalog.claim_jobs(wanted).await.expect("claimed");
    assert_eq!(leased.len(), 1);
    committed(&db.catalog, file::defer(&file, URL_DEAD_AT + SECOND, URL_DEAD_AT)).await;
    let after = db.texts("SELECT state || ' ' || CAST(run_at AS TEXT) FROM jobs").await;
    assert_eq!(after, [format!("waiting {}", URL_DEAD_AT + SECOND)]);
    // The worker has lost its lease, so it cannot complete the job.
    let done = vec![(leased[0].id, leased[0].token)];
    assert_eq!(db.catalog.complete_jobs(done).await.expect("answered"), []);
    assert_eq!(db.catalog.next_job_at(&[CHECKS]).await.expect("read"), Some(URL_DEAD_AT + SECOND));
    let file = stored(db, &file).await;
    committed(&db.catalog, confirm(&file)).await;
    assert_eq!(db.catalog.next_job_at(&[CHECKS]).await.expect("read"), None);
}

pub(super) async fn a_stale_change_changes_nothing(db: &TestDb) {
    let file = registered(&db.catalog, ADA, 100).await;
    let changes: Vec<Change> = vec![
        confirm(&file),
        file::delete(&file, &POLICY, NOW + SECOND).expect("deletable"),
        file::reclaim(&file, "late", &POLICY, URL_DEAD_AT).expect("reclaimable"),
        file::reissue(&file, &POLICY, NOW + SECOND).expect("still registered"),
        file::defer(&file, URL_DEAD_AT + SECOND, URL_DEAD_AT),
    ];
    committed(&db.catalog, file::reissue(&file, &POLICY, NOW).expect("still registered")).await;
    let before = db.dump().await;
    for change in changes {
        let error =
            db.catalog.commit(change, "clerk").await.expect_err("the file has changed since it was read");
        assert!(matches!(error, CatalogError::Stale), "{error}");
        assert!(error.is_retryable());
        assert_eq!(db.dump().await, before);
    }
}

/// I4 and I16: of three changes that end or confirm the same file, one is committed.
pub(super) async fn exactly_one_of_confirm_delete_and_reclaim_wins(db: &TestDb) {
    let another = db.another_handle().await;
    for round in 0..25 {
        let file = registered(&db.catalog, ADA, 100).await;
        let mut changes = vec![
            file::confirm(&file, pin(), None, "confirmed", &PipelinePlan::without_stages(), URL_DEAD_AT)
                .expect("confirmable"),
            file::delete(&file, &POLICY, URL_DEAD_AT).expect("deletable"),
            file::reclaim(&file, "late", &POLICY, URL_DEAD_AT).expect("reclaimable"),
        ];
        changes.rotate_left(round % 3);
        let outcomes = all_at_once(changes.clone().into_iter().enumerate().map(|(n, change)| {
            let catalog = if n % 2 == 0 { db.catalog.clone() } else { another.clone() };
            async move { catalog.commit(change, "racer").await }
        }))
        .await;
        let won: Vec<usize> = (0..3).filter(|n| outcomes[*n].is_ok()).collect();
        assert_eq!(won.len(), 1, "{outcomes:?}");
        let stale = outcomes.iter().filter(|o| matches!(o, Err(CatalogError::Stale))).count();
        assert_eq!(stale, 2, "{outcomes:?}");

        let winner = &changes[won[0]];
        assert_eq!(stored(db, &file).await, winner.after);
        assert_eq!(steps(db, &file).await.len(), 1 + winner.history.len());
        let cleanups =
            db.texts(&format!("SELECT reason FROM pending_cleanups WHERE document_id = '{}'", file.id)).await;
        let expected: Vec<String> =
            winner.cleanup.iter().map(|cleanup| cleanup.reason.as_str().to_owned()).collect();
        assert_eq!(cleanups, expected);
        let notices =
            db.texts(&format!("SELECT kind FROM notifications WHERE file_id = '{}'", file.id)).await;
        assert_eq!(notices.len(), usize::from(winner.notification.is_some()));
    }
    let kept = db.texts("SELECT id FROM files WHERE pipeline_status = 'ready'").await.len() as u64;
    assert_eq!(quota(db).await, (100 * kept, 0));
}

pub(super) async fn a_charged_file_without_a_quota_row_cannot_change(db: &TestDb) {
    let file = registered(&db.catalog, ADA, 100).await;
    db.sql("DELETE FROM quotas").await;
    let before = db.dump().await;
    let gone = || file::delete(&file, &REFUSING, NOW).expect("deletable");
    let error = db.catalog.commit(gone(), "clerk").await.expect_err("no quota row");
    assert!(matches!(error, CatalogError::Corrupt(_)), "{error}");
    assert_eq!(db.dump().await, before);
    db.sql("INSERT INTO quotas (tenant_id, used_bytes) VALUES ('harbour', 100)").await;
    committed(&db.catalog, gone()).await;
}
