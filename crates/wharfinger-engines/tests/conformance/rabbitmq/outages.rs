//! Outages: brokers that are killed, wiped, paused, full or disconnected. Calls fail in limited time and work again
//! later.

use std::time::{Duration, Instant};

use harness::proxy::Proxy;
use harness::rabbitmq::RabbitMq;
use wharfinger_engines::rabbitmq::{BrokerError, Rabbit};

use super::site::{
    EVENTUALLY, JOBS, delayed, next, open, options, publish, publish_one, publish_with_retries, take_one,
    vhost, with_retries,
};

/// The maximum time of one call: 10 s to connect, 10 s for the confirm, and 10 s reserve for a busy machine.
const CALL_TIME_MAX: Duration = Duration::from_secs(30);

/// Shorter than the timeout for confirms.
const BELOW_CONFIRM_TIMEOUT: Duration = Duration::from_secs(8);

async fn with_fault(
    mut server: RabbitMq,
    fault: impl FnOnce(&mut RabbitMq) -> Result<(), harness::Error> + Send + 'static,
) -> RabbitMq {
    let with_fault = tokio::task::spawn_blocking(move || {
        fault(&mut server).expect("the fault is applied");
        server
    });
    with_fault.await.expect("the fault is applied")
}

async fn started() -> RabbitMq {
    tokio::task::spawn_blocking(|| RabbitMq::start().expect("a server for this test")).await.expect("started")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_messages_survive_a_kill_and_a_wiped_broker_gets_its_queues_again() {
    let mut server = started().await;
    let rabbit = open(&server.url()).await;
    let (mut due, mut wakes) = (rabbit.due(10), rabbit.wakeups());
    wakes.listen().await;
    publish(&rabbit, &[delayed("warm", 0)]).await;
    take_one(&mut due, "warm").await;
    server = with_fault(server, |server| server.flush_queue_metadata()).await;

    let kept: Vec<_> =
        (0..20).map(|n| delayed(format!("kept-{n}"), if n % 2 == 0 { 5_000 } else { 0 })).collect();
    publish(&rabbit, &kept).await;
    server = with_fault(server, RabbitMq::kill).await;
    let started_at = Instant::now();
    let error = publish_one(&rabbit, &delayed("lost", 0)).await.expect_err("the broker is down");
    assert!(matches!(error, BrokerError::Unavailable(_)) && started_at.elapsed() < CALL_TIME_MAX, "{error}");
    server = with_fault(server, RabbitMq::start_again).await;
    let mut missing: Vec<String> = kept.into_iter().map(|message| message.id).collect();
    let receiving = async {
        while !missing.is_empty() {
            let message = due.next().await;
            missing.retain(|id| *id != message.id);
            let _ = message.ack().await;
        }
    };
    tokio::time::timeout(EVENTUALLY, receiving).await.expect("all confirmed messages arrive");

    server = with_fault(server, RabbitMq::wipe).await;
    // The two connections detect the wipe separately: one declares before it publishes, the other before it consumes.
    publish_with_retries(&rabbit, delayed("afterwards", 1_000)).await;
    take_one(&mut due, "afterwards").await;
    let waking = async {
        loop {
            let _ = rabbit.wake(JOBS).await;
            if tokio::time::timeout(Duration::from_millis(300), wakes.next()).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(EVENTUALLY, waking).await.expect("a wake-up arrives");
    with_retries(|| rabbit.check()).await;
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_or_full_broker_is_unavailable_until_it_recovers() {
    let mut server = started().await;
    let url = server.url();
    let rabbit = open(&url).await;
    let mut due = rabbit.due(10);
    publish(&rabbit, &[delayed("warm", 0)]).await;
    take_one(&mut due, "warm").await;

    server = with_fault(server, RabbitMq::pause).await;
    let started_at = Instant::now();
    let error = publish_one(&rabbit, &delayed("lost", 0)).await.expect_err("the broker is down");
    println!("a paused broker: {error} after {:?}", started_at.elapsed());
    assert!(matches!(error, BrokerError::Unavailable(_)), "{error}");
    let error = rabbit.check().await.expect_err("the broker is paused");
    assert!(matches!(error, BrokerError::Unavailable(_)), "{error}");
    let error = Rabbit::open(options(&url)).await.err().expect("the broker is paused");
    assert!(matches!(error, BrokerError::Unavailable(_)), "{error}");
    assert!(started_at.elapsed() < CALL_TIME_MAX * 2, "{:?}", started_at.elapsed());
    server = with_fault(server, RabbitMq::resume).await;
    publish_with_retries(&rabbit, delayed("resumed", 0)).await;
    take_one(&mut due, "resumed").await;

    server = with_fault(server, |server| server.ctl(&["set_vm_memory_high_watermark", "0.000001"]).map(drop))
        .await;
    let started_at = Instant::now();
    let error = publish_one(&rabbit, &delayed("full", 0)).await.expect_err("the broker is full");
    println!("a full broker: {error} after {:?}", started_at.elapsed());
    assert!(matches!(error, BrokerError::Unavailable(_)) && started_at.elapsed() < CALL_TIME_MAX, "{error}");
    let started_at = Instant::now();
    let error = publish_one(&rabbit, &delayed("full", 0)).await.expect_err("the broker is full");
    assert!(error.to_string().contains("memory") && started_at.elapsed() < BELOW_CONFIRM_TIMEOUT, "{error}");
    assert!(rabbit.check().await.is_err_and(|error| error.is_retryable()));
    server =
        with_fault(server, |server| server.ctl(&["set_vm_memory_high_watermark", "0.4"]).map(drop)).await;
    publish_with_retries(&rabbit, delayed("room", 0)).await;
    take_one(&mut due, "room").await;
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_is_reopened_and_unacknowledged_messages_are_redelivered() {
    let direct = vhost().await;
    let port =
        direct.split(['@', '/']).nth(3).and_then(|host| host.rsplit_once(':')).expect("a port").1.to_owned();
    let proxy = Proxy::to(format!("127.0.0.1:{port}")).expect("a proxy");
    let rabbit = open(&direct.replace(&format!(":{port}/"), &format!(":{}/", proxy.addr().port()))).await;
    let mut due = rabbit.due(10);
    publish(&rabbit, &[delayed("open", 0), delayed("forwarded", 3_000)]).await;
    let held = next(&mut due).await;
    assert_eq!(held.id, "open");

    proxy.cut();
    let started_at = Instant::now();
    let error = publish_one(&rabbit, &delayed("lost", 0)).await.expect_err("cut off");
    assert!(matches!(error, BrokerError::Unavailable(_)) && started_at.elapsed() < CALL_TIME_MAX, "{error}");
    // Until the other connection has detected the cut too.
    let _ = tokio::time::timeout(Duration::from_secs(5), due.next()).await;
    assert!(held.ack().await.is_err(), "there is no connection for the acknowledgement");
    proxy.repair().expect("repaired");
    let again = next(&mut due).await;
    assert!(again.id == "open" && again.redelivered);
    again.ack().await.expect("acknowledged");
    take_one(&mut due, "forwarded").await;

    // A stalled connection is only detected by a timeout.
    proxy.stall(true);
    let started_at = Instant::now();
    let error = publish_one(&rabbit, &delayed("stalled", 0)).await.expect_err("stalled");
    assert!(matches!(error, BrokerError::Unavailable(_)) && started_at.elapsed() < CALL_TIME_MAX, "{error}");
    proxy.repair().expect("repaired");
    publish_with_retries(&rabbit, delayed("after", 0)).await;
    take_one(&mut due, "after").await;
}
