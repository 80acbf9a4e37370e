//! The answer 410 Gone disables the webhook until an operator enables it again.

use axum::http::StatusCode;
use wharfinger_catalog::Destination;

use super::receiver::Receiver;
use super::{SECRET, telling};
use crate::cli::program::Place;
use crate::test_app::{Database, on_each_database};

async fn a_receiver_that_answers_410_gets_no_more_requests(database: Database) {
    let receiver = Receiver::start().await;
    let env = telling(database, &receiver.url);
    let server = env.start().await;
    // The metrics count from here on.
    wharfinger::telemetry::prometheus();
    receiver.answers(|_| StatusCode::GONE);
    server.me().upload("a", b"abc").await;
    server.settle().await;
    assert_eq!(receiver.got().len(), 1);
    receiver.answers(|_| StatusCode::OK);
    server.me().upload("b", b"abc").await;
    server.settle().await;
    assert_eq!(receiver.got().len(), 1, "no second request is sent");
    let waiting = server.app.core.catalog.outbox_depth(Destination::Webhook).await.expect("counted").0;
    assert_eq!(waiting, 0, "the outbox does not grow");
    let notifications = server.me().get("/api/v2/notifications").await.expect(200);
    assert_eq!(
        notifications["notifications"].as_array().expect("a list").len(),
        2,
        "the API still shows both"
    );
    let metrics = server.http.get(format!("{}/metrics", server.url)).send().await.expect("an answer");
    let metrics = metrics.text().await.expect("text");
    assert!(
        metrics.contains(
            "wharfinger_notification_deliveries_total{destination=\"webhook\",outcome=\"dropped\"}"
        )
    );
    assert!(metrics.contains("wharfinger_outbox_lines{destination=\"webhook\"}"), "{metrics}");

    // The webhook stays disabled after a restart. Another URL is enabled.
    server.crash().await;
    let server = env.start().await;
    server.me().upload("c", b"abc").await;
    server.settle().await;
    assert_eq!(receiver.got().len(), 1);
    server.crash().await;
    let other = Receiver::start().await;
    let server = env.start_but("WEBHOOK_URL", &other.url).await;
    server.me().upload("d", b"abc").await;
    server.settle().await;
    assert_eq!((receiver.got().len(), other.taken().len()), (1, 1));
}

on_each_database!(a_receiver_that_answers_410_gets_no_more_requests);

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_a_disabled_webhook_and_enables_it_again() {
    let receiver = Receiver::start().await;
    let place = Place::new();
    let environment = [
        ("WEBHOOK_URL", receiver.url.as_str()),
        ("WEBHOOK_SECRET", SECRET),
        ("WEBHOOK_ALLOW_PRIVATE", "true"),
    ];
    receiver.answers(|_| StatusCode::GONE);
    let served = place.serve(&environment);
    let token = place.token("t", "u", "user");
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let upload = async |name: &str, server: &str| {
        let call = |path: String| http.post(format!("{server}{path}")).bearer_auth(&token);
        let init =
            call("/api/v2/files/init".into()).json(&serde_json::json!({ "fileName": name, "size": 3 }));
        let grant: serde_json::Value = init.send().await.expect("an answer").json().await.expect("JSON");
        let put = http.put(grant["uploadUrl"].as_str().expect("a URL")).body("abc").send().await;
        assert_eq!(put.expect("an answer").status(), 200);
        let id = grant["fileId"].as_str().expect("an id");
        let confirmed = call(format!("/api/v2/files/{id}/confirm")).send().await.expect("an answer");
        assert_eq!(confirmed.status(), 200);
    };
    let until_got = async |count: usize| {
        let all = async {
            while receiver.got().len() < count {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), all).await.expect("a notification arrives");
    };
    upload("a", &served.url).await;
    until_got(1).await;
    assert!(served.terminate().success());
    let log = place.log();
    assert!(log.contains("410 Gone") && log.contains("--enable-webhook"), "{log}");
    assert!(
        !log.contains("hush-hush") && !log.contains("MfKQ"),
        "the log has neither the path nor the secret: {log}"
    );

    let ran = place.run_with(&environment, &["doctor"]).expect(1);
    assert!(ran.stdout.contains("FAIL webhook"), "{ran:?}");
    assert!(ran.stdout.contains("--enable-webhook") && !ran.stdout.contains("hush-hush"), "{ran:?}");
    place.run_with(&environment, &["doctor", "--enable-webhook"]).expect(0);
    place.run_with(&environment, &["doctor"]).expect(0);
    place.run(&["doctor", "--enable-webhook"]).expect(1);
    assert_eq!(receiver.got().len(), 1, "doctor sends no request");

    receiver.answers(|_| StatusCode::OK);
    let served = place.serve(&environment);
    upload("b", &served.url).await;
    until_got(2).await;
    assert!(served.terminate().success());
    assert_eq!(receiver.taken().len(), 1);
}
