//! What is wrong with a broker or its settings is said in one line that names it, and never with a password.

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use wharfinger_engines::rabbitmq::{BrokerError, Rabbit, RabbitOptions};

use super::site::{options, plain_channel, vhost, with_shared};

const PASSWORD: &str = "hunter2-is-secret";

async fn error_of(options: RabbitOptions) -> BrokerError {
    let error = Rabbit::open(options).await.err().expect("nothing that could be opened");
    let told = error.to_string();
    assert!(!told.contains(PASSWORD) && !told.contains('\n'), "{told}");
    println!("{told}");
    error
}

async fn refused(options: RabbitOptions, signs: &[&str]) {
    let error = error_of(options).await;
    assert!(matches!(error, BrokerError::Refused(_)) && !error.is_retryable(), "{error}");
    for sign in signs {
        assert!(error.to_string().contains(sign), "{error} does not say {sign}");
    }
}

/// Somebody who listens, and says this to whoever connects.
async fn stranger(words: Vec<u8>) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut hello = [0; 8];
            let _ = stream.read_exact(&mut hello).await;
            let _ = stream.write_all(&words).await;
            held.push(stream);
        }
    });
    format!("amqp://user:{PASSWORD}@127.0.0.1:{port}")
}

/// The first words of a broker that calls itself so.
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
async fn urls_that_are_none() {
    for url in
        ["", "amqp:", "http://127.0.0.1/", "127.0.0.1:5672", "amqp://a:b@h:port/", "amqp://h?heartbeat=x"]
    {
        let url = url.replace("a:b", &format!("a:{PASSWORD}"));
        refused(options(&url), &["amqp://user:password@host"]).await;
    }
    assert!(!format!("{:?}", options(&format!("amqp://a:{PASSWORD}@h"))).contains(PASSWORD));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there() {
    for host in ["127.0.0.1", "[::1]"] {
        let error = error_of(options(&format!("amqp://user:{PASSWORD}@{host}:1"))).await;
        assert!(error.is_retryable() && error.to_string().contains(":1: "), "{error}");
    }
    let error = error_of(options(&format!("amqp://user:{PASSWORD}@no-such-host.invalid"))).await;
    assert!(error.is_retryable() && error.to_string().contains("no-such-host.invalid"), "{error}");
    // A start while it is away costs nothing, and the first use says what is wrong.
    let rabbit = Rabbit::lazy(options(&format!("amqp://user:{PASSWORD}@127.0.0.1:1")));
    assert!(rabbit.check().await.is_err_and(|error| error.is_retryable()));
    assert_eq!(rabbit.version(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers() {
    let http = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n".to_vec();
    refused(options(&stranger(http).await), &["does not speak AMQP"]).await;
    refused(options(&stranger(b"AMQP\x00\x01\x00\x00".to_vec()).await), &["does not speak AMQP"]).await;
    refused(options(&stranger(greeting("Otherbroker", "9.1")).await), &["not RabbitMQ", "Otherbroker"]).await;
    refused(options(&stranger(greeting("RabbitMQ", "3.9.29")).await), &["3.9.29", "3.10"]).await;
    // One that says nothing at all is given up in time.
    let error = error_of(options(&stranger(Vec::new()).await)).await;
    assert!(error.is_retryable() && error.to_string().contains("no answer in time"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_credentials_and_virtual_hosts() {
    let url = vhost().await;
    let wrong = url.replace("guest:guest", &format!("guest:{PASSWORD}"));
    refused(options(&wrong), &["ACCESS_REFUSED"]).await;
    let (server, _) = url.rsplit_once('/').expect("a virtual host");
    refused(options(&format!("{server}/nobodys")), &["vhost", "nobodys"]).await;
    refused(options(&format!("{server}/")), &["%2F"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permissions() {
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
    permit("^wharfinger", ".*", ".*").await;
    refused(narrow.clone(), &["queue resource.cleanup.dlq", "configure"]).await;
    permit(".*", ".*", "^$").await;
    refused(narrow.clone(), &["queue resource.cleanup", "read"]).await;
    permit(".*", r"^(resource\.|amq\.default$)", ".*").await;
    refused(narrow.clone(), &["exchange wharfinger.wake", "refused"]).await;
    // What the message asks for is enough.
    let all = r"^(resource|wharfinger)\.";
    permit(all, r"^(resource|wharfinger)\.|^amq\.default$", all).await;
    let rabbit = Rabbit::open(narrow).await.expect("enough");
    let mut wakes = rabbit.wakeups();
    tokio::time::timeout(super::site::EVENTUALLY, wakes.listen()).await.expect("allowed to listen");
    super::site::publish(&rabbit, &[super::site::delayed("allowed", 0)]).await;
    super::site::take_one(&mut rabbit.due(1), "allowed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_with_other_arguments() {
    let url = vhost().await;
    let (_connection, channel) = plain_channel(&url).await;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel
        .queue_declare("resource.delayed.60000".into(), durable, FieldTable::default())
        .await
        .expect("declared");
    refused(options(&url), &["queue resource.delayed.60000", "other arguments", "delete it"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_exchange_that_is_not_there() {
    let delayed_exchange = RabbitOptions { delayed_exchange: true, ..options(&vhost().await) };
    refused(delayed_exchange, &["exchange resource.delayed", "unknown exchange type", "plugin"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_will_do_tells_its_version() {
    let rabbit = super::site::open(&vhost().await).await;
    super::site::at_last(|| rabbit.check()).await;
    assert!(rabbit.version().is_some_and(|version| version.split('.').count() >= 3));
}
