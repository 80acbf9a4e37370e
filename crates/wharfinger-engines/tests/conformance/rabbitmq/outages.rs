//! Brokers that are killed, wiped, stopped, full, or cut off: in bounded time an error, and later all is well.

use std::time::{Duration, Instant};

use harness::proxy::Proxy;
use harness::rabbitmq::RabbitMq;
use wharfinger_engines::rabbitmq::{BrokerError, Rabbit};

use super::site::{
    EVENTUALLY, at_last, delayed, next, open, options, publish, publish_at_last, publish_one, take_one, vhost,
};

/// What one call may take at worst: to connect and to be confirmed, each 10 s, and some for a busy machine.
const BOUND: Duration = Duration::from_secs(30);

/// Than a confirmation is waited for.
const SOONER: Duration = Duration::from_secs(8);

async fn breaking(
    mut server: RabbitMq,
    fault: impl FnOnce(&mut RabbitMq) -> Result<(), harness::Error> + Send + 'static,
) -> RabbitMq {
    let breaking = tokio::task::spawn_blocking(move || {
        fault(&mut server).expect("broken");
        server
    });
    breaking.await.expect("broken")
}

async fn started() -> RabbitMq {
    tokio::task::spawn_blocking(|| RabbitMq::start().expect("a server of its own, to be broken"))
        .await
        .expect("started")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_confirmed_survives_a_kill_and_a_wiped_broker_is_furnished_again() {
    let mut server = started().await;
    let rabbit = open(&server.url()).await;
    let (mut due, mut wakes) = (rabbit.due(10), rabbit.wakeups());
    wakes.listen().await;
    publish(&rabbit, &[delayed("warm", 0)]).await;
    take_one(&mut due, "warm").await;
    server = breaking(server, |server| server.flush_queue_metadata()).await;

    let kept: Vec<_> =
        (0..20).map(|n| delayed(format!("kept-{n}"), if n % 2 == 0 { 5_000 } else { 0 })).collect();
    publish(&rabbit, &kept).await;
    server = breaking(server, RabbitMq::kill).await;
    let begun = Instant::now();
    let error = publish_one(&rabbit, &delayed("lost", 0)).await.expect_err("nobody took it");
    assert!(matches!(error, BrokerError::Unavailable(_)) && begun.elapsed() < BOUND, "{error}");
    server = breaking(server, RabbitMq::start_again).await;
    let mut missing: Vec<String> = kept.into_iter().map(|message| message.id).collect();
    let receiving = async {
        while !missing.is_empty() {
            let message = due.next().await;
            missing.retain(|id| *id != message.id);
            let _ = message.ack().await;
        }
    };
    tokio::time::timeout(EVENTUALLY, receiving).await.expect("all that was confirmed");

    server = breaking(server, RabbitMq::wipe).await;
    // Nobody told either handle: one declares before it publishes, the other before it consumes.
    publish_at_last(&rabbit, delayed("afterwards", 1_000)).await;
    take_one(&mut due, "afterwards").await;
    let waking = async {
        loop {
            let _ = rabbit.wake("jobs").await;
            if tokio::time::timeout(Duration::from_millis(300), wakes.next()).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(EVENTUALLY, waking).await.expect("heard at last");
    at_last(|| rabbit.check()).await;
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stands_still_or_is_full_is_unavailable_for_as_long() {
    let mut server = started().await;
    let url = server.url();
    let rabbit = open(&url).await;
    let mut due = rabbit.due(10);
    publish(&rabbit, &[delayed("warm", 0)]).await;
    take_one(&mut due, "warm").await;

    server = breaking(server, RabbitMq::pause).await;
    let begun = Instant::now();
    let error = publish_one(&rabbit, &delayed("lost", 0)).await.expect_err("nobody took it");
    println!("a paused broker: {error} after {:?}", begun.elapsed());
    assert!(matches!(error, BrokerError::Unavailable(_)), "{error}");
    let error = rabbit.check().await.expect_err("it stands still");
    assert!(matches!(error, BrokerError::Unavailable(_)), "{error}");
    let error = Rabbit::open(options(&url)).await.err().expect("it stands still");
    assert!(matches!(error, BrokerError::Unavailable(_)), "{error}");
    assert!(begun.elapsed() < BOUND * 2, "{:?}", begun.elapsed());
    server = breaking(server, RabbitMq::resume).await;
    publish_at_last(&rabbit, delayed("resumed", 0)).await;
    take_one(&mut due, "resumed").await;

    server =
        breaking(server, |server| server.ctl(&["set_vm_memory_high_watermark", "0.000001"]).map(drop)).await;
    let begun = Instant::now();
    let error = publish_one(&rabbit, &delayed("full", 0)).await.expect_err("it takes nothing");
    println!("a full broker: {error} after {:?}", begun.elapsed());
    assert!(matches!(error, BrokerError::Unavailable(_)) && begun.elapsed() < BOUND, "{error}");
    let begun = Instant::now();
    let error = publish_one(&rabbit, &delayed("full", 0)).await.expect_err("it takes nothing");
    assert!(error.to_string().contains("memory") && begun.elapsed() < SOONER, "{error}");
    assert!(rabbit.check().await.is_err_and(|error| error.is_retryable()));
    server = breaking(server, |server| server.ctl(&["set_vm_memory_high_watermark", "0.4"]).map(drop)).await;
    publish_at_last(&rabbit, delayed("room", 0)).await;
    take_one(&mut due, "room").await;
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_is_made_again_and_what_was_open_comes_again() {
    let direct = vhost().await;
    let port =
        direct.split(['@', '/']).nth(3).and_then(|host| host.rsplit_once(':')).expect("a port").1.to_owned();
    let proxy = Proxy::to(format!("127.0.0.1:{port}")).expect("a proxy");
    let rabbit = open(&direct.replace(&format!(":{port}/"), &format!(":{}/", proxy.addr().port()))).await;
    let mut due = rabbit.due(10);
    publish(&rabbit, &[delayed("open", 0), delayed("hopping", 3_000)]).await;
    let held = next(&mut due).await;
    assert_eq!(held.id, "open");

    proxy.cut();
    let begun = Instant::now();
    let error = publish_one(&rabbit, &delayed("lost", 0)).await.expect_err("cut off");
    assert!(matches!(error, BrokerError::Unavailable(_)) && begun.elapsed() < BOUND, "{error}");
    // Until the other connection has noticed too.
    let _ = tokio::time::timeout(Duration::from_secs(5), due.next()).await;
    assert!(held.ack().await.is_err(), "acknowledged over nothing");
    proxy.repair().expect("repaired");
    let again = next(&mut due).await;
    assert!(again.id == "open" && again.redelivered);
    again.ack().await.expect("acknowledged");
    take_one(&mut due, "hopping").await;

    // A line that swallows everything is found out by the clock alone.
    proxy.stall(true);
    let begun = Instant::now();
    let error = publish_one(&rabbit, &delayed("swallowed", 0)).await.expect_err("swallowed");
    assert!(matches!(error, BrokerError::Unavailable(_)) && begun.elapsed() < BOUND, "{error}");
    proxy.repair().expect("repaired");
    publish_at_last(&rabbit, delayed("after", 0)).await;
    take_one(&mut due, "after").await;
}
