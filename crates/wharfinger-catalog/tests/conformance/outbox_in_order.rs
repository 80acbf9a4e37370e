//! Lines for the webhook: one for each notice, and in the order of the notices of each file.

use std::collections::BTreeMap;

use uuid::Uuid;
use wharfinger_catalog::{Catalog, Destination, OutboxLine, OutboxPayload};
use wharfinger_lifecycle::file::{self, File};

use super::sample::{NOW, POLICY, SECOND, committed, confirmed, quarantined, registered};
use super::test_db::{TestDb, all_at_once};

const ADA: (&str, &str) = ("harbour", "ada");
const HIDDEN: i64 = 30 * SECOND;

async fn claimed(catalog: &Catalog, limit: usize, now: i64) -> Vec<OutboxLine> {
    catalog.claim_outbox(Destination::Webhook, limit, now, now + HIDDEN).await.expect("claimed")
}

fn notice(line: &OutboxLine) -> (Uuid, String, i64) {
    match &line.payload {
        OutboxPayload::Notification { notification, subject, place } => {
            (*notification, subject.clone(), *place)
        }
        other => panic!("not a notice: {other:?}"),
    }
}

async fn delivered(catalog: &Catalog, line: &OutboxLine) {
    catalog.outbox_delivered(vec![line.id.clone()]).await.expect("removed");
}

/// A file with two notices: ready, then quarantined.
async fn with_two_notices(catalog: &Catalog) -> File {
    let file = confirmed(catalog, ADA, 10).await;
    committed(catalog, quarantined(&file, "infected", NOW + 2 * SECOND)).await
}

pub(super) async fn a_notice_writes_a_line_for_each_target(db: &TestDb) {
    with_two_notices(&db.catalog).await;
    for destination in [Destination::Webhook, Destination::Slack] {
        assert_eq!(
            db.catalog.outbox_depth(destination).await.expect("counted").0,
            0,
            "no target is configured"
        );
    }
    let catalog = db.with_all_targets().await;
    let file = with_two_notices(&catalog).await;
    let mut notices = catalog.notifications(&file.tenant, &file.user, None, 10).await.expect("read");
    notices.retain(|notice| notice.file_id == Some(file.id.to_string()));
    assert_eq!(catalog.outbox_depth(Destination::Webhook).await.expect("counted"), (2, Some(NOW + SECOND)));
    assert_eq!(catalog.next_outbox_at(Destination::Webhook).await.expect("read"), Some(NOW + SECOND));
    assert_eq!(catalog.next_outbox_at(Destination::Broker).await.expect("read"), None);
    let late = NOW + 10 * SECOND;
    let first = claimed(&catalog, 10, late).await;
    assert_eq!((first.len(), first[0].created_at), (1, NOW + SECOND));
    delivered(&catalog, &first[0]).await;
    let second = claimed(&catalog, 10, late).await;
    assert_eq!(notice(&second[0]), (notices[0].id, file.id.to_string(), file.version));
    assert_eq!(notice(&first[0]).1, file.id.to_string());
    let alerts = catalog.claim_outbox(Destination::Slack, 10, late, late).await.expect("claimed");
    let message = format!("report.pdf of tenant harbour was quarantined: infected (file {})", file.id);
    assert_eq!(
        alerts.iter().map(|line| &line.payload).collect::<Vec<_>>(),
        [&OutboxPayload::Alert { message }]
    );

    catalog.purge_outbox(Destination::Webhook).await.expect("purged");
    assert_eq!(catalog.outbox_depth(Destination::Webhook).await.expect("counted"), (0, None));
    assert_eq!(catalog.outbox_depth(Destination::Slack).await.expect("counted").0, 1);
    // A delete by the owner writes no notice.
    let quiet = registered(&catalog, ADA, 10).await;
    committed(&catalog, file::delete(&quiet, &POLICY, NOW).expect("deletable")).await;
    assert_eq!(catalog.outbox_depth(Destination::Webhook).await.expect("counted").0, 0);
}

pub(super) async fn a_line_waits_for_earlier_lines_of_its_subject(db: &TestDb) {
    let catalog = db.with_all_targets().await;
    with_two_notices(&catalog).await;
    let now = NOW + 10 * SECOND;
    let first = claimed(&catalog, 10, now).await;
    assert_eq!(first.len(), 1, "the second line is due but waits");
    assert_eq!(claimed(&catalog, 10, now).await, [], "while the first line is leased");
    let ids = vec![first[0].id.clone()];
    catalog.delay_outbox(ids, "503", now + 600 * SECOND).await.expect("delayed");
    assert_eq!(claimed(&catalog, 10, now + 599 * SECOND).await, [], "while the first line is delayed");
    let next = catalog.next_outbox_at(Destination::Webhook).await.expect("read");
    assert_eq!(next, Some(now + 600 * SECOND), "the second line is delayed with the first");
    let again = claimed(&catalog, 10, now + 600 * SECOND).await;
    assert_eq!((again.len(), &again[0].id, again[0].attempts), (1, &first[0].id, 1));
    // The lease of the first line has ended.
    let once_more = claimed(&catalog, 10, now + 600 * SECOND + HIDDEN).await;
    assert_eq!((once_more.len(), &once_more[0].id), (1, &first[0].id));
    delivered(&catalog, &first[0]).await;
    let second = claimed(&catalog, 10, now + 600 * SECOND).await;
    assert_eq!(second.len(), 1);
    assert!(notice(&second[0]).2 > notice(&first[0]).2);
}

pub(super) async fn a_delayed_line_does_not_delay_other_subjects(db: &TestDb) {
    let catalog = db.with_all_targets().await;
    for _ in 0..3 {
        with_two_notices(&catalog).await;
    }
    let now = NOW + 10 * SECOND;
    let heads = claimed(&catalog, 10, now).await;
    assert_eq!(heads.len(), 3, "one line of each file");
    catalog.delay_outbox(vec![heads[0].id.clone()], "503", now + HIDDEN).await.expect("delayed");
    for head in &heads[1..] {
        delivered(&catalog, head).await;
    }
    let next: Vec<String> = claimed(&catalog, 10, now).await.iter().map(|line| notice(line).1).collect();
    let mut others: Vec<String> = heads[1..].iter().map(|line| notice(line).1).collect();
    others.sort();
    let mut sorted = next.clone();
    sorted.sort();
    assert_eq!(sorted, others);
}

pub(super) async fn eight_relays_keep_the_order_of_every_subject(db: &TestDb) {
    let catalog = db.with_all_targets().await;
    for _ in 0..15 {
        with_two_notices(&catalog).await;
    }
    // The order of delivery: each relay logs a line before it marks the line as delivered.
    let log = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let handles = [catalog.clone(), db.with_all_targets().await];
    let relays = (0..8).map(|n| {
        let (catalog, log) = (handles[n % 2].clone(), log.clone());
        async move {
            while catalog.outbox_depth(Destination::Webhook).await.expect("counted").0 > 0 {
                for line in claimed(&catalog, 2, NOW + 10 * SECOND).await {
                    log.lock().expect("no relay panicked").push(notice(&line));
                    delivered(&catalog, &line).await;
                }
            }
        }
    });
    all_at_once(relays).await;
    let log = log.lock().expect("no relay panicked");
    assert_eq!(log.len(), 30, "each line once");
    let mut places = BTreeMap::<&str, Vec<i64>>::new();
    for (_, subject, place) in log.iter() {
        places.entry(subject).or_default().push(*place);
    }
    assert_eq!(places.len(), 15);
    for (subject, places) in places {
        assert!(places.is_sorted() && places.len() == 2, "{subject}: {places:?}");
    }
}
