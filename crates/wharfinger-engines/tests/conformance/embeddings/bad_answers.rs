//! Answers that are wrong, broken off, endless or never come. None becomes a vector.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use wharfinger_engines::embeddings::Embeddings;

use super::site::{
    answer, assert_unavailable, client, complaint, embedded, impatient, inputs, options, texts, told, vector,
    vectors,
};
use harness::scripted::{ScriptedServer, response};

#[tokio::test]
async fn vectors_that_do_not_fit_the_texts_are_none() {
    let good = || json!(vector("x"));
    let short = || json!(vector("x")[..7]);
    let cases: Vec<(&str, Vec<(usize, Value)>)> = vec![
        ("0 vectors for 2", vec![]),
        ("1 vectors for 2", vec![(0, good())]),
        ("3 vectors for 2", vec![(0, good()), (1, good()), (2, good())]),
        ("two vectors for text 1", vec![(1, good()), (1, good())]),
        ("text 2 of 2", vec![(1, good()), (2, good())]),
        ("8 and of 7 dimensions", vec![(0, good()), (1, short())]),
        ("without numbers", vec![(0, json!([])), (1, json!([]))]),
        ("without numbers", vec![(0, json!("")), (1, json!(""))]),
        ("no finite number", vec![(0, json!([1e39])), (1, json!([1.0]))]),
        // NaN and infinity, as floats of four bytes.
        ("no finite number", vec![(0, json!("AADAfw==")), (1, json!("AADAfw=="))]),
        ("no finite number", vec![(0, json!("AACAfw==")), (1, json!("AACAfw=="))]),
        ("cut off", vec![(0, json!("AADA")), (1, json!("AADA"))]),
        ("no base64", vec![(0, json!("a text!")), (1, json!("a text!"))]),
        ("null", vec![(0, json!([1.0, null])), (1, good())]),
        ("null", vec![(0, json!(null)), (1, good())]),
        ("string", vec![(0, json!(["1.0"])), (1, good())]),
    ];
    for (words, entries) in cases {
        let server = ScriptedServer::start(move |_, _| answer(entries.clone()));
        let why = assert_unavailable(client(&server).embed(&texts(2)).await);
        assert!(why.contains(words), "{words}: {why}");
        assert_eq!(server.requests().len(), 1, "a wrong answer is not asked for again");
    }
}

#[tokio::test]
async fn what_is_no_answer_of_embeddings_is_told_with_its_words() {
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
async fn all_requests_of_one_call_have_to_agree() {
    let server = ScriptedServer::start(|asked, before| match before {
        0 => embedded(asked),
        _ => answer(inputs(asked).iter().enumerate().map(|(n, text)| (n, json!(vector(text)[..4])))),
    });
    let why = assert_unavailable(client(&server).embed(&texts(130)).await);
    assert!(why.contains("8 and of 4 dimensions"), "{why}");
}

#[tokio::test]
async fn an_answer_that_is_broken_off_is_asked_for_again() {
    let server = ScriptedServer::start(|asked, before| {
        let whole = embedded(asked);
        if before == 0 { whole[..whole.len() - 10].to_vec() } else { whole }
    });
    assert_eq!(client(&server).embed(&texts(5)).await, Ok(vectors(&texts(5))));
    let server = ScriptedServer::start(|asked, _| embedded(asked)[..150].to_vec());
    assert_unavailable(client(&server).embed(&texts(5)).await);
    assert_eq!(server.requests().len(), 3, "not for ever");
}

/// Says so much, and goes on as long as somebody listens.
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
async fn an_answer_without_end_is_given_up() {
    let patience = std::time::Duration::from_secs(60);
    for status in [200, 400] {
        let (address, serving) = endless(status).await;
        let client = Embeddings::new(options(address)).expect("options");
        let error = client.embed(&texts(1)).await.expect_err("endless");
        let why = told(&error);
        assert_eq!(error.is_retryable(), status == 200, "{why}");
        let written = tokio::time::timeout(patience, serving).await.expect("hung up").expect("served");
        // As much as is allowed, and what the kernel has in between.
        assert!(written < 20_000_000, "{written}");
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up_in_time() {
    // The kernel takes the connections, and nobody ever looks at them.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let why = assert_unavailable(impatient(silent.local_addr().expect("an address")).embed(&texts(1)).await);
    assert!(why.contains("127.0.0.1 in time"), "{why}");

    let stalling = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = stalling.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = stalling.accept().await {
            let _ = stream.read(&mut [0; 4_096]).await;
            let half = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{\"data\":[";
            let _ = stream.write_all(half).await;
            held.push(stream);
        }
    });
    let why = assert_unavailable(impatient(address).embed(&texts(1)).await);
    assert!(why.contains("in time"), "{why}");

    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    assert_unavailable(impatient(closed).embed(&texts(1)).await);
}

#[tokio::test]
async fn a_server_in_trouble_is_asked_twice_more() {
    for status in [500, 502, 503, 504, 529, 408, 424] {
        let server = ScriptedServer::start(move |asked, before| match before {
            0 | 1 => complaint(status, "in trouble"),
            _ => embedded(asked),
        });
        assert_eq!(client(&server).embed(&texts(2)).await, Ok(vectors(&texts(2))), "{status}");
        assert_eq!(server.requests().len(), 3);
    }
    let server = ScriptedServer::start(|_, _| complaint(500, "in trouble"));
    let why = assert_unavailable(client(&server).embed(&texts(2)).await);
    assert!(why.contains("500") && why.contains("in trouble"), "{why}");
    assert_eq!(server.requests().len(), 3, "not for ever");
}
