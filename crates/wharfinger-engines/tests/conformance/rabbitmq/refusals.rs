//! Errors of the broker or its settings. The message is one line, names the problem and never contains the password.

use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use wharfinger_engines::rabbitmq::{BrokerError, Rabbit, RabbitOptions};

use super::site::{options, plain_channel, vhost, with_shared};

const PASSWORD: &str = "hunter2-is-secret";

async fn error_of(options: RabbitOptions) -> BrokerError {
    let error = Rabbit::open(options).await.err().expect("opening fails");
    let message = error.to_string();
    assert!(!message.contains(PASSWORD) && !message.contains('\n'), "{message}");
    println!("{message}");
    error
}

async fn assert_refused(options: RabbitOptions, expected: &[&str]) {
    let error = error_of(options).await;
    assert!(matches!(error, BrokerError::Refused(_)) && !error.is_retryable(), "{error}");
    for part in expected {
        assert!(error.to_string().contains(part), "{error} does not contain {part}");
    }
}

/// A server that is not RabbitMQ. It sends these bytes on every connection. Returns its URL.
async fn other_server(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut hello = [0; 8];
            let _ = stream.read_exact(&mut hello).await;
            let _ = stream.write_all(&answer).await;
            connections.push(stream);
        }
    });
    format!("amqp://user:{PASSWORD}@127.0.0.1:{port}")
}

