//! Rate limits: a call waits for a short time and then leaves the wait to its caller.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use wharfinger_engines::embeddings::EmbedError;

use super::site::{
    checked_message, client, embedded, error_answer, texts, vectors, with_headers, with_short_pauses,
};
use harness::scripted::{ScriptedServer, response};

fn limited(headers: &str) -> Vec<u8> {
    with_headers(error_answer(429, "Rate limit reached"), headers)
}

#[tokio::test]
async fn a_retry_waits_as_long_as_the_server_asks() {
    let date = "date: Sun, 06 Nov 1994 08:49:37 GMT\r\nretry-after: Sun, 06 Nov 1994 08:49:38 GMT";
    for (headers, pause_ms) in [("retry-after: 1", 1_000), ("retry-after-ms: 300", 300), (date, 1_000)] {
        let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let seen = times.clone();
        let server = ScriptedServer::start(move |request, before| {
            seen.lock().expect("no thread panics with the lock").push(Instant::now());
            if before == 0 { limited(headers) } else { embedded(request) }
        });
        assert_eq!(client(&server).embed(&texts(2)).await, Ok(vectors(&texts(2))));
        let times = times.lock().expect("no thread panics with the lock").clone();
        assert_eq!(times.len(), 2);
        let paused = times[1] - times[0];
        assert!(paused >= Duration::from_millis(pause_ms), "{headers}: {paused:?}");
    }
}

/// Also for a server in maintenance that sends the end of the maintenance.
#[tokio::test]
async fn a_long_wait_is_left_to_the_caller() {
    for (headers, expected_ms) in [
        ("retry-after: 3600", 3_600_000),
        ("date: Sun, 06 Nov 1994 08:49:37 GMT\r\nretry-after: Sun, 06 Nov 1994 08:51:37 GMT", 120_000),
    ] {
        let server = ScriptedServer::start(move |_, _| limited(headers));
        let error = client(&server).embed(&texts(2)).await.expect_err("limited");
        assert!(error.is_retryable() && checked_message(&error).contains("Rate limit reached"), "{error}");
        let EmbedError::RateLimited { retry_after_ms, .. } = error else { panic!("{error:?}") };
        assert_eq!(retry_after_ms, Some(expected_ms));
        assert_eq!(server.requests().len(), 1, "there is no request before the end of the wait");
    }
    let server = ScriptedServer::start(|_, _| with_headers(error_answer(503, "later"), "retry-after: 3600"));
    let error = client(&server).embed(&texts(2)).await.expect_err("down");
    assert!(matches!(error, EmbedError::Unavailable(_)), "{error:?}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_permanent_rate_limit_is_left_to_the_caller() {
    for headers in ["x-none: 1", "retry-after: 0"] {
        let server = ScriptedServer::start(move |_, _| limited(headers));
        let error = with_short_pauses(&server).embed(&texts(2)).await.expect_err("limited");
        assert!(matches!(error, EmbedError::RateLimited { .. }), "{error:?}");
        let requests = server.requests().len();
        assert!((3..=9).contains(&requests), "{requests}");
    }
}

#[tokio::test]
async fn all_requests_of_one_call_share_one_total_of_pauses() {
    let server = ScriptedServer::start(|request, before| match before {
        0 | 2 | 4 => limited("retry-after-ms: 1200"),
        _ => embedded(request),
    });
    let error = with_short_pauses(&server).embed(&texts(400)).await.expect_err("limited");
    assert!(matches!(error, EmbedError::RateLimited { retry_after_ms: Some(1_200), .. }), "{error:?}");
    assert_eq!(server.requests().len(), 5, "the third pause would exceed the total");
}

/// It has the status of a rate limit, but a wait does not help.
#[tokio::test]
async fn an_account_without_credit_is_not_allowed() {
    let server = ScriptedServer::start(|_, _| {
        let body = json!({"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}});
        response(429, "application/json", &body.to_string())
    });
    let error = client(&server).embed(&texts(2)).await.expect_err("no credit");
    assert!(error.is_retryable() && matches!(error, EmbedError::NotAllowed(_)), "{error:?}");
    assert_eq!(server.requests().len(), 1);
}
