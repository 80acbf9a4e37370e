//! A fault at every call of a verb: afterwards it has happened entirely or not at all, the caller was not told
//! otherwise, and where it has not happened it can be done again.

use wharfinger_backends::catalog::{
    BatchEnding, Catalog, CatalogError, CleanupOutcome, Recoverable, Recovered, Recovery, Registration,
};
use wharfinger_backends::faults::{Fault, Faults};
use wharfinger_lifecycle::batch::Batch;
use wharfinger_lifecycle::file::{self, Change};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::processing::Plan;
use wharfinger_lifecycle::stage::Stage;

use super::batches::opening;
use super::sample::{
    HOUR, NOW, POLICY, REFUSING, SECOND, SILENT, claim, confirm, deleted, only, registered, registration,
    with_key, work,
};
use super::site::{Difference, Site, difference};
use super::stages;

const ADA: (&str, &str) = ("harbour", "ada");
/// Longer than a trial lasts, so that nobody takes a claim away.
const LEASE: i64 = 1_000 * HOUR;

/// Runs a verb once without a fault, then with each fault at each of its calls, in a process that archives what
/// happens. `prepare` makes what the verb needs; the same verb then makes the same difference every time.
async fn try_every_fault<I: Clone>(
    site: &Site,
    prepare: impl AsyncFn(&Catalog) -> I,
    act: impl AsyncFn(&Catalog, I) -> Result<(), CatalogError>,
) {
    let counting = Faults::counting();
    let input = prepare(&site.catalog).await;
    let before = site.dump().await;
    act(&site.archiving_with(counting.clone()).await, input).await.expect("nothing is wrong yet");
    let whole = difference(&before, &site.dump().await);
    assert!(!whole.is_empty(), "a verb that changes nothing proves nothing");
    let commit = counting.calls();

    for n in 1.. {
        let mut calls = 0;
        for fault in Fault::ALL {
            let trial = Trial { n, fault, commit, whole: &whole };
            calls = trial.run(site, &prepare, &act).await;
        }
        if calls < n {
            assert_eq!(n, commit + 1, "every call of the verb was hit once");
            return;
        }
    }
}

struct Trial<'t> {
    n: u64,
    fault: Fault,
    /// The number of the call that commits.
    commit: u64,
    whole: &'t Difference,
}

impl Trial<'_> {
    /// Answers how many calls the verb made.
    async fn run<I: Clone>(
        &self,
        site: &Site,
        prepare: &impl AsyncFn(&Catalog) -> I,
        act: &impl AsyncFn(&Catalog, I) -> Result<(), CatalogError>,
    ) -> u64 {
        let place = format!("{:?} at call {} of {}", self.fault, self.n, self.commit);
        let input = prepare(&site.catalog).await;
        let before = site.dump().await;
        let faults = Faults::at(self.n, self.fault);
        let catalog = site.archiving_with(faults.clone()).await;
        let outcome = act(&catalog, input.clone()).await;
        drop(catalog);

        let reopened = site.archiving().await;
        let made = difference(&before, &site.dump().await);
        let happened = made == *self.whole;
        assert!(happened || made.is_empty(), "{place}: half of it happened: {made:?}");
        assert_eq!(reopened.audit().await.expect("audited"), Vec::<String>::new(), "{place}");
        match &outcome {
            Ok(()) => assert!(happened, "{place}: said to have happened"),
            // Whoever looks at the row next knows.
            Err(CatalogError::Unknown(_)) => assert_eq!(self.n, self.commit, "{place}"),
            Err(CatalogError::Unavailable(_)) => assert!(!happened, "{place}: said not to have happened"),
            Err(other) => panic!("{place}: {other}"),
        }
        if self.n == self.commit {
            let made = matches!(self.fault, Fault::LoseAnswer | Fault::CrashAfter);
            assert_eq!(happened, made, "{place}: a commit that was made was made");
            assert!(matches!(outcome, Err(CatalogError::Unknown(_))), "{place}: {outcome:?}");
        } else {
            assert_eq!(happened, self.n > self.commit, "{place}");
        }
        if !happened {
            act(&reopened, input).await.expect("it can be done again");
            assert_eq!(difference(&before, &site.dump().await), *self.whole, "{place}, then again");
        }
        faults.calls()
    }
}

