//! The outbox: a line for each message to another system, delivered at least once.

use std::collections::BTreeSet;

use wharfinger_catalog::{Catalog, Destination, OutboxLine, OutboxPayload, RegisterOutcome, Registration};

use super::sample::{NOW, SECOND, registration};
use super::test_db::{TestDb, all_at_once};

const ADA: (&str, &str) = ("harbour", "ada");

async fn registered_by_broker(db: &TestDb, count: usize) {
    for _ in 0..count {
        let wanted = Registration { by_broker: true, ..registration(ADA, 1) };
        assert_eq!(db.catalog.register(wanted).await.expect("answered"), RegisterOutcome::Created);
    }
}

async fn claimed(catalog: &Catalog, limit: usize, now: i64) -> Vec<OutboxLine> {
    catalog.claim_outbox(Destination::Broker, limit, now, now + 30 * SECOND).await.expect("claimed")
}

pub(super) async fn a_line_names_its_job_and_due_time(db: &TestDb) {
    let wanted = Registration { by_broker: true, ..registration(ADA, 1) };
    let (job, due_at) = (wanted.files[0].check_id, wanted.files[0].check.run_at);
    db.catalog.register(wanted).await.expect("answered");
    // A registration without a broker writes no line.
    db.catalog.register(registration(ADA, 1)).await.expect("answered");
    let lines = claimed(&db.catalog, 10, NOW).await;
    assert_eq!(lines.len(), 1);
    assert_eq!((&lines[0].payload, lines[0].attempts), (&OutboxPayload::Check { job, due_at }, 0));
    assert_eq!(db.catalog.claim_outbox(Destination::Quota, 10, NOW, NOW).await.expect("claimed"), []);
    assert_eq!(db.catalog.outbox_depth(Destination::Broker).await.expect("counted"), (1, Some(NOW)));
}

pub(super) async fn a_claimed_line_is_hidden_until_its_lease_ends(db: &TestDb) {
    registered_by_broker(db, 3).await;
    assert_eq!(claimed(&db.catalog, 2, NOW).await.len(), 2);
    let rest = claimed(&db.catalog, 10, NOW).await;
    assert_eq!(rest.len(), 1);
    assert_eq!(claimed(&db.catalog, 10, NOW + 29 * SECOND).await, []);
    let again = claimed(&db.catalog, 10, NOW + 30 * SECOND).await;
    assert_eq!(again.len(), 3, "their leases have ended");
    let ids: Vec<String> = again.into_iter().map(|line| line.id).collect();
    db.catalog.delay_outbox(ids[..1].to_vec(), "refused", NOW + 90 * SECOND).await.expect("delayed");
    db.catalog.outbox_delivered(ids[1..].to_vec()).await.expect("removed");
    assert_eq!(claimed(&db.catalog, 10, NOW + 89 * SECOND).await, []);
    let last = claimed(&db.catalog, 10, NOW + 90 * SECOND).await;
    assert_eq!((last.len(), last[0].attempts, &last[0].id), (1, 1, &ids[0]));
    for _ in 0..2 {
        db.catalog.outbox_delivered(vec![ids[0].clone()]).await.expect("removed");
    }
    assert_eq!(db.catalog.outbox_depth(Destination::Broker).await.expect("counted"), (0, None));
}

pub(super) async fn eight_relays_never_get_the_same_line(db: &TestDb) {
    registered_by_broker(db, 60).await;
    let handles = [db.catalog.clone(), db.another_handle().await];
    let relays = (0..8).map(|n| {
        let catalog = handles[n % 2].clone();
        async move {
            let mut got = Vec::new();
            loop {
                let lines = claimed(&catalog, 3, NOW).await;
                if lines.is_empty() {
                    return got;
                }
                got.extend(lines.into_iter().map(|line| line.id));
            }
        }
    });
    let got: Vec<String> = all_at_once(relays).await.concat();
    assert_eq!(got.len(), 60);
    assert_eq!(got.iter().collect::<BTreeSet<_>>().len(), 60);
}

/// The jobs named by a message are claimed if they are due, and no others.
pub(super) async fn jobs_are_claimed_by_id(db: &TestDb) {
    registered_by_broker(db, 4).await;
    let lines = claimed(&db.catalog, 10, NOW).await;
    let jobs: Vec<_> = lines
        .iter()
        .map(|line| match line.payload {
            OutboxPayload::Check { job, due_at } => (job, due_at),
            ref other => panic!("not a check: {other:?}"),
        })
        .collect();
    let ids: Vec<_> = jobs.iter().map(|(job, _)| *job).collect();
    let due_at = jobs[0].1;
    let claim =
        |now| wharfinger_catalog::JobClaim { queue: super::sample::CHECKS, ..super::sample::claim(1, now) };
    let early = db.catalog.claim_jobs_by_id(claim(due_at - 1), ids.clone()).await.expect("answered");
    assert_eq!(early, []);
    let checks = db.catalog.waiting_checks(&ids).await.expect("answered");
    for check in &checks {
        let file = db.catalog.file(check.file).await.expect("read").expect("the file of the check");
        assert_eq!((check.tenant.as_str(), check.size), (file.tenant.as_str(), file.size));
    }
    let mut waiting: Vec<_> = checks.iter().map(|check| (check.job, check.run_at)).collect();
    waiting.sort();
    let mut all = jobs.clone();
    all.sort();
    assert_eq!(waiting, all);
    let two = db.catalog.claim_jobs_by_id(claim(due_at), ids[..2].to_vec()).await.expect("answered");
    assert_eq!(two.len(), 2, "a claim by id has no other limit than its ids");
    let again = db.catalog.claim_jobs_by_id(claim(due_at), ids.clone()).await.expect("answered");
    let mut claimed_ids: Vec<_> = again.iter().map(|job| job.id).collect();
    claimed_ids.sort();
    let mut rest = ids[2..].to_vec();
    rest.sort();
    assert_eq!(claimed_ids, rest);
    assert_eq!(db.catalog.waiting_checks(&ids).await.expect("answered"), []);
    assert_eq!(db.catalog.claim_jobs_by_id(claim(due_at), Vec::new()).await.expect("answered"), []);
}
