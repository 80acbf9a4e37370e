//! Every notification is delivered, even after a long outage of the receiver. The notifications of a file keep their
//! order.

use axum::http::StatusCode;
use serde_json::{Value, json};
use wharfinger_calls::faults::{Fault, Faults};
use wharfinger_catalog::Destination;

use super::receiver::Receiver;
use super::{HOUR_MS, MINUTE_MS, quarantine, telling};
use crate::oracle;
use crate::test_app::{Database, START, TestApp, on_each_database};

async fn waiting(server: &TestApp) -> u64 {
    server.app.core.catalog.outbox_depth(Destination::Webhook).await.expect("counted").0
}

async fn every_notification_is_sent_to_the_webhook(database: Database) {
    let receiver = Receiver::start().await;
    let env = telling(database, &receiver.url);
    let server = env.start().await;
    let me = server.me();
    let grant = me.init("late.bin", 3).await.expect(201);
    let file = me.upload("a.txt", b"abc").await;
    quarantine(&env, &me, &file).await;
    env.advance(2 * HOUR_MS);
    server.settle().await;

    let notifications = me.get("/api/v2/notifications").await.expect(200);
    let notifications = notifications["notifications"].as_array().expect("a list");
    let got = receiver.got();
    assert_eq!((notifications.len(), got.len()), (3, 3));
    for notification in notifications {
        let got = got.iter().find(|got| got.id == notification["id"]).expect("the same id");
        assert_eq!(got.body["type"], notification["kind"]);
        assert_eq!(got.body["timestamp"], notification["createdAt"]);
        let data = &got.body["data"];
        for field in ["id", "fileId", "fileName", "batchId", "message"] {
            assert_eq!(data[field], notification[field], "{field}");
        }
        for (name, value) in notification["data"].as_object().expect("an object") {
            assert_eq!(&data[name], value, "{name}");
        }
        assert_eq!((&data["tenant"], &data["user"]), (&json!("t"), &json!("u")));
        assert_eq!(got.header("content-type"), "application/json");
        let sent_at = (START + 2 * HOUR_MS) / 1_000;
        assert_eq!(got.header("webhook-timestamp"), sent_at.to_string(), "the time of the attempt");
    }
    let of = |kind: &str| got.iter().find(|got| got.kind() == kind).expect(kind).body["data"].clone();
    assert_eq!(of("file-ready")["fileId"], file.as_str());
    assert_eq!(of("file-quarantined")["reason"], "object changed after it was confirmed");
    let reclaimed = of("file-cleaned-up");
    assert_eq!((&reclaimed["fileId"], &reclaimed["sizeReclaimed"]), (&grant["fileId"], &json!(3)));
    assert_eq!(reclaimed["batchId"], Value::Null);
    let kinds: Vec<&str> = got.iter().filter(|got| got.file() == file).map(|got| got.kind()).collect();
    assert_eq!(kinds, ["file-ready", "file-quarantined"]);
    assert_eq!(waiting(&server).await, 0);
    server.settle().await;
    assert_eq!(receiver.got().len(), 3, "no notification is sent twice");
}

async fn a_failed_notification_is_sent_again_until_it_is_accepted(database: Database) {
    let receiver = Receiver::start().await;
    let env = telling(database, &receiver.url);
    let server = env.start().await;
    receiver.answers(|_| StatusCode::BAD_GATEWAY);
    let file = server.me().upload("a", b"abc").await;
    for tries in 1..=6 {
        server.settle().await;
        assert_eq!(receiver.got().len(), tries, "it is sent when it is due");
        server.settle().await;
        assert_eq!(receiver.got().len(), tries, "it is not sent before it is due");
        env.advance(6 * HOUR_MS);
    }
    receiver.answers(|_| StatusCode::OK);
    server.settle().await;
    let got = receiver.got();
    assert!(
        got.iter().all(|one| one.id == got[0].id && one.raw == got[0].raw),
        "every attempt sends the same bytes"
    );
    let times: Vec<i64> =
        got.iter().map(|one| one.header("webhook-timestamp").parse().expect("a time")).collect();
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
    assert_eq!((receiver.taken().len(), got[0].file()), (1, file.as_str()));
    assert_eq!(waiting(&server).await, 0);
}

async fn a_notification_waits_while_no_receiver_listens(database: Database) {
    let receiver = Receiver::start().await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let unused_url = format!("http://{}/", closed.local_addr().expect("bound"));
    drop(closed);
    let env = telling(database, &unused_url);
    let server = env.start().await;
    server.me().upload("a", b"abc").await;
    server.settle().await;
    assert_eq!(waiting(&server).await, 1);
    server.crash().await;
    let server = env.start_but("WEBHOOK_URL", &receiver.url).await;
    env.advance(MINUTE_MS);
    server.settle().await;
    assert_eq!(receiver.taken().len(), 1);
}

