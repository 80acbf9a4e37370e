//! Webhook URLs that stop the start, and addresses to which no notification is sent.

use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use wharfinger_catalog::Destination;

use super::receiver::Receiver;
use super::{SECRET, telling};
use crate::cli::program::Place;
use crate::test_app::{Database, TestEnv};

#[test]
fn an_invalid_webhook_stops_the_start_with_one_line() {
    let place = Place::new();
    let serve = |environment: &[(&str, &str)], named: &str| {
        let ran = place.run_with(environment, &["serve", "--listen", "127.0.0.1:0"]);
        assert!(!ran.stderr.contains("hush"), "{ran:?}");
        ran.expect_usage(named);
    };
    let secret = ("WEBHOOK_SECRET", SECRET);
    serve(&[("WEBHOOK_URL", "https://hooks.example.com/hush")], "WEBHOOK_SECRET");
    serve(&[("WEBHOOK_URL", "https://hooks.example.com/hush"), ("WEBHOOK_SECRET", "hush")], "WEBHOOK_SECRET");
    serve(&[("WEBHOOK_URL", "http://127.0.0.1:9/hush"), secret], "WEBHOOK_ALLOW_PRIVATE");
    serve(&[("WEBHOOK_URL", "http://2852039166/hush"), secret], "WEBHOOK_ALLOW_PRIVATE");
    serve(&[("SLACK_WEBHOOK_URL", "http://10.1.2.3/hush")], "WEBHOOK_ALLOW_PRIVATE");
    assert!(!place.data().exists(), "no folder is created");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_name_of_this_machine_gets_no_notification() {
    let receiver = Receiver::start().await;
    let url = receiver.url.replace("127.0.0.1", "localhost");
    let env = TestEnv::with(Database::Sqlite, &[("WEBHOOK_URL", url.as_str()), ("WEBHOOK_SECRET", SECRET)]);
    let server = env.start().await;
    server.me().upload("a", b"abc").await;
    server.settle().await;
    assert_eq!(receiver.got().len(), 0);
    let why = env.texts("SELECT last_error FROM outbox").await;
    assert!(why.len() == 1 && why[0].contains("WEBHOOK_ALLOW_PRIVATE"), "{why:?}");
    server.crash().await;
    let server = env.start_but("WEBHOOK_ALLOW_PRIVATE", "true").await;
    env.advance(60_000);
    server.settle().await;
    assert_eq!(receiver.taken().len(), 1);

    let place = Place::new();
    let environment = [("WEBHOOK_URL", url.as_str()), ("WEBHOOK_SECRET", SECRET)];
    let ran = place.run_with(&environment, &["doctor"]).expect(1);
    assert!(ran.stdout.contains("WEBHOOK_ALLOW_PRIVATE") && !ran.stdout.contains("hush"), "{ran:?}");
    let allowed = [environment[0], environment[1], ("WEBHOOK_ALLOW_PRIVATE", "true")];
    place.run_with(&allowed, &["doctor"]).expect(0);
    assert_eq!(receiver.got().len(), 1, "doctor sends nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed_and_counts_as_a_failure() {
    let (receiver, elsewhere) = (Receiver::start().await, Receiver::start().await);
    let env = telling(Database::Sqlite, &receiver.url);
    let server = env.start().await;
    let target = elsewhere.url.clone();
    receiver.answers_in_full(move |_| {
        (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, target.clone())]).into_response()
    });
    server.me().upload("a", b"abc").await;
    server.settle().await;
    assert_eq!((receiver.got().len(), elsewhere.got().len()), (1, 0));
    let waiting = server.app.core.catalog.outbox_depth(Destination::Webhook).await.expect("counted").0;
    assert_eq!(waiting, 1, "the notification will be sent again");
}
