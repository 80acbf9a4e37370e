//! Publishing: a message counts as published only after the broker confirmed it.

use std::time::{Duration, Instant};

use futures::future::join_all;
use lapin::options::BasicGetOptions;
use wharfinger_calls::faults::{Fault, Faults};
use wharfinger_engines::rabbitmq::{BrokerError, Rabbit, RabbitOptions};

use super::site::{
    delayed, delete_queue, exists, next, open, options, plain_channel, publish, publish_one,
    publish_with_retries, take, vhost,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_call_returns_one_result_per_message() {
    let rabbit = open(&vhost().await).await;
    let messages: Vec<_> = (0..500).map(|n| delayed(n, 0)).collect();
    let started = Instant::now();
    let outcomes = rabbit.publish_delayed(&messages).await;
    println!("500 confirmed messages took {:?}", started.elapsed());
    assert_eq!(outcomes, vec![Ok(()); 500]);
    let mut received: Vec<usize> =
        take(&mut rabbit.due(100), 500).await.iter().map(|id| id.parse().expect("a number")).collect();
    received.sort_unstable();
    assert_eq!(received, (0..500).collect::<Vec<_>>());
    assert_eq!(rabbit.publish_delayed(&[]).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_messages_without_a_queue_fail() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    publish(&rabbit, &[delayed("before", 0)]).await;
    delete_queue(&url, "wharfinger.resource.delayed.5000").await;
    let messages: Vec<_> = (0..100).map(|n| delayed(n, if n % 3 == 0 { 5_000 } else { 0 })).collect();
    let outcomes = rabbit.publish_delayed(&messages).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Ok(()) => assert_ne!(n % 3, 0, "{n} has no queue"),
            Err(error) => {
                assert!(matches!(error, BrokerError::Returned(_)) && error.is_retryable(), "{n}: {error}");
                assert_eq!(n % 3, 0, "{n} has a queue: {error}");
            }
        }
    }
    // The next call with the same handle declares the queue again.
    publish(&rabbit, &[delayed("after", 5_000)]).await;
    assert!(exists(&url, "wharfinger.resource.delayed.5000").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_get_their_own_results() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    delete_queue(&url, "wharfinger.resource.delayed.15000").await;
    let kinds = [0, 15_000, 0, 0];
    let calls = kinds.map(|delay| {
        let rabbit = rabbit.clone();
        async move {
            let messages: Vec<_> = (0..50).map(|n| delayed(n, delay)).collect();
            rabbit.publish_delayed(&messages).await
        }
    });
    for (delay, outcomes) in kinds.into_iter().zip(join_all(calls).await) {
        assert_eq!(outcomes.len(), 50);
        if delay == 0 {
            assert_eq!(outcomes, vec![Ok(()); 50]);
        } else {
            assert!(outcomes.iter().all(Result::is_err), "there is no queue for these messages");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_call_does_not_affect_later_calls() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    delete_queue(&url, "wharfinger.resource.delayed.15000").await;
    let lost: Vec<_> = (0..200).map(|n| delayed(n, 15_000)).collect();
    for micros in [50, 500, 2_000, 10_000] {
        let _ = tokio::time::timeout(Duration::from_micros(micros), rabbit.publish_delayed(&lost)).await;
        publish(&rabbit, &[delayed("whole", 0)]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_message_does_not_stop_the_other_messages() {
    let rabbit = open(&vhost().await).await;
    let messages = [delayed("first", 0), delayed("x".repeat(300), 0), delayed("last", 0)];
    let outcomes = rabbit.publish_delayed(&messages).await;
    assert_eq!((&outcomes[0], &outcomes[2]), (&Ok(()), &Ok(())));
    assert!(matches!(&outcomes[1], Err(BrokerError::Refused(_))));
    publish(&rabbit, &[delayed("after", 0)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_can_declare_the_queues_at_the_same_time() {
    let url = vhost().await;
    for rabbit in join_all((0..6).map(|_| open(&url))).await {
        publish(&rabbit, &[delayed("hello", 0)]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_in_any_call_is_a_retryable_error() {
    let url = vhost().await;
    let script = |faults: Faults| {
        let options = RabbitOptions { faults, ..options(&url) };
        async move {
            let rabbit = Rabbit::lazy(options);
            let first = publish_one(&rabbit, &delayed("first", 0)).await;
            let checked = rabbit.check().await;
            let woken = rabbit.wake(b"{}").await;
            publish_with_retries(&rabbit, delayed("last", 0)).await;
            let mut due = rabbit.due(1);
            let mut received = String::new();
            while received != "last" {
                let message = next(&mut due).await;
                received = message.id.clone();
                let _ = message.ack().await;
            }
            rabbit.close().await;
            [first, checked, woken].into_iter().filter_map(Result::err).collect::<Vec<_>>()
        }
    };
    let counting = Faults::counting();
    assert_eq!(script(counting.clone()).await, []);
    let calls = counting.calls();
    assert!(calls >= 8, "only {calls} calls to the broker");
    for at in 1..=calls {
        for fault in [Fault::Fail, Fault::LoseAnswer] {
            let errors = script(Faults::at(at, fault)).await;
            assert!(errors.iter().all(BrokerError::is_retryable), "{errors:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_says_that_it_is_json() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    publish(&rabbit, &[delayed("typed", 0)]).await;
    let (_connection, channel) = plain_channel(&url).await;
    let getting = async {
        loop {
            let options = BasicGetOptions::default();
            let got =
                channel.basic_get("wharfinger.resource.cleanup".into(), options).await.expect("a reply");
            match got {
                Some(got) => return got.delivery.properties,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let properties = tokio::time::timeout(super::site::EVENTUALLY, getting).await.expect("a message");
    assert_eq!(properties.content_type().as_ref().map(|kind| kind.as_str()), Some("application/json"));
    assert_eq!(properties.message_id().as_ref().map(|id| id.as_str()), Some("typed"));
}
