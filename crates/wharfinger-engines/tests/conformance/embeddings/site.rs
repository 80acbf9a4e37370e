//! A server that embeds: the vectors are made of the texts, so that one in the wrong place is noticed.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use wharfinger_engines::embeddings::{EmbedError, Embeddings, EmbeddingsOptions, Timeouts};

use harness::scripted::{ReceivedRequest, ScriptedServer, response};

pub(super) const KEY: &str = "sk-not-for-everybody";
pub(super) const MODEL: &str = "a-model";

/// What the server computes.
pub(super) fn vector(text: &str) -> Vec<f32> {
    Sha256::digest(text).iter().take(8).map(|byte| f32::from(*byte) / 255.0 - 0.5).collect()
}

pub(super) fn texts(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("text {n}, with \"quotes\" and ünïcödé")).collect()
}

pub(super) fn vectors(texts: &[String]) -> Vec<Vec<f32>> {
    texts.iter().map(|text| vector(text)).collect()
}

/// What was asked, once it is clear that it is a question at all.
pub(super) fn question(asked: &ReceivedRequest) -> Value {
    assert_eq!((asked.method.as_str(), asked.path.as_str()), ("POST", "/v1/embeddings"));
    let head_end = asked.raw.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&asked.raw[..head_end]).to_lowercase();
    assert!(head.contains("content-type: application/json"), "{head}");
    assert!(head.contains(&format!("authorization: bearer {KEY}\r\n")), "{head}");
    let question: Value = serde_json::from_slice(&asked.raw[head_end..]).expect("JSON");
    assert_eq!(question["model"], MODEL);
    question
}

pub(super) fn inputs(asked: &ReceivedRequest) -> Vec<String> {
    let question = question(asked);
    let inputs = question["input"].as_array().expect("a list");
    inputs.iter().map(|text| text.as_str().expect("a text").to_owned()).collect()
}

/// The right answer, with the last text first: the order is in the numbers alone.
pub(super) fn embedded(asked: &ReceivedRequest) -> Vec<u8> {
    assert_eq!(question(asked)["encoding_format"], "float");
    answer(inputs(asked).iter().enumerate().rev().map(|(n, text)| (n, json!(vector(text)))))
}

pub(super) fn embedded_in_base64(asked: &ReceivedRequest) -> Vec<u8> {
    answer(inputs(asked).iter().enumerate().map(|(n, text)| {
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

pub(super) fn complaint(status: u16, message: &str) -> Vec<u8> {
    let body = json!({"error": {"message": message, "type": "some_error", "code": null}});
    response(status, "application/json", &body.to_string())
}

/// An answer with headers beside the usual ones.
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

/// One that soon gives up on an answer.
pub(super) fn impatient(address: impl std::fmt::Display) -> Embeddings {
    let timeouts = Timeouts { answer: Duration::from_millis(400), ..Timeouts::default() };
    Embeddings::with_timeouts(options(address), timeouts).expect("options")
}

/// One that soon has paused enough.
pub(super) fn restless(server: &ScriptedServer) -> Embeddings {
    let timeouts = Timeouts { pauses: Duration::from_secs(3), ..Timeouts::default() };
    Embeddings::with_timeouts(options(server.address()), timeouts).expect("options")
}

#[track_caller]
pub(super) fn assert_unavailable<T: std::fmt::Debug>(outcome: Result<T, EmbedError>) -> String {
    match outcome {
        Err(error @ EmbedError::Unavailable(_)) => {
            assert!(error.is_retryable());
            told(&error)
        }
        other => panic!("{other:?}"),
    }
}

/// What an error says, which is not too much and not the key.
#[track_caller]
pub(super) fn told(error: &EmbedError) -> String {
    let text = format!("{error} {error:?}");
    assert!(!text.contains(KEY) && text.len() < 1_500, "{text}");
    error.to_string()
}
