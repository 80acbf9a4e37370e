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
    assert_eq!(waiting(&server).await, 2, "one line is for the confirmed file");
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
            .map(|job| DelayedMessage { id: job.clone(), body: check_orphan(job), delay_ms: 0 })
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

/// A body with this job. The other fields are hints, so they may be missing.
fn check_orphan(job: &str) -> Vec<u8> {
    json!({ "action": "CHECK_ORPHAN", "jobId": job }).to_string().into_bytes()
}

/// How many messages are in this queue.
fn depth(url: &str, queue: &str) -> u64 {
    let vhost = url.rsplit('/').next().expect("a vhost");
    let listed = harness::rabbitmq::shared().ctl(&["list_queues", "-p", vhost, "name", "messages"]);
    let listed = listed.expect("queues");
    let found = listed.lines().find_map(|line| line.strip_prefix(queue)?.strip_prefix(char::is_whitespace));
    found.map_or(0, |count| count.trim().parse().expect("a number"))
}

async fn unknown_messages(server: &TestApp) -> u64 {
    let metrics = server.metrics().await;
    let line =
        metrics.lines().find_map(|line| line.strip_prefix("wharfinger_broker_unknown_messages_total "));
    line.expect("the metric").parse().expect("a number")
}

/// Nothing is lost, requeued in a loop, or guessed.
async fn messages_that_cannot_be_read_become_dead_letters(database: Database) {
    let url = harness::rabbitmq::shared().create_vhost();
    let env = env(database, &url);
    let server = env.start().await;
    let before = unknown_messages(&server).await;
    let grant = server.me().init("waits", 5).await.expect(201);
    let job = env.texts("SELECT id FROM jobs").await.remove(0);
    let _consumer = consume(&server);
    let broker = &broker_of(&server).rabbit;
    let unreadable = [
        job.clone().into_bytes(),
        b"\xff\xfe".to_vec(),
        json!({ "action": "DELETE_ALL", "jobId": job }).to_string().into_bytes(),
        json!({ "action": "CHECK_ORPHAN", "fileId": id(&grant) }).to_string().into_bytes(),
        json!({ "action": "RUN_CLEANUPS" }).to_string().into_bytes(),
    ];
    let unknown_job = check_orphan(&wharfinger_catalog::fresh_id(1).to_string());
    let bodies = unreadable.iter().cloned().chain([unknown_job]);
    let messages: Vec<_> = bodies.map(|body| DelayedMessage { id: "m".into(), body, delay_ms: 0 }).collect();
    for outcome in broker.publish_delayed(&messages).await {
        outcome.expect("published");
    }
    eventually("the others are dead letters", async || {
        depth(&url, "wharfinger.resource.cleanup.dlq") == 5 && depth(&url, "wharfinger.resource.cleanup") == 0
    })
    .await;
    assert!(unknown_messages(&server).await >= before + 5);
    assert_eq!(status(&server, &id(&grant)).await, 200, "the message for its file was not obeyed");
}

/// Each process has its own copy, which cannot be rejected: a copy is added to the dead letters.
async fn a_wakeup_that_cannot_be_read_is_kept_and_the_next_one_works(database: Database) {
    let url = harness::rabbitmq::shared().create_vhost();
    let env = env(database, &url);
    let server = env.start().await;
    let before = unknown_messages(&server).await;
    let (app, stop) = (server.app.clone(), CancellationToken::new());
    let _stopped = stop.clone().drop_guard();
    let listening = async move {
        messages::receive_wakeups(&app.core, app.broker.as_ref().expect("a broker"), &stop).await;
    };
    tokio::spawn(listening);
    // A wake-up that is sent before the process listens is lost, so the test repeats it.
    eventually("it is a dead letter", async || {
        let _ = broker_of(&server).rabbit.wake(br#"{"action":"DANCE"}"#).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        depth(&url, "wharfinger.resource.cleanup.dlq") > 0
    })
    .await;
    assert!(unknown_messages(&server).await > before);
    let woken = server.app.core.wakeups.cleanup.notified();
    broker_of(&server).rabbit.wake(br#"{"action":"RUN_CLEANUPS"}"#).await.expect("sent");
    tokio::time::timeout(Duration::from_secs(60), woken).await.expect("the reaper is woken");
}

/// The message is JSON for people. Its fields are hints: the check reads its row.
async fn a_message_says_what_it_is(database: Database) {
    let url = harness::rabbitmq::shared().create_vhost();
    let env = env(database, &url);
    let server = env.start().await;
    let grant = server.me().init("forgotten", 5).await.expect(201);
    let confirmed = server.me().upload("kept", b"bytes").await;
    let job = env.texts("SELECT id FROM jobs").await.remove(0);
    env.advance(WINDOW_MS + GRACE_MS);
    assert_eq!(messages::relay(&server.app.core, broker_of(&server)).await.expect("published"), 1);
    assert_eq!(waiting(&server).await, 0, "the line of the confirmed file needs no message");
    let mut due = broker_of(&server).rabbit.due(1);
    let message = due.next().await;
    let body: serde_json::Value = serde_json::from_slice(&message.body).expect("JSON");
    let expected = json!({
        "action": "CHECK_ORPHAN", "fileId": id(&grant), "tenantId": "t", "size": 5, "jobId": job,
    });
    assert_eq!(body, expected);
    drop((message, due));

    // A message that names another file: the job decides.
    let lie =
        json!({ "action": "CHECK_ORPHAN", "fileId": confirmed, "tenantId": "x", "size": 0, "jobId": job });
    let lie = DelayedMessage { id: "l".into(), body: lie.to_string().into_bytes(), delay_ms: 0 };
    broker_of(&server).rabbit.publish_delayed(&[lie]).await.remove(0).expect("published");
    let _consumer = consume(&server);
    eventually("the upload is reclaimed", async || status(&server, &id(&grant)).await == 410).await;
    assert_eq!(status(&server, &confirmed).await, 200);
}

/// Two installations share a virtual host. Each gets its own checks and wake-ups.
async fn installations_with_different_prefixes_share_a_broker(database: Database) {
    let url = harness::rabbitmq::shared().create_vhost();
    let shop = TestEnv::with(database, &[("WHARFINGER_BROKER_URL", &url), ("AMQP_PREFIX", "shop")]);
    let lab = TestEnv::with(database, &[("WHARFINGER_BROKER_URL", &url), ("AMQP_PREFIX", "lab")]);
    let (of_shop, of_lab) = (shop.start().await, lab.start().await);
    let _consumers = [consume(&of_shop), consume(&of_lab)];
    let (in_shop, in_lab) =
        (of_shop.me().init("f", 5).await.expect(201), of_lab.me().init("f", 5).await.expect(201));
    for (env, server) in [(&shop, &of_shop), (&lab, &of_lab)] {
        env.advance(WINDOW_MS + GRACE_MS);
        messages::relay(&server.app.core, broker_of(server)).await.expect("published");
    }
    eventually("both are reclaimed", async || {
        status(&of_shop, &id(&in_shop)).await == 410 && status(&of_lab, &id(&in_lab)).await == 410
    })
    .await;
    for queue in ["shop.resource.cleanup.dlq", "lab.resource.cleanup.dlq", "wharfinger.resource.cleanup"] {
        assert_eq!(depth(&url, queue), 0, "{queue}");
    }
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
    messages_that_cannot_be_read_become_dead_letters,
    a_wakeup_that_cannot_be_read_is_kept_and_the_next_one_works,
    a_message_says_what_it_is,
    installations_with_different_prefixes_share_a_broker,
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
