//! Wrong, truncated, endless and missing answers. None of them gives a vector.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use wharfinger_engines::embeddings::Embeddings;

use super::site::{
    answer, assert_unavailable, checked_message, client, embedded, error_answer, inputs, options, texts,
    vector, vectors, with_short_timeout,
};
use harness::scripted::{ScriptedServer, response};

#[tokio::test]
async fn vectors_that_do_not_match_the_texts_are_refused() {
    let good = || json!(vector("x"));
    let short = || json!(vector("x")[..7]);
    let cases: Vec<(&str, Vec<(usize, Value)>)> = vec![
        ("0 vectors for 2", vec![]),
        ("1 vectors for 2", vec![(0, good())]),
        ("3 vectors for 2", vec![(0, good()), (1, good()), (2, good())]),
        ("two vectors for text 1", vec![(1, good()), (1, good())]),
        ("text 2 of 2", vec![(1, good()), (2, good())]),
        ("8 and of 7 dimensions", vec![(0, good()), (1, short())]),
        ("is empty", vec![(0, json!([])), (1, json!([]))]),
        ("is empty", vec![(0, json!("")), (1, json!(""))]),
        ("not finite", vec![(0, json!([1e39])), (1, json!([1.0]))]),
        // NaN and infinity as 4-byte floats.
        ("not finite", vec![(0, json!("AADAfw==")), (1, json!("AADAfw=="))]),
        ("not finite", vec![(0, json!("AACAfw==")), (1, json!("AACAfw=="))]),
        ("truncated", vec![(0, json!("AADA")), (1, json!("AADA"))]),
        ("not valid base64", vec![(0, json!("a text!")), (1, json!("a text!"))]),
        ("null", vec![(0, json!([1.0, null])), (1, good())]),
        ("null", vec![(0, json!(null)), (1, good())]),
        ("string", vec![(0, json!(["1.0"])), (1, good())]),
    ];
    for (expected, entries) in cases {
        let server = ScriptedServer::start(move |_, _| answer(entries.clone()));
        let why = assert_unavailable(client(&server).embed(&texts(2)).await);
        assert!(why.contains(expected), "{expected}: {why}");
        assert_eq!(server.requests().len(), 1, "a wrong answer is not retried");
    }
}

#[tokio::test]
async fn an_answer_of_another_server_is_quoted_in_the_error() {
    for body in [
        "",
        "<html>Welcome to the proxy</html>",
        "{}",
        r#"{"error":{"message":"Welcome to the proxy"}}"#,
        r#"{"data":[{"embedding":[1.0]}]}"#,
        r#"{"data":[{"index":0,"embedding":[NaN]}]}"#,
        r#"{"data":[{"index":0,"embedding":[1e999]}]}"#,
        r#"{"data":[{"index":-1,"embedding":[1.0]}]}"#,
        r#"{"data":[{"index":0,"embedding":[1.0]}]"#,
    ] {
        let server = ScriptedServer::start(move |_, _| response(200, "application/json", body));
        let why = assert_unavailable(client(&server).embed(&texts(1)).await);
        assert!(why.contains("check the URL"), "{why}");
        assert!(why.contains("Welcome") == body.contains("Welcome"), "{why}");
    }
}

#[tokio::test]
async fn all_requests_of_one_call_must_have_the_same_dimensions() {
    let server = ScriptedServer::start(|request, before| match before {
        0 => embedded(request),
        _ => answer(inputs(request).iter().enumerate().map(|(n, text)| (n, json!(vector(text)[..4])))),
    });
    let why = assert_unavailable(client(&server).embed(&texts(130)).await);
    assert!(why.contains("8 and of 4 dimensions"), "{why}");
}

#[tokio::test]
async fn a_truncated_answer_is_retried() {
    let server = ScriptedServer::start(|request, before| {
        let whole = embedded(request);
        if before == 0 { whole[..whole.len() - 10].to_vec() } else { whole }
    });
    assert_eq!(client(&server).embed(&texts(5)).await, Ok(vectors(&texts(5))));
    let server = ScriptedServer::start(|request, _| embedded(request)[..150].to_vec());
    assert_unavailable(client(&server).embed(&texts(5)).await);
    assert_eq!(server.requests().len(), 3, "the number of retries is limited");
}

/// A server that starts an answer and never ends it. Returns the number of bytes that it could send.
async fn endless(status: u16) -> (std::net::SocketAddr, tokio::task::JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let _ = stream.read(&mut [0; 4_096]).await;
        let head = format!("HTTP/1.1 {status} So\r\nconnection: close\r\n\r\n{{\"data\":[");
        stream.write_all(head.as_bytes()).await.expect("written");
        let mut written = 0;
        while stream.write_all(&[b' '; 10_000]).await.is_ok() {
            written += 10_000;
        }
        written
    });
    (address, serving)
}

#[tokio::test]
async fn an_endless_answer_is_stopped() {
    let time_limit = std::time::Duration::from_secs(60);
    for status in [200, 400] {
        let (address, serving) = endless(status).await;
        let client = Embeddings::new(options(address)).expect("options");
        let error = client.embed(&texts(1)).await.expect_err("endless");
        let why = checked_message(&error);
        assert_eq!(error.is_retryable(), status == 200, "{why}");
        let written = tokio::time::timeout(time_limit, serving)
            .await
            .expect("the client closed the connection")
            .expect("served");
        // The maximum length of an answer, and the buffers of the kernel.
        assert!(written < 20_000_000, "{written}");
    }
}

#[tokio::test]
async fn a_silent_server_causes_a_timeout() {
    // The kernel accepts the connections, but no program reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let why = assert_unavailable(
        with_short_timeout(silent.local_addr().expect("an address")).embed(&texts(1)).await,
    );
    assert!(why.contains("127.0.0.1 in time"), "{why}");

    let stalling = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = stalling.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Ok((mut stream, _)) = stalling.accept().await {
            let _ = stream.read(&mut [0; 4_096]).await;
            let half = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{\"data\":[";
            let _ = stream.write_all(half).await;
            connections.push(stream);
        }
    });
    let why = assert_unavailable(with_short_timeout(address).embed(&texts(1)).await);
    assert!(why.contains("in time"), "{why}");

    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    assert_unavailable(with_short_timeout(closed).embed(&texts(1)).await);
}

#[tokio::test]
async fn a_server_error_is_retried_twice() {
    for status in [500, 502, 503, 504, 529, 408, 424] {
        let server = ScriptedServer::start(move |request, before| match before {
            0 | 1 => error_answer(status, "in trouble"),
            _ => embedded(request),
        });
        assert_eq!(client(&server).embed(&texts(2)).await, Ok(vectors(&texts(2))), "{status}");
        assert_eq!(server.requests().len(), 3);
    }
    let server = ScriptedServer::start(|_, _| error_answer(500, "in trouble"));
    let why = assert_unavailable(client(&server).embed(&texts(2)).await);
    assert!(why.contains("500") && why.contains("in trouble"), "{why}");
    assert_eq!(server.requests().len(), 3, "the number of retries is limited");
}
