//! SQLite's one writer: calls that arrive together share a commit, and each gets its own answer.
//!
//! On a runtime of one thread all calls sent before the first wait arrive together, so the results are exact.

use futures::future::join_all;
use wharfinger_calls::faults::{Fault, Faults};
use wharfinger_catalog::{Catalog, CatalogError, RegisterOutcome, Registration};
use wharfinger_lifecycle::file::{self, File};
use wharfinger_lifecycle::quota::Quota;

use super::sample::{
    LIMIT, NOW, POLICY, SECOND, committed, confirm, file_of, new_job, registered, registration, tenant,
    with_key,
};
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");

async fn assert_audit_passes(catalog: &Catalog) {
    assert_eq!(catalog.audit().await.expect("audited"), Vec::<String>::new());
}

async fn exists(catalog: &Catalog, file: &File) -> bool {
    catalog.file(file.id).await.expect("read").is_some()
}

#[tokio::test]
async fn a_failed_write_does_not_affect_others_of_its_commit() {
    let db = TestDb::sqlite().await;
    let catalog = &db.catalog;
    let old = registered(catalog, ADA, 10).await;
    let stale = confirm(&old);
    let current = committed(catalog, file::reissue(&old, &POLICY, NOW).expect("registered")).await;
    catalog.set_limit(&tenant("harbour"), 600).await.expect("set");

    // Sixty files of ten bytes fit, and one is there. One registration of ten repeats its id, which the schema refuses.
    let registrations: Vec<Registration> = (0..100)
        .map(|n| {
            let mut wanted = registration(ADA, 10);
            if n % 10 == 3 {
                wanted.files[0].file = old.clone();
            }
            wanted
        })
        .collect();
    let registering = join_all(registrations.iter().map(|wanted| catalog.register(wanted.clone())));
    let refused = join_all((0..20).map(|_| catalog.commit(stale.clone(), "late")));
    let working = join_all((0..20).map(|_| catalog.enqueue(vec![new_job("a", NOW)], NOW)));
    let confirming = catalog.commit(confirm(&current), "clerk");
    let (registering, refused, working, confirming) = tokio::join!(registering, refused, working, confirming);

    confirming.expect("committed");
    assert!(refused.iter().all(|outcome| matches!(outcome, Err(CatalogError::Stale))));
    assert!(working.iter().all(Result::is_ok));
    assert_eq!(db.texts("SELECT id FROM jobs WHERE queue = 'work'").await.len(), 20);
    let mut created = 0;
    for (n, outcome) in registering.iter().enumerate() {
        let wanted = file_of(&registrations[n]);
        match outcome {
            Ok(RegisterOutcome::Created) => {
                created += 1;
                assert!(exists(catalog, wanted).await);
            }
            Ok(refusal) => {
                assert_eq!(*refusal, RegisterOutcome::QuotaExceeded { used_bytes: 600, limit_bytes: 600 });
                assert!(!exists(catalog, wanted).await);
            }
            Err(error) => {
                assert!(matches!(error, CatalogError::Corrupt(_)), "{error}");
                assert_eq!(n % 10, 3);
            }
        }
    }
    assert_eq!(created, 59);
    let quota = Quota { limit_bytes: 600, used_bytes: 600, reserved_bytes: 590 };
    assert_eq!(catalog.quota(&tenant("harbour"), LIMIT).await.expect("read"), quota);
    assert_audit_passes(catalog).await;
}

/// Registers five files at once under a fault. Returns the answers and how many calls were made.
async fn register_five(
    db: &TestDb,
    faults: Faults,
) -> (Vec<(File, Result<RegisterOutcome, CatalogError>)>, u64) {
    let catalog = db.with_faults(faults.clone()).await;
    let wanted: Vec<Registration> = (0..5).map(|_| registration(ADA, 10)).collect();
    let answers = join_all(wanted.iter().map(|wanted| catalog.register(wanted.clone()))).await;
    (wanted.iter().map(|wanted| file_of(wanted).clone()).zip(answers).collect(), faults.calls())
}

