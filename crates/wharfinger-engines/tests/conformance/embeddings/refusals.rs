//! Refusals of the server, and redirects that would send the key to another server.

use serde_json::json;
use wharfinger_engines::embeddings::EmbedError;

use super::site::{KEY, checked_message, client, embedded, error_answer, texts, with_headers};
use harness::scripted::{ScriptedServer, response};

#[tokio::test]
async fn a_wrong_key_is_not_retried_and_not_shown() {
    for status in [401, 402, 403] {
        let message = format!("Incorrect API key provided: {KEY}");
        let server = ScriptedServer::start(move |_, _| error_answer(status, &message));
        let error = client(&server).embed(&texts(2)).await.expect_err("not allowed");
        assert!(error.is_retryable() && matches!(error, EmbedError::NotAllowed(_)), "{error:?}");
        let why = checked_message(&error);
        assert!(
            why.contains(&status.to_string()) && why.contains("Incorrect API key provided: [key]"),
            "{why}"
        );
        assert_eq!(server.requests().len(), 1, "there is no retry");
    }
    let server = ScriptedServer::start(|_, _| response(200, "text/plain", &format!("what is {KEY}?")));
    let error = client(&server).embed(&texts(2)).await.expect_err("no answer");
    assert!(checked_message(&error).contains("what is [key]?"), "{error}");
}

#[tokio::test]
async fn a_refused_text_is_reported_with_the_message_of_the_server() {
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
            let why = checked_message(&error);
            assert!(why.contains(&status.to_string()) && why.contains("8192 tokens"), "{why}");
            assert_eq!(server.requests().len(), 1, "there is no retry");
        }
    }
    let page = format!("<html>\n\n  {}</html>", "no such page ".repeat(10_000));
    let server = ScriptedServer::start(move |_, _| response(404, "text/html", &page));
    let error = client(&server).embed(&texts(2)).await.expect_err("refused");
    let why = checked_message(&error);
    assert!(why.contains("<html> no such page no") && !why.contains('\n') && why.contains("model"), "{why}");
}

#[tokio::test]
async fn the_key_is_not_sent_to_the_target_of_a_redirect() {
    let other = ScriptedServer::start(|request, _| embedded(request));
    let elsewhere = format!("http://localhost:{}/v1/embeddings?a=secret", other.address().port());
    for status in [301, 302, 303, 307, 308] {
        for to in [elsewhere.as_str(), "/v2/embeddings"] {
            let headers = format!("location: {to}");
            let server = ScriptedServer::start(move |_, _| {
                with_headers(response(status, "text/html", "moved"), &headers)
            });
            let error = client(&server).embed(&texts(2)).await.expect_err("redirected");
            assert!(error.is_retryable() && matches!(error, EmbedError::NotAllowed(_)), "{error:?}");
            let host = if to == elsewhere { "localhost" } else { "127.0.0.1" };
            let why = checked_message(&error);
            assert!(why.contains(&format!("redirects to {host}")) && !why.contains("secret"), "{why}");
            assert_eq!(server.requests().len(), 1);
        }
    }
    assert!(other.requests().is_empty(), "the other server received the key");
}
