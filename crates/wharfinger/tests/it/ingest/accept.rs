//! Which events are accepted, and how other requests are rejected.

use std::io::Write as _;

use reqwest::StatusCode;
use serde_json::{Value, json};
use wharfinger_lifecycle::key::EventsFolder;

use super::{EventServer, Sender, gzip, of_ids};

async fn rejected(
    sender: &Sender,
    body: impl Into<reqwest::Body>,
    headers: &[(&str, &str)],
) -> (StatusCode, Value) {
    let answer = sender.send(body, headers).await;
    (answer.status(), answer.json().await.expect("a problem"))
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_stored_unchanged_with_time_tenant_and_instance() {
    let mut server = EventServer::new(&[("INSTANCE_ID", "pier 7")]);
    server.start();
    let sender = server.sender();
    let odd = r#"{"id":3,"n":1.10e+5,"s":"\u00fc\n","dup":1,"dup":2}"#;
    let zstd = zstd::stream::encode_all(&b"[{\"id\":6}]"[..], 3).expect("zstd");
    for (body, headers, count) in [
        (b"{\"id\":0}".to_vec(), vec![("content-type", "application/json")], 1),
        (b"[{\"id\":1},{\"id\":2}]".to_vec(), vec![], 2),
        (
            format!("{odd}\n\n{{\"id\":4}}\r\n").into_bytes(),
            vec![("content-type", "application/x-ndjson")],
            2,
        ),
        (gzip(b"{\n  \"id\": 5\n}"), vec![("content-encoding", "gzip")], 1),
        (zstd, vec![("content-encoding", "zstd")], 1),
        (b"[]".to_vec(), vec![], 0),
    ] {
        let answer = sender.send(body, &headers).await;
        assert_eq!(answer.status(), StatusCode::ACCEPTED);
        assert_eq!(answer.json::<Value>().await.expect("JSON"), json!({ "accepted": count }));
    }
    assert_eq!(server.ids_once(7).await, [0, 1, 2, 3, 4, 5, 6]);
    let before =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs();
    for (name, lines) in server.stored().await {
        let (hour, file) = name.rsplit_once('/').expect("a folder for each hour");
        assert_eq!(hour.split('/').map(str::len).collect::<Vec<_>>(), [4, 2, 2, 2], "{name}");
        assert!(file.contains("_pier-7_") && file.ends_with(".jsonl.gz"), "{name}");
        for line in lines {
            assert_eq!((&line["tenant"], &line["instance"]), (&json!("acme"), &json!("pier 7")));
            assert!(line["ts"].as_u64().is_some_and(|ts| before - ts < 100), "{line}");
            assert_eq!(line.as_object().expect("an object").len(), 4, "{line}");
        }
    }
    let raw = server.objects(EventsFolder::Raw).await;
    let texts: Vec<String> = raw
        .values()
        .map(|gz| {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(gz.as_slice()), &mut text)
                .expect("text");
            text
        })
        .collect();
    assert!(texts.iter().any(|text| text.contains(&format!("\"body\":{odd}}}\n"))), "{texts:?}");
    server.until("s3_events_stored_total", |events| events == 7.0).await;
    assert_eq!(server.metric("dlq_events_dropped_total").await, 0.0);
    server.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_body_is_rejected_with_its_line_and_nothing_is_stored() {
    let mut server = EventServer::new(&[("INGEST_MAX_INFLATED_BYTES", "2MiB")]);
    server.start();
    let sender = server.sender();
    for (body, line) in [
        ("{\"id\":1}\n{\"id\":}\n".to_owned(), 2),
        ("{\"id\":1}\n\n7\n".to_owned(), 3),
        ("[{\"id\":1},\n{\"id\":2},\nnull]".to_owned(), 3),
        (format!("{{\"id\":1}}\n{{\"a\":{}1{}}}", "[".repeat(64), "]".repeat(64)), 2),
        (format!("{{\"id\":1}}\n{{\"a\":\"{}\"}}", "x".repeat(1 << 20)), 2),
    ] {
        let (status, problem) = rejected(&sender, body, &[]).await;
        assert_eq!(
            (status, &problem["code"], &problem["line"]),
            (StatusCode::BAD_REQUEST, &json!("invalid_request"), &json!(line)),
            "{problem}"
        );
        assert_eq!(problem["errors"][0]["field"], json!(format!("line {line}")));
    }
    let (status, problem) = rejected(&sender, "", &[]).await;
    assert_eq!((status, &problem["errors"][0]["field"]), (StatusCode::BAD_REQUEST, &json!("body")));
    let bomb = gzip(format!("{{\"a\":\"{}\"}}", "x".repeat(3 << 20)).as_bytes());
    assert!(bomb.len() < 100_000);
    for (body, headers, expected) in [
        (bomb, vec![("content-encoding", "gzip")], StatusCode::PAYLOAD_TOO_LARGE),
        (vec![b' '; (2 << 20) + 1], vec![], StatusCode::PAYLOAD_TOO_LARGE),
        ("{}\n".repeat(600_000).into_bytes(), vec![], StatusCode::PAYLOAD_TOO_LARGE),
        (b"not gzip".to_vec(), vec![("content-encoding", "gzip")], StatusCode::BAD_REQUEST),
        (
            gzip(of_ids(0..1_000).as_bytes())[..200].to_vec(),
            vec![("content-encoding", "gzip")],
            StatusCode::BAD_REQUEST,
        ),
        (b"{}".to_vec(), vec![("content-encoding", "br")], StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ] {
        let (status, problem) = rejected(&sender, body, &headers).await;
        assert_eq!(status, expected, "{problem}");
    }
    server.terminate();
    assert_eq!(server.ids().await, Vec::<u64>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn events_need_a_user_token_and_the_ingest_role() {
    let mut server = EventServer::new(&[]);
    server.start();
    let bare = reqwest::Client::new();
    let answer =
        bare.post(format!("{}/api/v2/events", server.url())).body("{}").send().await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    let worker = Sender { token: server.place.token("acme", "w", "worker"), ..server.sender() };
    assert_eq!(worker.send("{}", &[]).await.status(), StatusCode::FORBIDDEN);
    let elsewhere = bare.get(format!("{}/api/v2/files", server.url())).send().await.expect("an answer");
    assert_eq!(elsewhere.status(), StatusCode::NOT_FOUND, "this process accepts only events");
    let ready: Value = bare
        .get(format!("{}/readyz", server.url()))
        .send()
        .await
        .expect("an answer")
        .json()
        .await
        .expect("JSON");
    assert_eq!((&ready["status"], &ready["roles"]), (&json!("ready"), &json!(["ingest"])));
    server.terminate();
    server.start_as("api");
    let sender = server.sender();
    let (status, problem) = rejected(&sender, "{}", &[]).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(problem["detail"].as_str().expect("a detail").contains("`ingest`"), "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_above_the_memory_limit_get_429_and_no_event_is_lost() {
    let (mut server, proxy) = EventServer::in_bucket(&[
        ("INGEST_MAX_INFLATED_BYTES", "1MiB"),
        ("INGEST_MEMORY_BYTES", "4MiB"),
        ("INGEST_BATCH_BYTES", "1MiB"),
    ])
    .await;
    server.start();
    let sender = server.sender();
    // A slow store is not down: no batch goes to the spool, and waiting batches stay in memory.
    proxy.stall(true);
    let noise = |id: u64| format!("{{\"id\":{id},\"noise\":\"{:x}\"}}\n", rand::random::<u128>());
    let mut accepted = 0;
    let (status, retry_after) = loop {
        let body: String = (accepted..accepted + 2_000).map(noise).collect();
        let answer = sender.send(body, &[]).await;
        if answer.status() != StatusCode::ACCEPTED {
            break (answer.status(), answer.headers().get("retry-after").cloned());
        }
        accepted += 2_000;
        assert!(accepted < 1_000_000, "memory has no limit");
    };
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert!(
        retry_after.is_some_and(|seconds| seconds.to_str().is_ok_and(|text| text.parse::<u32>().is_ok()))
    );
    assert!(accepted >= 4_000, "{accepted}");
    proxy.stall(false);
    assert_eq!(server.ids_once(accepted as usize).await, (0..accepted).collect::<Vec<_>>());
    server.terminate();
}

/// One tenant starts bodies and does not finish them.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_bodies_of_one_tenant_leave_memory_for_another() {
    let mut server = EventServer::new(&[
        ("INGEST_MAX_INFLATED_BYTES", "1MiB"),
        ("INGEST_MEMORY_BYTES", "4MiB"),
        ("INGEST_BATCH_BYTES", "1MiB"),
    ]);
    server.start();
    let address = server.served.as_ref().expect("a server").address().to_owned();
    let head = format!(
        "POST /api/v2/events HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\n\
         content-length: 1048576\r\n\r\n",
        server.token()
    );
    let mut stalled = Vec::new();
    for _ in 0..6 {
        let mut stream = std::net::TcpStream::connect(&address).expect("a connection");
        stream.write_all(head.as_bytes()).expect("sent");
        // When the memory is used up, the server rejects the request and closes its connection.
        let _ = stream.write_all(&vec![b' '; 1_000_000]);
        stalled.push(stream);
    }
    server.until("wharfinger_ingest_memory_bytes_free", |free| free < 2_500_000.0).await;
    let event = format!("{{\"id\":7,\"noise\":\"{}\"}}", "x".repeat(150_000));
    let other = server.sender_of("globex").send(event, &[]).await;
    assert_eq!(other.status(), StatusCode::ACCEPTED);
    assert_eq!(server.ids_once(1).await, [7]);
    drop(stalled);
    server.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_request_stores_nothing() {
    let mut server = EventServer::new(&[]);
    server.start();
    let address = server.served.as_ref().expect("a server").address().to_owned();
    let mut stream = std::net::TcpStream::connect(&address).expect("a connection");
    let head = format!(
        "POST /api/v2/events HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\ncontent-length: 100\r\n\r\n{}",
        server.token(),
        of_ids(0..1)
    );
    stream.write_all(head.as_bytes()).expect("sent");
    drop(stream);
    let sender = server.sender();
    sender.ids(5..6).await;
    assert_eq!(server.ids_once(1).await, [5]);
    server.terminate();
    assert_eq!(server.ids().await, [5]);
}
