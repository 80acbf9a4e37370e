//! A test server for embeddings. It computes the vectors from the texts, so that a vector in the wrong place is
//! detected.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use wharfinger_engines::embeddings::{EmbedError, Embeddings, EmbeddingsOptions, Timeouts};

use harness::scripted::{ReceivedRequest, ScriptedServer, response};

pub(super) const KEY: &str = "sk-secret-test-key";
pub(super) const MODEL: &str = "a-model";

/// The vector that the server computes.
pub(super) fn vector(text: &str) -> Vec<f32> {
    Sha256::digest(text).iter().take(8).map(|byte| f32::from(*byte) / 255.0 - 0.5).collect()
}

pub(super) fn texts(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("text {n}, with \"quotes\" and ünïcödé")).collect()
}

pub(super) fn vectors(texts: &[String]) -> Vec<Vec<f32>> {
    texts.iter().map(|text| vector(text)).collect()
}

/// Checks the head of the request and returns its body.
pub(super) fn body(request: &ReceivedRequest) -> Value {
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/v1/embeddings"));
    let head_end = request.raw.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&request.raw[..head_end]).to_lowercase();
    assert!(head.contains("content-type: application/json"), "{head}");
    assert!(head.contains(&format!("authorization: bearer {KEY}\r\n")), "{head}");
    let body: Value = serde_json::from_slice(&request.raw[head_end..]).expect("JSON");
    assert_eq!(body["model"], MODEL);
    body
}

pub(super) fn inputs(request: &ReceivedRequest) -> Vec<String> {
    let body = body(request);
    let inputs = body["input"].as_array().expect("a list");
    inputs.iter().map(|text| text.as_str().expect("a text").to_owned()).collect()
}

/// The correct answer, with the last text first. Only the indexes show the order.
pub(super) fn embedded(request: &ReceivedRequest) -> Vec<u8> {
    assert_eq!(body(request)["encoding_format"], "float");
    answer(inputs(request).iter().enumerate().rev().map(|(n, text)| (n, json!(vector(text)))))
}

pub(super) fn embedded_in_base64(request: &ReceivedRequest) -> Vec<u8> {
    answer(inputs(request).iter().enumerate().map(|(n, text)| {
        let bytes: Vec<u8> = vector(text).iter().flat_map(|number| number.to_le_bytes()).collect();
        (n, json!(STANDARD.encode(bytes)))
    }))
}

pub(super) fn answer(entries: impl IntoIterator<Item = (usize, Value)>) -> Vec<u8> {
    let data: Vec<Value> = entries
        .into_iter()
        .map(|(index, embedding)| json!({"object": "embedding", "index": index, "embedding": embedding}))
        .collect();
    let usage = json!({"prompt_tokens": 1, "total_tokens": 1});
    response(200, "application/json", &json!({"object": "list", "data": data, "usage": usage}).to_string())
}

pub(super) fn error_answer(status: u16, message: &str) -> Vec<u8> {
    let body = json!({"error": {"message": message, "type": "some_error", "code": null}});
    response(status, "application/json", &body.to_string())
}

/// The answer with additional headers.
pub(super) fn with_headers(answer: Vec<u8>, headers: &str) -> Vec<u8> {
    let text = String::from_utf8(answer).expect("a text");
    text.replacen("\r\n", &format!("\r\n{headers}\r\n"), 1).into_bytes()
}

pub(super) fn options(address: impl std::fmt::Display) -> EmbeddingsOptions {
    EmbeddingsOptions {
        url: format!("http://{address}/v1"),
        model: MODEL.to_owned(),
        api_key: Some(KEY.to_owned()),
    }
}

pub(super) fn client(server: &ScriptedServer) -> Embeddings {
    Embeddings::new(options(server.address())).expect("options")
}

/// A client with a short timeout for answers.
pub(super) fn with_short_timeout(address: impl std::fmt::Display) -> Embeddings {
    let timeouts = Timeouts { answer: Duration::from_millis(400), ..Timeouts::default() };
    Embeddings::with_timeouts(options(address), timeouts).expect("options")
}

/// A client with a short total of pauses.
pub(super) fn with_short_pauses(server: &ScriptedServer) -> Embeddings {
    let timeouts = Timeouts { pauses: Duration::from_secs(3), ..Timeouts::default() };
    Embeddings::with_timeouts(options(server.address()), timeouts).expect("options")
}

#[track_caller]
pub(super) fn assert_unavailable<T: std::fmt::Debug>(outcome: Result<T, EmbedError>) -> String {
    match outcome {
        Err(error @ EmbedError::Unavailable(_)) => {
            assert!(error.is_retryable());
            checked_message(&error)
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the message. Checks that it is short and does not contain the key.
#[track_caller]
pub(super) fn checked_message(error: &EmbedError) -> String {
    let text = format!("{error} {error:?}");
    assert!(!text.contains(KEY) && text.len() < 1_500, "{text}");
    error.to_string()
}
