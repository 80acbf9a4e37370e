//! The owner of a tenant's quota: charges and refunds lock it, and a move waits for them. The sum that a move starts from
//! has exactly the charges before it.

use wharfinger_catalog::{
    Admission, Catalog, Destination, MoveQuota, MovedQuota, OutboxPayload, QuotaOwner, RegisterOutcome,
    Registration,
};
use wharfinger_lifecycle::file::{self, File};

use super::sample::{LIMIT, NOW, REFUSING, SECOND, committed, file_of, registered, registration, tenant};
use super::test_db::{TestDb, all_at_once};

const ADA: (&str, &str) = ("harbour", "ada");

async fn moved(catalog: &Catalog, to: QuotaOwner) -> MovedQuota {
    let wanted =
        MoveQuota { tenant: tenant("harbour"), to, after_epoch: 0, default_limit_bytes: LIMIT, now: NOW };
    catalog.move_quota(wanted).await.expect("moved")
}

fn by_redis(size: u64, epoch: i64) -> Registration {
    Registration { admission: Admission::Redis { epoch, limit_bytes: LIMIT }, ..registration(ADA, size) }
}

fn ended(file: &File) -> wharfinger_lifecycle::file::Change {
    file::delete(file, &REFUSING, NOW + SECOND).expect("deletable")
}

async fn refunds(catalog: &Catalog) -> Vec<(u64, i64)> {
    let lines =
        catalog.claim_outbox(Destination::Quota, 1_000, NOW + 9 * SECOND, NOW).await.expect("claimed");
    lines
        .into_iter()
        .filter_map(|line| match line.payload {
            OutboxPayload::Refund { bytes, epoch } => Some((bytes, epoch)),
            OutboxPayload::Check { .. }
            | OutboxPayload::Notification { .. }
            | OutboxPayload::Alert { .. }
            | OutboxPayload::Event { .. } => None,
        })
        .collect()
}

pub(super) async fn only_the_quota_owner_admits(db: &TestDb) {
    let redis = db.with_redis().await;
    assert_eq!(moved(&redis, QuotaOwner::Redis).await.epoch, 1);
    assert_eq!(redis.register(by_redis(10, 1)).await.expect("answered"), RegisterOutcome::Created);
    for (wrong, catalog) in
        [(by_redis(10, 0), &redis), (by_redis(10, 2), &redis), (registration(ADA, 10), &redis)]
    {
        let before = db.dump().await;
        let answer = catalog.register(wrong).await.expect("answered");
        assert!(
            matches!(answer, RegisterOutcome::QuotaOwnerChanged(state) if state.epoch == 1),
            "{answer:?}"
        );
        assert_eq!(db.dump().await, before);
    }
    // A process without Redis gets the same answer.
    let answer = db.catalog.register(registration(ADA, 10)).await.expect("answered");
    assert!(matches!(answer, RegisterOutcome::QuotaOwnerChanged(_)), "{answer:?}");
    assert_eq!(db.catalog.quota(&tenant("harbour"), LIMIT).await.expect("read").used_bytes, 10);

    let back = moved(&redis, QuotaOwner::Database).await;
    assert_eq!((back.epoch, back.used_bytes), (2, 10));
    let answer = redis.register(by_redis(10, 1)).await.expect("answered");
    assert!(
        matches!(answer, RegisterOutcome::QuotaOwnerChanged(state) if state.owner == QuotaOwner::Database),
        "{answer:?}"
    );
    registered(&redis, ADA, 10).await;
    registered(&db.catalog, ADA, 10).await;
}