pub(super) async fn a_fault_never_halves_a_registration(site: &Site) {
    let made = async |catalog: &Catalog, wanted: Registration| catalog.register(wanted).await.map(drop);
    // The first of its tenant would make rows that the next ones change.
    registered(&site.catalog, ADA, 10).await;
    try_every_fault(
        site,
        async |_| {
            let wanted = registration(ADA, 10);
            let key = only(&wanted).id.to_string();
            with_key(wanted, &key, "body")
        },
        made,
    )
    .await;
}

pub(super) async fn a_fault_never_halves_a_batch(site: &Site) {
    registered(&site.catalog, ADA, 10).await;
    let open = async |_: &Catalog| {
        let (batch, wanted) = opening(ADA, &[10, 20]);
        with_key(wanted, &batch.id.to_string(), "body")
    };
    let made = async |catalog: &Catalog, wanted: Registration| catalog.register(wanted).await.map(drop);
    try_every_fault(site, open, made).await;
    for ending in [BatchEnding::Cancelled, BatchEnding::Expired] {
        let opened = async |catalog: &Catalog| {
            let (batch, wanted) = opening(ADA, &[10, 20]);
            catalog.register(wanted).await.expect("answered");
            batch
        };
        let ended = async |catalog: &Catalog, batch: Batch| {
            catalog.end_batch(batch.id, ending, "clerk", batch.expires_at).await.map(drop)
        };
        try_every_fault(site, opened, ended).await;
    }
}

async fn committing(catalog: &Catalog, change: Change) -> Result<(), CatalogError> {
    catalog.commit(change, "clerk").await
}

pub(super) async fn a_fault_never_halves_a_confirm(site: &Site) {
    super::sample::confirmed(&site.catalog, ADA, 10).await;
    // Another registered file keeps the counters' rows from coming and going.
    registered(&site.catalog, ADA, 10).await;
    let prepare = async |catalog: &Catalog| confirm(&registered(catalog, ADA, 10).await);
    try_every_fault(site, prepare, committing).await;
}

pub(super) async fn a_fault_never_halves_a_delete(site: &Site) {
    deleted(&site.catalog, ADA, 10, &REFUSING).await;
    let prepare = async |catalog: &Catalog| {
        let file = registered(catalog, ADA, 10).await;
        file::delete(&file, &REFUSING, NOW + SECOND).expect("deletable")
    };
    try_every_fault(site, prepare, committing).await;
}

pub(super) async fn a_fault_never_halves_a_reclaim(site: &Site) {
    deleted(&site.catalog, ADA, 10, &REFUSING).await;
    let prepare = async |catalog: &Catalog| {
        let file = registered(catalog, ADA, 10).await;
        file::reclaim(&file, "late", &POLICY, SILENT).expect("reclaimable")
    };
    try_every_fault(site, prepare, committing).await;
}

pub(super) async fn a_fault_never_halves_the_claim_of_cleanups(site: &Site) {
    let prepare = async |catalog: &Catalog| {
        for _ in 0..2 {
            deleted(catalog, ADA, 10, &REFUSING).await;
        }
    };
    let act = async |catalog: &Catalog, ()| {
        let claimed = catalog.claim_cleanups(NOW + SECOND, 10, LEASE).await?;
        assert_eq!(claimed.len(), 2);
        Ok(())
    };
    try_every_fault(site, prepare, act).await;
}