/// The first frame of a broker with this product name and version.
fn greeting(product: &str, version: &str) -> Vec<u8> {
    let mut table = Vec::new();
    for (name, value) in [("product", product), ("version", version)] {
        table.push(u8::try_from(name.len()).expect("short"));
        table.extend(name.as_bytes());
        table.push(b'S');
        table.extend(u32::try_from(value.len()).expect("short").to_be_bytes());
        table.extend(value.as_bytes());
    }
    let mut method = vec![0, 10, 0, 10, 0, 9];
    method.extend(u32::try_from(table.len()).expect("short").to_be_bytes());
    method.extend(table);
    for text in ["PLAIN", "en_US"] {
        method.extend(u32::try_from(text.len()).expect("short").to_be_bytes());
        method.extend(text.as_bytes());
    }
    let mut frame = vec![1, 0, 0];
    frame.extend(u32::try_from(method.len()).expect("short").to_be_bytes());
    frame.extend(method);
    frame.push(0xCE);
    frame
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_url_is_refused() {
    for url in
        ["", "amqp:", "http://127.0.0.1/", "127.0.0.1:5672", "amqp://a:b@h:port/", "amqp://h?heartbeat=x"]
    {
        let url = url.replace("a:b", &format!("a:{PASSWORD}"));
        assert_refused(options(&url), &["amqp://user:password@host"]).await;
    }
    assert!(!format!("{:?}", options(&format!("amqp://a:{PASSWORD}@h"))).contains(PASSWORD));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_broker_is_retryable() {
    for host in ["127.0.0.1", "[::1]"] {
        let error = error_of(options(&format!("amqp://user:{PASSWORD}@{host}:1"))).await;
        assert!(error.is_retryable() && error.to_string().contains(":1: "), "{error}");
    }
    let error = error_of(options(&format!("amqp://user:{PASSWORD}@no-such-host.invalid"))).await;
    assert!(error.is_retryable() && error.to_string().contains("no-such-host.invalid"), "{error}");
    // A lazy start succeeds without the broker, and the first use reports the error.
    let rabbit = Rabbit::lazy(options(&format!("amqp://user:{PASSWORD}@127.0.0.1:1")));
    assert!(rabbit.check().await.is_err_and(|error| error.is_retryable()));
    assert_eq!(rabbit.version(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_a_supported_rabbitmq_is_refused() {
    let http = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n".to_vec();
    assert_refused(options(&other_server(http).await), &["does not speak AMQP"]).await;
    assert_refused(options(&other_server(b"AMQP\x00\x01\x00\x00".to_vec()).await), &["does not speak AMQP"])
        .await;
    assert_refused(
        options(&other_server(greeting("Otherbroker", "9.1")).await),
        &["not RabbitMQ", "Otherbroker"],
    )
    .await;
    assert_refused(options(&other_server(greeting("RabbitMQ", "3.9.29")).await), &["3.9.29", "3.10"]).await;
    // A silent server causes a timeout.
    let error = error_of(options(&other_server(Vec::new()).await)).await;
    assert!(error.is_retryable() && error.to_string().contains("no answer in time"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_credentials_and_missing_virtual_hosts_are_refused() {
    let url = vhost().await;
    let wrong = url.replace("guest:guest", &format!("guest:{PASSWORD}"));
    assert_refused(options(&wrong), &["ACCESS_REFUSED"]).await;
    let (server, _) = url.rsplit_once('/').expect("a virtual host");
    assert_refused(options(&format!("{server}/missing")), &["vhost", "missing"]).await;
    assert_refused(options(&format!("{server}/")), &["%2F"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permissions_are_refused_with_their_name() {
    let url = vhost().await;
    let (_, name) = url.rsplit_once('/').expect("a virtual host");
    let name = name.to_owned();
    let permit = |configure: &'static str, write: &'static str, read: &'static str| {
        let name = name.clone();
        with_shared(move |server| {
            let _ = server.ctl(&["add_user", &name, PASSWORD]);
            server.ctl(&["set_permissions", "-p", &name, &name, configure, write, read]).expect("permitted");
        })
    };
    let narrow = options(&url.replace("guest:guest", &format!("{name}:{PASSWORD}")));
    permit("^other", ".*", ".*").await;
    assert_refused(narrow.clone(), &["queue wharfinger.resource.cleanup.dlq", "configure"]).await;
    permit(".*", ".*", "^$").await;
    assert_refused(narrow.clone(), &["queue wharfinger.resource.cleanup", "read"]).await;
    permit(".*", r"^(wharfinger\.resource\.|amq\.default$)", ".*").await;
    assert_refused(narrow.clone(), &["exchange wharfinger.wake", "refused"]).await;
    // The permissions that the error message names are sufficient.
    let all = r"^wharfinger\.";
    permit(all, r"^wharfinger\.|^amq\.default$", all).await;
    let rabbit = Rabbit::open(narrow).await.expect("sufficient permissions");
    let mut wakes = rabbit.wakeups();
    tokio::time::timeout(super::site::EVENTUALLY, wakes.listen()).await.expect("allowed to listen");
    super::site::publish(&rabbit, &[super::site::delayed("allowed", 0)]).await;
    super::site::take_one(&mut rabbit.due(1), "allowed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_with_other_arguments_is_refused_with_a_remedy() {
    let url = vhost().await;
    let (_connection, channel) = plain_channel(&url).await;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel
        .queue_declare("wharfinger.resource.delayed.60000".into(), durable, FieldTable::default())
        .await
        .expect("declared");
    let expected =
        ["queue wharfinger.resource.delayed.60000", "other arguments", "declared", "found", "AMQP_PREFIX"];
    assert_refused(options(&url), &expected).await;
    let error = error_of(options(&url)).await.to_string();
    assert!(!error.contains("delete"), "it may belong to another application: {error}");
    // Another name helps, and leaves the foreign queue as it is.
    let other = RabbitOptions { prefix: "wharf-2".into(), ..options(&url) };
    let rabbit = Rabbit::open(other).await.expect("other names");
    super::site::publish(&rabbit, &[super::site::delayed("fine", 0)]).await;
    super::site::take_one(&mut rabbit.due(1), "fine").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_or_an_exclusive_queue_of_another_application_is_refused_with_a_remedy() {
    let url = vhost().await;
    let (_connection, channel) = plain_channel(&url).await;
    channel
        .exchange_declare(
            "a.wake".into(),
            lapin::ExchangeKind::Topic,
            ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() },
            FieldTable::default(),
        )
        .await
        .expect("declared");
    let a = RabbitOptions { prefix: "a".into(), ..options(&url) };
    assert_refused(a, &["exchange a.wake", "`type` declared 'fanout', found 'topic'", "AMQP_PREFIX"]).await;
    let exclusive = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    channel
        .queue_declare("b.resource.cleanup".into(), exclusive, FieldTable::default())
        .await
        .expect("declared");
    let b = RabbitOptions { prefix: "b".into(), ..options(&url) };
    assert_refused(b, &["queue b.resource.cleanup", "exclusive", "AMQP_PREFIX"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_delayed_exchange_plugin_is_refused_with_a_remedy() {
    let delayed_exchange = RabbitOptions { delayed_exchange: true, ..options(&vhost().await) };
    assert_refused(
        delayed_exchange,
        &["exchange wharfinger.resource.delayed", "unknown exchange type", "plugin"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supported_broker_shows_its_version() {
    let rabbit = super::site::open(&vhost().await).await;
    super::site::with_retries(|| rabbit.check()).await;
    assert!(rabbit.version().is_some_and(|version| version.split('.').count() >= 3));
}
