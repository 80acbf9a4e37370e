//! Alerts to Slack: few messages for operators.

use axum::http::StatusCode;
use wharfinger_catalog::Destination;

use super::quarantine;
use super::receiver::Receiver;
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};

fn alerting(database: Database, url: &str) -> TestEnv {
    TestEnv::with(database, &[("SLACK_WEBHOOK_URL", url), ("WEBHOOK_ALLOW_PRIVATE", "true")])
}

fn texts(slack: &Receiver) -> Vec<String> {
    slack.got().iter().map(|got| got.body["text"].as_str().expect("a text").to_owned()).collect()
}

async fn quarantined(env: &TestEnv, server: &TestApp, name: &str) -> String {
    let me = server.me();
    let file = me.upload(name, b"abc").await;
    quarantine(env, &me, &file).await;
    file
}

async fn a_quarantined_file_is_alerted(database: Database) {
    let slack = Receiver::start().await;
    let env = alerting(database, &slack.url);
    let server = env.start().await;
    server.me().upload("fine", b"abc").await;
    server.settle().await;
    assert_eq!(texts(&slack), Vec::<String>::new(), "a ready file causes no alert");
    let file = quarantined(&env, &server, "<!channel> & co").await;
    server.settle().await;
    let expected = format!(
        "Wharfinger: &lt;!channel&gt; &amp; co of tenant t was quarantined: object changed after it was confirmed \
         (file {file})"
    );
    assert_eq!(texts(&slack), [expected]);
    assert!(!texts(&slack)[0].contains("sig="));
    assert_eq!(slack.got()[0].body["unfurl_links"], false);
    let waiting = server.app.core.catalog.outbox_depth(Destination::Slack).await.expect("counted").0;
    assert_eq!(waiting, 0);
}

async fn many_alerts_are_combined_into_one_message(database: Database) {
    let slack = Receiver::start().await;
    let env = alerting(database, &slack.url);
    let server = env.start().await;
    quarantined(&env, &server, "the first").await;
    server.settle().await;
    for n in 0..25 {
        quarantined(&env, &server, &format!("file {n}")).await;
    }
    server.settle().await;
    assert_eq!(texts(&slack).len(), 1, "the next is not due yet");
    env.advance(10_000);
    server.settle().await;
    let texts = texts(&slack);
    assert_eq!(texts.len(), 2);
    assert_eq!(texts[1].lines().count(), 11);
    assert!(texts[1].ends_with("… and 15 more"), "{}", texts[1]);
}

async fn failed_alerts_are_sent_again(database: Database) {
    let slack = Receiver::start().await;
    let env = alerting(database, &slack.url);
    let server = env.start().await;
    slack.answers(|_| StatusCode::INTERNAL_SERVER_ERROR);
    quarantined(&env, &server, "a").await;
    quarantined(&env, &server, "b").await;
    server.settle().await;
    slack.answers(|_| StatusCode::OK);
    server.settle().await;
    assert_eq!(slack.got().len(), 1);
    env.advance(60_000);
    server.settle().await;
    let texts = texts(&slack);
    assert_eq!((texts.len(), slack.taken().len()), (2, 1));
    assert_eq!(texts[0], texts[1]);
}

async fn one_message_lists_all_deletes_that_failed_too_often(database: Database) {
    let slack = Receiver::start().await;
    let env = alerting(database, &slack.url).also(&[("CLEANUP_MAX_ATTEMPTS", "2")]);
    let server = env.start().await;
    let me = server.me();
    for name in ["a", "b"] {
        let file = me.upload(name, b"abc").await;
        // The store cannot delete this object, because a folder that is not empty has its name.
        let object = env.blob_dir().join(format!("uploads/t/u/{file}"));
        std::fs::remove_file(&object).expect("the object was there");
        std::fs::create_dir(&object).expect("a folder with the name of the object");
        std::fs::write(object.join("obstacle"), b"x").expect("a file in the folder");
        me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    }
    server.settle().await;
    assert_eq!(texts(&slack), Vec::<String>::new(), "the delete is tried again first");
    for _ in 0..3 {
        env.advance(86_400_000);
        server.settle().await;
    }
    let [text] = &texts(&slack)[..] else { panic!("{:?}", texts(&slack)) };
    assert!(text.contains("refused too often: 2.") && text.contains("uploads/t/u/"), "{text}");
}

/// A sweep with errors is reported once, until it has succeeded again.
async fn a_sweep_with_errors_is_reported_once(database: Database) {
    let slack = Receiver::start().await;
    let env = alerting(database, &slack.url);
    let server = env.start().await;
    let run = async || {
        env.advance(60_000);
        let path = "/api/v2/maintenance/sweeps/orphan-cleanup/run";
        server.operator().post(path, serde_json::json!({})).await.expect(200);
        server.settle().await;
    };
    run().await;
    assert_eq!(texts(&slack), Vec::<String>::new());
    for _ in 0..2 {
        let disk = env.unmount_disk();
        run().await;
        run().await;
        disk.remount();
        run().await;
    }
    let texts = texts(&slack);
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts.iter().all(|text| text.contains("The sweep orphan-cleanup had errors: ")), "{texts:?}");
}

on_each_database!(
    a_sweep_with_errors_is_reported_once,
    a_quarantined_file_is_alerted,
    one_message_lists_all_deletes_that_failed_too_often,
    many_alerts_are_combined_into_one_message,
    failed_alerts_are_sent_again,
);
