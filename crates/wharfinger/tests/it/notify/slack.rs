//! Alerts to Slack: what operators should know, in few messages.

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

async fn operators_hear_of_what_was_quarantined(database: Database) {
    let slack = Receiver::start().await;
    let env = alerting(database, &slack.url);
    let server = env.start().await;
    server.me().upload("fine", b"abc").await;
    server.settle().await;
    assert_eq!(texts(&slack), Vec::<String>::new(), "what is well is no alert");
    let file = quarantined(&env, &server, "<!channel> & co").await;
    server.settle().await;
    let said = format!(
        "Wharfinger: &lt;!channel&gt; &amp; co of tenant t was quarantined: object changed after it was confirmed \
         (file {file})"
    );
    assert_eq!(texts(&slack), [said]);
    assert!(!texts(&slack)[0].contains("sig="));
    assert_eq!(slack.got()[0].body["unfurl_links"], false);
    let waiting = server.app.core.catalog.outbox_depth(Destination::Slack).await.expect("counted").0;
    assert_eq!(waiting, 0);
}

async fn a_flood_is_one_message(database: Database) {
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

async fn alerts_that_did_not_arrive_are_sent_again(database: Database) {
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

async fn operators_hear_once_of_deletes_that_are_given_up(database: Database) {
    let slack = Receiver::start().await;
    let env = alerting(database, &slack.url).also(&[("CLEANUP_MAX_ATTEMPTS", "2")]);
    let server = env.start().await;
    let me = server.me();
    for name in ["a", "b"] {
        let file = me.upload(name, b"abc").await;
        // A folder with something in it is refused by whoever is asked to remove a file.
        let object = env.blob_dir().join(format!("uploads/t/u/{file}"));
        std::fs::remove_file(&object).expect("the object was there");
        std::fs::create_dir(&object).expect("a folder in its place");
        std::fs::write(object.join("in the way"), b"x").expect("a file in the folder");
        me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    }
    server.settle().await;
    assert_eq!(texts(&slack), Vec::<String>::new(), "it is tried again");
    for _ in 0..3 {
        env.advance(86_400_000);
        server.settle().await;
    }
    let [said] = &texts(&slack)[..] else { panic!("{:?}", texts(&slack)) };
    assert!(said.contains("refused too often: 2.") && said.contains("uploads/t/u/"), "{said}");
}

on_each_database!(
    operators_hear_of_what_was_quarantined,
    operators_hear_once_of_deletes_that_are_given_up,
    a_flood_is_one_message,
    alerts_that_did_not_arrive_are_sent_again,
);