pub(super) async fn a_move_raises_the_epoch_above_the_one_seen(db: &TestDb) {
    let wanted = MoveQuota {
        tenant: tenant("harbour"),
        to: QuotaOwner::Redis,
        after_epoch: 41,
        default_limit_bytes: 7,
        now: NOW,
    };
    let first = db.catalog.move_quota(wanted.clone()).await.expect("moved");
    assert_eq!((first.epoch, first.limit_bytes, first.has_own_limit), (42, 7, false));
    db.catalog.set_limit(&tenant("harbour"), 99).await.expect("set");
    assert_eq!(
        db.catalog.quota_state(&tenant("harbour")).await.expect("read").epoch,
        43,
        "Redis must reload the limit"
    );
    let second = db.catalog.move_quota(wanted).await.expect("moved");
    assert_eq!((second.epoch, second.limit_bytes, second.has_own_limit), (44, 99, true));
    moved(&db.catalog, QuotaOwner::Database).await;
    db.catalog.set_limit(&tenant("harbour"), 98).await.expect("set");
    assert_eq!(
        db.catalog.quota_state(&tenant("harbour")).await.expect("read").epoch,
        45,
        "no other system stores the limit"
    );
}

pub(super) async fn refunds_are_sent_to_redis_while_it_owns_the_quota(db: &TestDb) {
    let redis = db.with_redis().await;
    let before = registered(&redis, ADA, 1).await;
    moved(&redis, QuotaOwner::Redis).await;
    for (size, catalog) in [(2, &redis), (4, &db.catalog)] {
        let wanted = by_redis(size, 1);
        let file = file_of(&wanted).clone();
        assert_eq!(redis.register(wanted).await.expect("answered"), RegisterOutcome::Created);
        committed(catalog, ended(&file)).await;
    }
    committed(&redis, ended(&before)).await;
    let mut lines = refunds(&redis).await;
    lines.sort();
    assert_eq!(lines, [(1, 1), (2, 1), (4, 1)]);
    // The sum of the next move includes the refunds, so their lines are gone.
    assert_eq!(moved(&redis, QuotaOwner::Redis).await.used_bytes, 0);
    assert_eq!(refunds(&redis).await, []);
}

/// With concurrent charges and refunds, the sum has exactly the files that were admitted under the earlier epoch.
pub(super) async fn a_move_counts_concurrent_charges_and_refunds_once(db: &TestDb) {
    let redis = db.with_redis().await;
    moved(&redis, QuotaOwner::Redis).await;
    let mut files = Vec::new();
    for size in 1..=20 {
        let wanted = by_redis(size, 1);
        files.push(file_of(&wanted).clone());
        assert_eq!(redis.register(wanted).await.expect("answered"), RegisterOutcome::Created);
    }
    let handles = [redis.clone(), db.with_redis().await];
    for round in 1..=4 {
        let epoch = round;
        let charges = (0..20).map(|n| {
            let catalog = handles[n % 2].clone();
            async move {
                catalog.register(by_redis(1_000, epoch)).await.expect("answered");
                None
            }
        });
        let ends = files.drain(..5).collect::<Vec<_>>().into_iter().map(|file| {
            let catalog = handles[0].clone();
            async move {
                catalog.commit(ended(&file), "clerk").await.expect("committed");
                None
            }
        });
        let mover = {
            let catalog = handles[1].clone();
            async move { Some(moved(&catalog, QuotaOwner::Redis).await) }
        };
        type Step = std::pin::Pin<Box<dyn Future<Output = Option<MovedQuota>> + Send>>;
        let mut steps: Vec<Step> = Vec::new();
        steps.extend(charges.map(|step| Box::pin(step) as Step));
        steps.insert(10, Box::pin(mover));
        steps.extend(ends.map(|step| Box::pin(step) as Step));
        let answers = all_at_once(steps).await;
        let moved = answers.iter().find_map(|moved| *moved).expect("one of them is the move");
        let charged = db.catalog.quota(&tenant("harbour"), LIMIT).await.expect("read").used_bytes as i64;
        let owed: i64 = refunds(&redis)
            .await
            .iter()
            .map(|(bytes, epoch)| {
                assert_eq!(*epoch, moved.epoch, "older refunds are in the sum");
                *bytes as i64
            })
            .sum();
        assert_eq!(moved.used_bytes as i64 - owed, charged, "round {round}");
        db.sql("DELETE FROM outbox").await;
        assert_eq!(moved.epoch, epoch + 1);
    }
}
