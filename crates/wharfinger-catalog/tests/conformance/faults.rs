//! Each kind of fault, crashes and lost answers included, at each call of a registration. Afterwards the write has
//! happened completely or not at all, and the answer to the caller is true. If it has not happened, it can be repeated.
//! All writes share the code that begins and commits; `every_write` fails each of them at each of its statements.

use wharfinger_calls::faults::{Fault, Faults};
use wharfinger_catalog::{Catalog, CatalogError, Registration};

use super::sample::{REFUSING, deleted, file_of, registered, registration, with_key};
use super::test_db::{Difference, TestDb, difference};

const ADA: (&str, &str) = ("harbour", "ada");

/// Runs a verb once without a fault, then with each fault at each of its calls, in a process with an archive.
/// `prepare` creates the input of the verb. Each run must make the same difference.
async fn try_every_fault<I: Clone>(
    db: &TestDb,
    prepare: impl AsyncFn(&Catalog) -> I,
    act: impl AsyncFn(&Catalog, I) -> Result<(), CatalogError>,
) {
    let counting = Faults::counting();
    let input = prepare(&db.catalog).await;
    let before = db.dump().await;
    act(&db.with_archive_and(counting.clone()).await, input).await.expect("no fault is injected");
    let whole = difference(&before, &db.dump().await);
    assert!(!whole.is_empty(), "a verb without changes proves nothing");
    let commit = counting.calls();

    for n in 1.. {
        let mut calls = 0;
        for fault in Fault::ALL {
            let trial = Trial { n, fault, commit, whole: &whole };
            calls = trial.run(db, &prepare, &act).await;
        }
        if calls < n {
            assert_eq!(n, commit + 1, "each call of the verb had each fault");
            return;
        }
    }
}

struct Trial<'t> {
    n: u64,
    fault: Fault,
    /// The number of the commit call.
    commit: u64,
    whole: &'t Difference,
}

impl Trial<'_> {
    /// Returns how many calls the verb made.
    async fn run<I: Clone>(
        &self,
        db: &TestDb,
        prepare: &impl AsyncFn(&Catalog) -> I,
        act: &impl AsyncFn(&Catalog, I) -> Result<(), CatalogError>,
    ) -> u64 {
        let place = format!("{:?} at call {} of {}", self.fault, self.n, self.commit);
        let input = prepare(&db.catalog).await;
        let before = db.dump().await;
        let faults = Faults::at(self.n, self.fault);
        let catalog = db.with_archive_and(faults.clone()).await;
        let outcome = act(&catalog, input.clone()).await;
        drop(catalog);

        let reopened = db.with_archive().await;
        let written = difference(&before, &db.dump().await);
        let happened = written == *self.whole;
        assert!(happened || written.is_empty(), "{place}: partly written: {written:?}");
        assert_eq!(reopened.audit().await.expect("audited"), Vec::<String>::new(), "{place}");
        match &outcome {
            Ok(()) => assert!(happened, "{place}: answered as written"),
            Err(CatalogError::Unknown(_)) => assert_eq!(self.n, self.commit, "{place}"),
            Err(CatalogError::Unavailable(_)) => assert!(!happened, "{place}: answered as not written"),
            Err(other) => panic!("{place}: {other}"),
        }
        if self.n == self.commit {
            let is_committed = matches!(self.fault, Fault::LoseAnswer | Fault::CrashAfter);
            assert_eq!(happened, is_committed, "{place}: a fault after the commit does not undo it");
            assert!(matches!(outcome, Err(CatalogError::Unknown(_))), "{place}: {outcome:?}");
        } else {
            assert_eq!(happened, self.n > self.commit, "{place}");
        }
        if !happened {
            act(&reopened, input).await.expect("it can be repeated");
            assert_eq!(difference(&before, &db.dump().await), *self.whole, "{place}, then repeated");
        }
        faults.calls()
    }
}

pub(super) async fn a_fault_never_leaves_half_a_registration(db: &TestDb) {
    let register = async |catalog: &Catalog, wanted: Registration| catalog.register(wanted).await.map(drop);
    // The first file of a tenant would insert rows that the next ones update.
    registered(&db.catalog, ADA, 10).await;
    try_every_fault(
        db,
        async |_| {
            let wanted = registration(ADA, 10);
            let key = file_of(&wanted).id.to_string();
            with_key(wanted, &key, "body")
        },
        register,
    )
    .await;
}

/// A fault in a read is an error, never an empty answer.
pub(super) async fn a_failed_read_is_not_an_empty_answer(db: &TestDb) {
    let file = deleted(&db.catalog, ADA, 10, &REFUSING).await;
    for n in 1..=2 {
        for fault in Fault::ALL {
            let catalog = db.with_faults(Faults::at(n, fault)).await;
            let error = catalog.file(file.id).await.expect_err("the read has failed");
            assert!(matches!(error, CatalogError::Unavailable(_)), "{error}");
            assert!(error.is_retryable());
            let again = catalog.file(file.id).await;
            if matches!(fault, Fault::CrashBefore | Fault::CrashAfter) {
                again.expect_err("the process has crashed");
            } else {
                assert_eq!(again.expect("the next call works"), Some(file.clone()));
            }
        }
    }
}
