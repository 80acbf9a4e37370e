//! Each answer maps to one outcome, also a missing answer.

use std::time::Duration;

use wharfinger_calls::faults::{Fault, Faults};
use wharfinger_engines::webhooks::{Endpoint, SendError, Webhook};

use super::{Receiver, SECRET, message, webhook};

async fn outcome(answer: &str) -> Result<(), SendError> {
    let receiver = Receiver::answering(answer).await;
    let sent = receiver.webhook().send(&message()).await;
    assert_eq!(receiver.received().len(), 1, "the message was sent once");
    sent
}

fn head(status: &str, more: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{more}content-length: 0\r\nconnection: close\r\n\r\n")
}

#[tokio::test]
async fn any_2xx_is_a_delivery() {
    for status in ["200 OK", "201 Created", "202 Accepted", "204 No Content", "299 Odd"] {
        assert_eq!(outcome(&head(status, "")).await, Ok(()), "{status}");
    }
    // A truncated body does not matter.
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\nconnection: close\r\n\r\nthanks";
    assert_eq!(outcome(cut).await, Ok(()));
}

#[tokio::test]
async fn any_other_status_is_a_failure() {
    for status in [400, 401, 403, 404, 408, 422, 500, 502, 503, 504] {
        let refused = SendError::Refused { status, body: String::new(), retry_after: None };
        assert_eq!(outcome(&head(&format!("{status} So"), "")).await, Err(refused));
    }
    assert_eq!(outcome(&head("410 Gone", "")).await, Err(SendError::Gone));
    let busy = outcome(&head("429 Too Many Requests", "retry-after: 17\r\n")).await;
    assert_eq!(busy, Err(SendError::RateLimited { retry_after: Some(Duration::from_secs(17)) }));
    assert_eq!(
        outcome(&head("429 Too Many Requests", "")).await,
        Err(SendError::RateLimited { retry_after: None })
    );
    let later = outcome(&head("503 Soon", "retry-after: 9\r\n")).await.expect_err("a refusal");
    assert_eq!(later.retry_after(), Some(Duration::from_secs(9)));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let elsewhere = Receiver::answering(&head("200 OK", "")).await;
        let location = format!("location: {}\r\n", elsewhere.url());
        let refused = SendError::Refused { status, body: String::new(), retry_after: None };
        assert_eq!(outcome(&head(&format!("{status} Away"), &location)).await, Err(refused));
        assert_eq!(elsewhere.received(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn only_a_short_line_of_an_error_body_is_kept() {
    let body = format!("no\r\nway\t{}", "x".repeat(100_000));
    let length = body.len();
    let answer = format!("HTTP/1.1 500 So\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    let Err(SendError::Refused { body, .. }) = outcome(&answer).await else { panic!("a refusal") };
    assert!(body.starts_with("no  way x") && body.chars().count() == 200, "{body}");
}

#[tokio::test]
async fn a_failed_connection_is_no_answer_and_the_url_is_not_shown() {
    let error = webhook("http://127.0.0.1:1/hush?token=hush", SECRET, true).send(&message()).await;
    let Err(SendError::NoAnswer(why)) = error else { panic!("{error:?}") };
    assert!(!why.contains("hush"), "{why}");
    // The connection is closed without an answer.
    assert!(matches!(outcome("").await, Err(SendError::NoAnswer(_))));
    assert!(matches!(outcome("gibberish\r\n\r\n").await, Err(SendError::NoAnswer(_))));
}

#[tokio::test]
async fn injected_faults_are_no_answer() {
    for (fault, sent) in [(Fault::Fail, 0), (Fault::LoseAnswer, 1), (Fault::CrashAfter, 1)] {
        let receiver = Receiver::answering(&head("200 OK", "")).await;
        let endpoint = Endpoint::new(&receiver.url(), true).expect("an endpoint");
        let secrets = SECRET.parse().expect("a secret");
        let hit = Webhook::new(endpoint, secrets, Faults::at(1, fault)).expect("a client");
        assert!(matches!(hit.send(&message()).await, Err(SendError::NoAnswer(_))), "{fault:?}");
        assert_eq!(receiver.received().len(), sent, "{fault:?}");
    }
}
