//! Servers that want fewer requests: waited for a little while, and then left to the caller.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use wharfinger_engines::embeddings::EmbedError;

use super::site::{client, complaint, embedded, restless, texts, told, vectors, with_headers};
use harness::scripted::{ScriptedServer, response};

fn limited(headers: &str) -> Vec<u8> {
    with_headers(complaint(429, "Rate limit reached"), headers)
}

#[tokio::test]
async fn the_next_request_comes_when_the_server_says() {
    let date = "date: Sun, 06 Nov 1994 08:49:37 GMT\r\nretry-after: Sun, 06 Nov 1994 08:49:38 GMT";
    for (headers, pause_ms) in [("retry-after: 1", 1_000), ("retry-after-ms: 300", 300), (date, 1_000)] {
        let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let seen = times.clone();
        let server = ScriptedServer::start(move |asked, before| {
            seen.lock().expect("no test panics with it").push(Instant::now());
            if before == 0 { limited(headers) } else { embedded(asked) }
        });
        assert_eq!(client(&server).embed(&texts(2)).await, Ok(vectors(&texts(2))));
        let times = times.lock().expect("no test panics with it").clone();
        assert_eq!(times.len(), 2);
        let paused = times[1] - times[0];
        assert!(paused >= Duration::from_millis(pause_ms), "{headers}: {paused:?}");
    }
}

/// The same for one that is down for maintenance and says until when.
#[tokio::test]
async fn a_long_wait_is_the_callers() {
    for (headers, expected_ms) in [
        ("retry-after: 3600", 3_600_000),
        ("date: Sun, 06 Nov 1994 08:49:37 GMT\r\nretry-after: Sun, 06 Nov 1994 08:51:37 GMT", 120_000),
    ] {
        let server = ScriptedServer::start(move |_, _| limited(headers));
        let error = client(&server).embed(&texts(2)).await.expect_err("limited");
        assert!(error.is_retryable() && told(&error).contains("Rate limit reached"), "{error}");
        let EmbedError::RateLimited { retry_after_ms, .. } = error else { panic!("{error:?}") };
        assert_eq!(retry_after_ms, Some(expected_ms));
        assert_eq!(server.requests().len(), 1, "it is not asked before its time");
    }
    let server = ScriptedServer::start(|_, _| with_headers(complaint(503, "later"), "retry-after: 3600"));
    let error = client(&server).embed(&texts(2)).await.expect_err("down");
    assert!(matches!(error, EmbedError::Unavailable(_)), "{error:?}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_limit_that_stays_is_left_to_the_caller() {
    for headers in ["x-none: 1", "retry-after: 0"] {
        let server = ScriptedServer::start(move |_, _| limited(headers));
        let error = restless(&server).embed(&texts(2)).await.expect_err("limited");
        assert!(matches!(error, EmbedError::RateLimited { .. }), "{error:?}");
        let asked = server.requests().len();
        assert!((3..=9).contains(&asked), "{asked}");
    }
}

#[tokio::test]
async fn many_requests_of_one_call_share_their_waits() {
    let server = ScriptedServer::start(|asked, before| match before {
        0 | 2 | 4 => limited("retry-after-ms: 1200"),
        _ => embedded(asked),
    });
    let error = restless(&server).embed(&texts(400)).await.expect_err("limited");
    assert!(matches!(error, EmbedError::RateLimited { retry_after_ms: Some(1_200), .. }), "{error:?}");
    assert_eq!(server.requests().len(), 5, "the third wait is more than the call has left");
}

/// It has the status of a limit, and no waiting helps.
#[tokio::test]
async fn an_account_without_money_is_for_a_person_to_mend() {
    let server = ScriptedServer::start(|_, _| {
        let body = json!({"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}});
        response(429, "application/json", &body.to_string())
    });
    let error = client(&server).embed(&texts(2)).await.expect_err("no money");
    assert!(error.is_retryable() && matches!(error, EmbedError::NotAllowed(_)), "{error:?}");
    assert_eq!(server.requests().len(), 1);
}
