//! Delayed checks with RabbitMQ, and without it when it is down. The clock is manual, so nothing polls unless a test
//! runs it: every check here was triggered by a message.

use std::time::Duration;

use harness::rabbitmq::RabbitMq;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use wharfinger::checks::messages::{self, Broker};
use wharfinger::worker::Supervisor;
use wharfinger_catalog::Destination;
use wharfinger_engines::rabbitmq::DelayedMessage;

use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};
use crate::uploads::{GRACE_MS, WINDOW_MS, id};

fn env(database: Database, url: &str) -> TestEnv {
    TestEnv::with(database, &[("WHARFINGER_BROKER_URL", url)])
}

/// Runs the checks of arriving messages until the guard is dropped.
fn consume(server: &TestApp) -> tokio_util::sync::DropGuard {
    let (app, stop) = (server.app.clone(), CancellationToken::new());
    let stopped = stop.clone();
    tokio::spawn(async move {
        messages::consume(&app.uploads, app.broker.as_ref().expect("a broker"), &stopped).await;
    });
    stop.drop_guard()
}

fn broker_of(server: &TestApp) -> &Broker {
    server.app.broker.as_ref().expect("a broker")
}

async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(120), wait).await.is_err() {
        panic!("timeout while waiting until {what}");
    }
}

async fn waiting(server: &TestApp) -> u64 {
    server.app.core.catalog.outbox_depth(Destination::Broker).await.expect("counted").0
}

async fn status(server: &TestApp, file: &str) -> u16 {
    server.me().get(&format!("/api/v2/files/{file}")).await.status.as_u16()
}