async fn a_failed_notification_blocks_only_later_ones_of_the_same_file(database: Database) {
    let receiver = Receiver::start().await;
    let env = telling(database, &receiver.url);
    let server = env.start().await;
    let me = server.me();
    let stuck = me.upload("stuck", b"abc").await;
    let of_stuck = stuck.clone();
    receiver.answers(move |got| match got.file() == of_stuck {
        true => StatusCode::SERVICE_UNAVAILABLE,
        false => StatusCode::OK,
    });
    quarantine(&env, &me, &stuck).await;
    server.settle().await;
    let other = me.upload("other", b"abc").await;
    quarantine(&env, &me, &other).await;
    server.settle().await;
    let kinds = |file: &str| -> Vec<(String, u16)> {
        let of = receiver.got().into_iter().filter(|got| got.file() == file);
        of.map(|got| (got.kind().to_owned(), got.status)).collect()
    };
    assert_eq!(kinds(&other), [("file-ready".into(), 200), ("file-quarantined".into(), 200)]);
    assert_eq!(kinds(&stuck), [("file-ready".into(), 503)]);
    env.advance(10 * MINUTE_MS);
    server.settle().await;
    receiver.answers(|_| StatusCode::OK);
    env.advance(10 * MINUTE_MS);
    server.settle().await;
    let expected = [("file-ready", 503), ("file-ready", 503), ("file-ready", 200), ("file-quarantined", 200)];
    assert_eq!(kinds(&stuck), expected.map(|(kind, status)| (kind.to_owned(), status)));
    assert_eq!(waiting(&server).await, 0);
}

/// The crash is between the send and the update of the outbox.
async fn a_notification_is_sent_again_with_its_id_after_a_crash(database: Database) {
    let receiver = Receiver::start().await;
    let env = telling(database, &receiver.url);
    let first = env.start().await;
    first.me().upload("a", b"abc").await;
    first.crash().await;
    // Finds the first call after which the receiver has the message and the outbox still has the line.
    let mut n = 1;
    while receiver.got().is_empty() {
        assert!(n < 100, "no notification is sent");
        let server = env.start_with(Faults::at(n, Fault::CrashAfter)).await;
        let stop = tokio_util::sync::CancellationToken::new();
        let _ = wharfinger::notify::relay(&server.app.notifier, &stop).await;
        server.crash().await;
        env.advance(2 * MINUTE_MS);
        n += 1;
    }
    let server = env.start().await;
    assert_eq!(waiting(&server).await, 1, "the outbox still has the line");
    server.settle().await;
    assert_eq!((receiver.got().len(), receiver.distinct().len()), (2, 1));
    assert_eq!(waiting(&server).await, 0);
    oracle::all_is_healed(&env, &server).await;
}

async fn a_notification_is_dropped_after_three_days_and_the_next_is_sent(database: Database) {
    let receiver = Receiver::start().await;
    let env = telling(database, &receiver.url);
    let server = env.start().await;
    let me = server.me();
    let file = me.upload("a", b"abc").await;
    quarantine(&env, &me, &file).await;
    receiver.answers(|got| match got.kind() {
        "file-ready" => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::OK,
    });
    for _ in 0..12 {
        server.settle().await;
        env.advance(6 * HOUR_MS);
    }
    assert_eq!(receiver.taken().len(), 0);
    let tries = receiver.got().len();
    server.settle().await;
    let got = receiver.got();
    assert_eq!((got.len(), got[tries].status, got[tries + 1].kind()), (tries + 2, 500, "file-quarantined"));
    assert_eq!(waiting(&server).await, 0);
}

async fn a_receiver_gets_no_request_before_its_retry_after(database: Database) {
    let receiver = Receiver::start().await;
    let env = telling(database, &receiver.url);
    let server = env.start().await;
    receiver.answers_in_full(|_| {
        axum::response::IntoResponse::into_response((StatusCode::TOO_MANY_REQUESTS, [("retry-after", "600")]))
    });
    server.me().upload("a", b"abc").await;
    server.settle().await;
    assert_eq!(receiver.got().len(), 1);
    receiver.answers(|_| StatusCode::OK);
    server.me().upload("b", b"abc").await;
    env.advance(9 * MINUTE_MS);
    server.settle().await;
    assert_eq!(receiver.got().len(), 1, "no message is sent before that time");
    env.advance(MINUTE_MS);
    server.settle().await;
    assert_eq!(receiver.taken().len(), 2);
}

/// Without a webhook no line is written, and waiting lines are deleted.
async fn the_outbox_is_empty_without_a_webhook(database: Database) {
    let receiver = Receiver::start().await;
    let env = telling(database, &receiver.url);
    let server = env.start().await;
    server.me().upload("a", b"abc").await;
    assert_eq!(waiting(&server).await, 1);
    server.crash().await;
    let server = env.start_but("WEBHOOK_URL", "").await;
    assert_eq!(waiting(&server).await, 0);
    server.me().upload("b", b"abc").await;
    assert_eq!(waiting(&server).await, 0);
    server.settle().await;
    assert_eq!(receiver.got().len(), 0);
}

async fn old_notifications_are_deleted(database: Database) {
    let receiver = Receiver::start().await;
    let env = telling(database, &receiver.url);
    let server = env.start().await;
    server.me().upload("a", b"abc").await;
    server.settle().await;
    env.advance(89 * 24 * HOUR_MS);
    server.settle().await;
    assert_eq!(env.scalar("SELECT COUNT(*) FROM notifications").await, 1);
    env.advance(24 * HOUR_MS + 1);
    server.settle().await;
    assert_eq!(env.scalar("SELECT COUNT(*) FROM notifications").await, 0);
}

on_each_database!(
    every_notification_is_sent_to_the_webhook,
    a_failed_notification_is_sent_again_until_it_is_accepted,
    a_notification_waits_while_no_receiver_listens,
    a_failed_notification_blocks_only_later_ones_of_the_same_file,
    a_notification_is_sent_again_with_its_id_after_a_crash,
    a_notification_is_dropped_after_three_days_and_the_next_is_sent,
    a_receiver_gets_no_request_before_its_retry_after,
    the_outbox_is_empty_without_a_webhook,
    old_notifications_are_deleted,
);