pub(super) async fn a_fault_never_halves_the_settling_of_cleanups(site: &Site) {
    let now = NOW + SECOND;
    let prepare = async |catalog: &Catalog| {
        for policy in [&REFUSING, &POLICY, &POLICY, &POLICY] {
            deleted(catalog, ADA, 10, policy).await;
        }
        let mut claims = catalog.claim_cleanups(now, 10, LEASE).await.expect("claimed");
        claims.sort_by_key(|claim| claim.finish_at);
        let retry_at = NOW + 2_000 * HOUR;
        claims
            .into_iter()
            .zip([
                CleanupOutcome::Gone,
                CleanupOutcome::Gone,
                CleanupOutcome::Refused { error: "no".into(), retry_at },
                CleanupOutcome::StoreDown { error: "away".into(), retry_at },
            ])
            .collect::<Vec<_>>()
    };
    let act = async |catalog: &Catalog, outcomes| catalog.settle_cleanups(outcomes, now).await.map(drop);
    try_every_fault(site, prepare, act).await;
}

pub(super) async fn a_fault_never_halves_the_completion_of_jobs(site: &Site) {
    let prepare = async |catalog: &Catalog| {
        catalog.enqueue((0..3).map(|_| work("a", NOW)).collect(), NOW).await.expect("enqueued");
        let leased = catalog.claim_jobs(claim(3, NOW)).await.expect("claimed");
        leased.iter().map(|job| (job.id, job.token)).collect::<Vec<_>>()
    };
    let act = async |catalog: &Catalog, done: Vec<_>| {
        assert_eq!(catalog.complete_jobs(done.clone()).await?.len(), done.len());
        Ok(())
    };
    try_every_fault(site, prepare, act).await;
}

/// One that is given up and one that is begun anew, by the same transaction.
pub(super) async fn a_fault_never_halves_a_recovery(site: &Site) {
    let prepare = async |catalog: &Catalog| {
        let files =
            [stages::queued(site, &[Stage::Scan]).await.id, stages::queued(site, &[Stage::Scan]).await.id];
        let held = catalog.claim_stage(stages::claim(Stage::Scan, 2, NOW + SECOND)).await.expect("claimed");
        assert_eq!(held.len(), 2);
        site.sql(&format!("UPDATE files SET retry_count = 1 WHERE id = '{}'", files[0])).await;
        files.to_vec()
    };
    let act = async |catalog: &Catalog, files: Vec<FileId>| {
        let plan = Plan { stuck_retries_max: 1, ..stages::plan() };
        let actor = "recovery".to_owned();
        let recovery = Recovery { files, of: Recoverable::Overdue, actor, plan, now: NOW + HOUR };
        let became = catalog.recover(recovery).await?;
        assert!(matches!(became[0].1, Recovered::GivenUp { .. }), "{became:?}");
        assert!(matches!(became[1].1, Recovered::Queued { .. }), "{became:?}");
        Ok(())
    };
    // The first makes counters that the next ones change.
    let first = prepare(&site.catalog).await;
    act(&site.catalog, first).await.expect("nothing is wrong yet");
    try_every_fault(site, prepare, act).await;
}

/// Reads have no halves, but a fault in one must be an error and not an empty answer.
pub(super) async fn a_read_that_fails_is_not_an_empty_answer(site: &Site) {
    let file = deleted(&site.catalog, ADA, 10, &REFUSING).await;
    for n in 1..=2 {
        for fault in Fault::ALL {
            let catalog = site.faulty(Faults::at(n, fault)).await;
            let error = catalog.file(file.id).await.expect_err("the answer is not known");
            assert!(matches!(error, CatalogError::Unavailable(_)), "{error}");
            assert!(error.is_retryable());
            let again = catalog.file(file.id).await;
            if matches!(fault, Fault::CrashBefore | Fault::CrashAfter) {
                again.expect_err("a dead process asks nothing");
            } else {
                assert_eq!(again.expect("the next call works"), Some(file.clone()));
            }
        }
    }
}