/// No poller runs in this test.
async fn an_unconfirmed_upload_is_checked_when_its_message_arrives(database: Database) {
    let env = env(database, &harness::rabbitmq::shared().create_vhost());
    let server = env.start().await;
    let _consumer = consume(&server);
    let grant = server.me().init("forgotten", 5).await.expect(201);
    let kept = server.me().upload("kept", b"bytes").await;
    assert_eq!(waiting(&server).await, 2);
    // One second before the check is due: the delay of a message runs in real time.
    env.advance(WINDOW_MS + GRACE_MS - 1_000);
    messages::relay(&server.app.core, broker_of(&server)).await.expect("published");
    assert_eq!(waiting(&server).await, 0);
    assert_eq!(status(&server, &id(&grant)).await, 200, "the check is not due yet");
    env.advance(1_000);
    eventually("the upload is reclaimed", async || status(&server, &id(&grant)).await == 410).await;
    assert_eq!(status(&server, &kept).await, 200);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

/// The check was postponed while its message was on the way.
async fn a_message_that_arrives_too_early_is_sent_again(database: Database) {
    let env = env(database, &harness::rabbitmq::shared().create_vhost());
    let server = env.start().await;
    let grant = server.me().init("reissued", 5).await.expect(201);
    env.advance(WINDOW_MS + GRACE_MS - 1_000);
    messages::relay(&server.app.core, broker_of(&server)).await.expect("published");
    server.me().post(&format!("/api/v2/files/{}/url", id(&grant)), json!({})).await.expect(200);
    env.advance(WINDOW_MS + GRACE_MS - 2_000);
    let _consumer = consume(&server);
    // The message arrives after one second, two seconds before the new time.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(status(&server, &id(&grant)).await, 200);
    env.advance(2_000);
    eventually("the upload is reclaimed", async || status(&server, &id(&grant)).await == 410).await;
}

/// Each message is sent three times, to two processes.
async fn a_repeated_message_runs_its_check_once(database: Database) {
    let env = env(database, &harness::rabbitmq::shared().create_vhost());
    let (one, other) = (env.start().await, env.start().await);
    let (_consumer, _other_consumer) = (consume(&one), consume(&other));
    let grants: Vec<_> =
        futures::future::join_all((0..10).map(async |_| one.me().init("f", 5).await.expect(201))).await;
    let broker = &one.app.broker.as_ref().expect("a broker").rabbit;
    let jobs = env.texts("SELECT id FROM jobs").await;
    assert_eq!(jobs.len(), 10);
    env.advance(WINDOW_MS + GRACE_MS);
    for _ in 0..3 {
        let messages: Vec<_> = jobs
            .iter()
            .map(|job| DelayedMessage { id: job.clone(), body: job.clone(), delay_ms: 0 })
            .collect();
        for outcome in broker.publish_delayed(&messages).await {
            outcome.expect("published");
        }
    }
    for grant in &grants {
        eventually("the upload is reclaimed", async || status(&one, &id(grant)).await == 410).await;
    }
    let answer = one.me().get("/api/v2/notifications?limit=1000").await.expect(200);
    assert_eq!(
        answer["notifications"].as_array().expect("a list").len(),
        10,
        "one notification for each file"
    );
    oracle::catalog_is_sound(&one).await;
}

async fn a_message_without_a_job_id_becomes_a_dead_letter(database: Database) {
    let shared = harness::rabbitmq::shared();
    let url = shared.create_vhost();
    let env = env(database, &url);
    let server = env.start().await;
    let _consumer = consume(&server);
    let broker = &server.app.broker.as_ref().expect("a broker").rabbit;
    let invalid = DelayedMessage { id: "n".into(), body: "not a job id".into(), delay_ms: 0 };
    let unknown = DelayedMessage { id: "g".into(), body: unknown_job_id(), delay_ms: 0 };
    for outcome in broker.publish_delayed(&[invalid, unknown]).await {
        outcome.expect("published");
    }
    let vhost = url.rsplit('/').next().expect("a vhost").to_owned();
    eventually("there is one dead letter", async || {
        let queues = shared.ctl(&["list_queues", "-p", &vhost, "name", "messages"]).expect("queues");
        let holds =
            |name: &str, count: &str| queues.lines().any(|line| line.split_whitespace().eq([name, count]));
        holds("resource.cleanup.dlq", "1") && holds("resource.cleanup", "0")
    })
    .await;
}

fn unknown_job_id() -> String {
    wharfinger_catalog::fresh_id(1).to_string()
}

/// An API process accepts a delete, and a worker process deletes the bytes at once. Its clock is stopped, so it does
/// not poll.
async fn a_worker_is_woken_by_another_process(database: Database) {
    let env = env(database, &harness::rabbitmq::shared().create_vhost());
    let (api, worker) = (env.start_as("api").await, env.start_as("worker").await);
    let supervisors = [Supervisor::start(&api.app).await, Supervisor::start(&worker.app).await];
    // A message that is sent before the worker listens is lost, so the test repeats the delete.
    eventually("the bytes are deleted", async || {
        let file = api.me().upload("f", b"bytes").await;
        api.me().delete(&format!("/api/v2/files/{file}")).await.expect(204);
        for _ in 0..100 {
            if oracle::stored(&env, &api).await.is_empty() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    })
    .await;
    for supervisor in supervisors {
        supervisor.stop().await;
    }
}

on_each_database!(
    an_unconfirmed_upload_is_checked_when_its_message_arrives,
    a_message_that_arrives_too_early_is_sent_again,
    a_repeated_message_runs_its_check_once,
    a_message_without_a_job_id_becomes_a_dead_letter,
    a_worker_is_woken_by_another_process,
);

/// The broker is wiped, down, and down during a start.
#[tokio::test(flavor = "multi_thread")]
async fn every_check_runs_later_if_the_broker_is_lost() {
    let mut rabbit = RabbitMq::start().expect("a server");
    let env = env(Database::Postgres, &rabbit.url());
    let server = env.start().await;
    let me = server.me();
    let wiped = id(&me.init("its message is wiped", 5).await.expect(201));
    messages::relay(&server.app.core, broker_of(&server)).await.expect("published");
    rabbit.wipe().expect("wiped");
    rabbit.kill().expect("killed");
    let unsent = id(&me.init("its message is not sent", 5).await.expect(201));
    messages::relay(&server.app.core, broker_of(&server)).await.expect("tried");
    assert_eq!(waiting(&server).await, 1, "the message waits in the outbox");
    me.get("/readyz").await.expect(200);
    // While the broker is down, the poller runs every check that is due.
    let broker = server.app.broker.as_ref().expect("a broker");
    assert_eq!(broker.delivery_grace_ms(), 0);
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    for file in [&wiped, &unsent] {
        assert_eq!(status(&server, file).await, 410);
    }
    let late = env.start().await;
    let _consumer = consume(&late);
    let grant = late.me().init("started while the broker is down", 5).await.expect(201);
    env.advance(WINDOW_MS + GRACE_MS - 1_000);
    rabbit.start_again().expect("started");
    eventually("the broker is back", async || {
        late.app.broker.as_ref().expect("a broker").check_connection().await;
        // The retry pause of the outbox uses this clock.
        env.advance(10);
        messages::relay(&late.app.core, broker_of(&late)).await.expect("published");
        waiting(&late).await == 0
    })
    .await;
    env.advance(120_000);
    eventually("the upload is reclaimed", async || status(&late, &id(&grant)).await == 410).await;
    late.settle().await;
    oracle::all_is_healed(&env, &late).await;
}
