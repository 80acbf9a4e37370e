//! Two installations with different prefixes on one virtual host do not touch each other.

use std::time::Duration;

use wharfinger_engines::rabbitmq::{Rabbit, RabbitOptions};

use super::site::{
    EVENTUALLY, assert_no_message, delayed, next, options, publish, take, vhost, with_retries, with_shared,
};

async fn open(url: &str, prefix: &str) -> Rabbit {
    let options = || RabbitOptions { prefix: prefix.to_owned(), ..options(url) };
    with_retries(|| Rabbit::open(options())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn installations_with_different_prefixes_do_not_touch_each_other() {
    let url = vhost().await;
    let (one, other) = (open(&url, "shop").await, open(&url, "shop.test").await);
    let (mut due_of_one, mut due_of_other) = (one.due(10), other.due(10));
    let (mut wakes_of_one, mut wakes_of_other) = (one.wakeups(), other.wakeups());
    wakes_of_one.listen().await;
    wakes_of_other.listen().await;

    publish(&one, &[delayed("one at once", 0), delayed("one later", 1_500)]).await;
    publish(&other, &[delayed("other at once", 0), delayed("other later", 1_500)]).await;
    assert_eq!(take(&mut due_of_one, 2).await, ["one at once", "one later"]);
    assert_eq!(take(&mut due_of_other, 2).await, ["other at once", "other later"]);
    assert_no_message(&mut due_of_one, Duration::from_millis(300)).await;

    with_retries(|| one.wake(b"of one")).await;
    with_retries(|| other.wake(b"of other")).await;
    for (wakes, expected) in [(&mut wakes_of_one, b"of one".as_slice()), (&mut wakes_of_other, b"of other")] {
        assert_eq!(tokio::time::timeout(EVENTUALLY, wakes.next()).await.expect("a wake-up"), expected);
    }

    // Dead letters stay apart too.
    publish(&one, &[delayed("rejected", 0)]).await;
    next(&mut due_of_one).await.reject().await.expect("rejected");
    assert_eq!(super::site::fetch(&url, "shop.resource.cleanup.dlq").await, "body of rejected");

    let vhost = url.rsplit('/').next().expect("a virtual host").to_owned();
    let names = with_shared(move |server| {
        let queues = server.ctl(&["-q", "list_queues", "-p", &vhost, "name"]).expect("queues");
        let exchanges = server.ctl(&["-q", "list_exchanges", "-p", &vhost, "name"]).expect("exchanges");
        format!("{queues}\n{exchanges}")
    });
    let names = names.await;
    let ours = |line: &&str| !line.is_empty() && *line != "name" && !line.starts_with("amq.");
    let names: Vec<&str> = names.lines().map(str::trim).filter(ours).collect();
    assert!(names.len() >= 2 * 12, "{names:?}");
    for name in names {
        assert!(name.starts_with("shop."), "{name}");
    }
}