#[tokio::test]
async fn a_fault_in_a_shared_commit_leaves_no_half_write() {
    let db = TestDb::sqlite().await;
    registered(&db.catalog, ADA, 10).await;
    let (answers, commit) = register_five(&db, Faults::counting()).await;
    assert!(answers.iter().all(|(_, answer)| matches!(answer, Ok(RegisterOutcome::Created))));

    for n in 1..=commit {
        for fault in Fault::ALL {
            let (answers, _) = register_five(&db, Faults::at(n, fault)).await;
            let reopened = db.another_handle().await;
            assert_audit_passes(&reopened).await;
            let mut happened = 0;
            for (file, answer) in &answers {
                let exists = exists(&reopened, file).await;
                happened += usize::from(exists);
                match answer {
                    Ok(answer) => assert!(exists && *answer == RegisterOutcome::Created, "{fault:?} at {n}"),
                    Err(CatalogError::Unknown(_)) => {}
                    Err(error) => assert!(!exists, "{fault:?} at {n}: {error}, but the file exists"),
                }
            }
            if n == commit {
                let is_committed = matches!(fault, Fault::LoseAnswer | Fault::CrashAfter);
                assert_eq!(happened, if is_committed { 5 } else { 0 }, "all five share one commit");
                let unknown =
                    answers.iter().filter(|(_, a)| matches!(a, Err(CatalogError::Unknown(_)))).count();
                assert_eq!(unknown, 5);
            }
        }
    }
}

/// A refusal that depends on a write in the same commit is not answered if that commit fails.
#[tokio::test]
async fn no_answer_depends_on_an_uncommitted_write() {
    let db = TestDb::sqlite().await;
    registered(&db.catalog, ADA, 10).await;
    let together = async |catalog: &Catalog| {
        let first = with_key(registration(ADA, 500), "key", "body");
        let again = with_key(registration(ADA, 500), "key", "body");
        let mut third = registration(ADA, 501);
        third.default_limit_bytes = 1_010;
        let id = file_of(&first).id;
        let answers = tokio::join!(catalog.register(first), catalog.register(again), catalog.register(third));
        (id, answers)
    };

    let counting = Faults::counting();
    {
        let catalog = db.with_faults(counting.clone()).await;
        let (id, answers) = together(&catalog).await;
        assert_eq!(answers.0.expect("answered"), RegisterOutcome::Created);
        assert_eq!(answers.1.expect("answered"), RegisterOutcome::Repeated(id.0));
        let exceeded = RegisterOutcome::QuotaExceeded { used_bytes: 510, limit_bytes: 1_010 };
        assert_eq!(answers.2.expect("answered"), exceeded);
    }

    let db = TestDb::sqlite().await;
    registered(&db.catalog, ADA, 10).await;
    let catalog = db.with_faults(Faults::at(counting.calls(), Fault::Fail)).await;
    let (id, (first, again, third)) = together(&catalog).await;
    assert!(matches!(first, Err(CatalogError::Unknown(_))), "{first:?}");
    assert_eq!(catalog.file(id).await.expect("read"), None);
    assert!(matches!(again, Err(CatalogError::Unavailable(_))), "{again:?}");
    assert!(matches!(third, Err(CatalogError::Unavailable(_))), "{third:?}");
    registered(&catalog, ADA, 10).await;
    assert_audit_passes(&catalog).await;
}

/// A client that disconnects does not stop its write.
#[tokio::test]
async fn a_write_ends_although_its_caller_is_gone() {
    let db = TestDb::sqlite().await;
    let wanted = registration(ADA, 10);
    let file = file_of(&wanted).clone();
    let mut asking = Box::pin(db.catalog.register(wanted));
    assert!(futures::poll!(&mut asking).is_pending(), "sent and not answered yet");
    drop(asking);
    // Writes keep their order: when this one is answered, the earlier one is written.
    registered(&db.catalog, ADA, 10).await;
    assert!(exists(&db.catalog, &file).await);
    assert_audit_passes(&db.catalog).await;
}

/// After a crash between two statements the database file is not locked for the next process.
#[tokio::test]
async fn a_crashed_writer_leaves_no_lock() {
    let db = TestDb::sqlite().await;
    let catalog = db.with_faults(Faults::at(3, Fault::CrashAfter)).await;
    catalog.register(registration(ADA, 10)).await.expect_err("crashed");
    let file = registered(&db.catalog, ADA, 10).await;
    let change = file::delete(&file, &POLICY, NOW + SECOND).expect("deletable");
    committed(&db.catalog, change).await;
    assert_audit_passes(&db.catalog).await;
}
