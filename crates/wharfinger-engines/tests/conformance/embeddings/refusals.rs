//! Servers that say no, and those that send us elsewhere with the key in hand.

use serde_json::json;
use wharfinger_engines::embeddings::EmbedError;

use super::site::{KEY, client, complaint, embedded, texts, told, with_headers};
use harness::scripted::{ScriptedServer, response};

#[tokio::test]
async fn a_wrong_key_is_for_a_person_to_mend_and_is_not_repeated() {
    for status in [401, 402, 403] {
        let words = format!("Incorrect API key provided: {KEY}");
        let server = ScriptedServer::start(move |_, _| complaint(status, &words));
        let error = client(&server).embed(&texts(2)).await.expect_err("not allowed");
        assert!(error.is_retryable() && matches!(error, EmbedError::NotAllowed(_)), "{error:?}");
        let why = told(&error);
        assert!(
            why.contains(&status.to_string()) && why.contains("Incorrect API key provided: [key]"),
            "{why}"
        );
        assert_eq!(server.requests().len(), 1, "once is enough");
    }
    let server = ScriptedServer::start(|_, _| response(200, "text/plain", &format!("what is {KEY}?")));
    let error = client(&server).embed(&texts(2)).await.expect_err("no answer");
    assert!(told(&error).contains("what is [key]?"), "{error}");
}

#[tokio::test]
async fn a_text_that_the_server_does_not_take_is_refused_with_its_words() {
    for status in [400, 404, 422] {
        for body in [
            json!({"error": {"message": "maximum context length is 8192 tokens"}}),
            json!({"error": "maximum context length is 8192 tokens", "error_type": "Validation"}),
            json!({"message": "maximum context length is 8192 tokens", "code": 40}),
            json!({"detail": "maximum context length is 8192 tokens"}),
            json!({"detail": [{"msg": "maximum context length is 8192 tokens"}]}),
        ] {
            let server =
                ScriptedServer::start(move |_, _| response(status, "application/json", &body.to_string()));
            let error = client(&server).embed(&texts(2)).await.expect_err("refused");
            assert!(!error.is_retryable() && matches!(error, EmbedError::Refused(_)), "{error:?}");
            let why = told(&error);
            assert!(why.contains(&status.to_string()) && why.contains("8192 tokens"), "{why}");
            assert_eq!(server.requests().len(), 1, "once is enough");
        }
    }
    let page = format!("<html>\n\n  {}</html>", "no such page ".repeat(10_000));
    let server = ScriptedServer::start(move |_, _| response(404, "text/html", &page));
    let error = client(&server).embed(&texts(2)).await.expect_err("refused");
    let why = told(&error);
    assert!(why.contains("<html> no such page no") && !why.contains('\n') && why.contains("model"), "{why}");
}

#[tokio::test]
async fn nobody_is_sent_on_with_the_key() {
    let other = ScriptedServer::start(|asked, _| embedded(asked));
    let elsewhere = format!("http://localhost:{}/v1/embeddings?a=secret", other.address().port());
    for status in [301, 302, 303, 307, 308] {
        for to in [elsewhere.as_str(), "/v2/embeddings"] {
            let headers = format!("location: {to}");
            let server = ScriptedServer::start(move |_, _| {
                with_headers(response(status, "text/html", "moved"), &headers)
            });
            let error = client(&server).embed(&texts(2)).await.expect_err("sent on");
            assert!(error.is_retryable() && matches!(error, EmbedError::NotAllowed(_)), "{error:?}");
            let host = if to == elsewhere { "localhost" } else { "127.0.0.1" };
            let why = told(&error);
            assert!(why.contains(&format!("sends us on to {host}")) && !why.contains("secret"), "{why}");
            assert_eq!(server.requests().len(), 1);
        }
    }
    assert!(other.requests().is_empty(), "it has seen the key");
}
