//! Each text gets its vector, and requests have a maximum size.

use harness::proxy::Proxy;
use wharfinger_engines::embeddings::{Embeddings, EmbeddingsOptions};

use super::site::{
    KEY, answer, assert_unavailable, client, embedded, embedded_in_base64, inputs, options, texts, vector,
    vectors, with_short_timeout,
};
use harness::scripted::{ScriptedServer, response};

#[tokio::test]
async fn each_text_gets_its_vector_for_any_order_of_the_answer() {
    for answer in [embedded, embedded_in_base64] {
        let server = ScriptedServer::start(move |request, _| answer(request));
        for count in [1, 2, 128, 300] {
            let texts = texts(count);
            assert_eq!(client(&server).embed(&texts).await, Ok(vectors(&texts)), "{count}");
        }
    }
}

#[tokio::test]
async fn requests_have_a_maximum_size() {
    let server = ScriptedServer::start(|request, _| embedded(request));
    assert_eq!(client(&server).embed(&[]).await, Ok(Vec::new()));
    assert!(server.requests().is_empty(), "no texts need no request");
    client(&server).embed(&texts(300)).await.expect("embedded");
    let sizes = |from: usize| {
        server.requests()[from..].iter().map(|request| inputs(request).len()).collect::<Vec<_>>()
    };
    assert_eq!(sizes(0), [128, 128, 44]);
    let long: Vec<String> =
        [100_000, 100_000, 100_000, 300_000, 10, 10].iter().map(|size| "x".repeat(*size)).collect();
    assert_eq!(client(&server).embed(&long).await, Ok(vectors(&long)));
    assert_eq!(sizes(3), [2, 1, 1, 2]);
}

/// Some servers accept only a few texts in one request.
#[tokio::test]
async fn a_request_that_is_too_large_is_split() {
    let server = ScriptedServer::start(|request, _| match inputs(request) {
        texts if texts.len() > 32 => response(413, "application/json", r#"{"error":"batch size > 32"}"#),
        texts if texts.contains(&"too long".to_owned()) => response(413, "text/plain", "Payload Too Large"),
        _ => embedded(request),
    });
    let all = texts(100);
    assert_eq!(client(&server).embed(&all).await, Ok(vectors(&all)));
    let sizes: Vec<usize> = server.requests().iter().map(|request| inputs(request).len()).collect();
    assert_eq!(sizes, [100, 50, 25, 25, 25, 25]);
    let error = client(&server).embed(&["fine".into(), "too long".into()]).await.expect_err("too long");
    assert!(!error.is_retryable() && error.to_string().contains("Payload Too Large"), "{error}");
}

#[tokio::test]
async fn the_end_of_the_url_path_is_optional() {
    let server = ScriptedServer::start(|request, _| embedded(request));
    for path in ["", "/", "/v1", "/v1/", "/v1/embeddings"] {
        let url = format!("http://{}{path}", server.address());
        let client = Embeddings::new(EmbeddingsOptions { url, ..options("unused") }).expect("options");
        client.embed(&texts(1)).await.expect(path);
    }
}

#[tokio::test]
async fn no_key_is_sent_if_none_is_set() {
    let server = ScriptedServer::start(|request, _| {
        let text = String::from_utf8_lossy(&request.raw).to_lowercase();
        assert!(!text.contains("authorization"), "{text}");
        answer([(0, serde_json::json!(vector("x")))])
    });
    for api_key in [None, Some(String::new()), Some("  ".to_owned())] {
        let options = EmbeddingsOptions { api_key, ..options(server.address()) };
        let client = Embeddings::new(options).expect("options");
        assert_eq!(client.embed(&["x".to_owned()]).await, Ok(vec![vector("x")]));
    }
}

#[tokio::test]
async fn a_check_returns_model_host_and_dimensions() {
    let server = ScriptedServer::start(|request, _| embedded(request));
    assert_eq!(client(&server).check().await, Ok("a-model at 127.0.0.1, 8 dimensions".to_owned()));
    assert_eq!(server.requests().len(), 1);
    let server = ScriptedServer::start(|_, _| response(500, "text/plain", ""));
    assert_unavailable(client(&server).check().await);
    assert_eq!(server.requests().len(), 1, "a check is not retried");
}

#[tokio::test]
async fn invalid_options_are_refused_and_no_secret_is_shown() {
    let good = options("api.test");
    for (wrong, words) in [
        (EmbeddingsOptions { url: "api.test".into(), ..good.clone() }, "https://host/v1"),
        (EmbeddingsOptions { url: format!("https://u:{KEY}@api.test/v1"), ..good.clone() }, "password"),
        (EmbeddingsOptions { model: " ".into(), ..good.clone() }, "model"),
        (EmbeddingsOptions { api_key: Some(format!("{KEY}\nx")), ..good.clone() }, "key"),
    ] {
        let error = Embeddings::new(wrong).expect_err(words);
        assert!(error.contains(words) && !error.contains(KEY), "{error}");
    }
    let shown = format!("{good:?} {:?}", Embeddings::new(good.clone()).expect("options"));
    assert!(!shown.contains(KEY), "{shown}");
}

#[tokio::test]
async fn a_cut_connection_is_only_a_temporary_outage() {
    let server = ScriptedServer::start(|request, _| embedded(request));
    let proxy = Proxy::to(server.address()).expect("a proxy");
    let client = Embeddings::new(options(proxy.addr())).expect("options");
    let texts = texts(3);
    assert_eq!(client.embed(&texts).await, Ok(vectors(&texts)));
    proxy.cut();
    assert_unavailable(client.embed(&texts).await);
    proxy.repair().expect("repaired");
    proxy.drop_answers(true);
    assert_unavailable(client.embed(&texts).await);
    proxy.repair().expect("repaired");
    proxy.stall(true);
    let why = assert_unavailable(with_short_timeout(proxy.addr()).embed(&texts).await);
    assert!(why.contains("in time"), "{why}");
    proxy.repair().expect("repaired");
    assert_eq!(client.embed(&texts).await, Ok(vectors(&texts)));
}
