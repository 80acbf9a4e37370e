//! Tokens of an issuer that publishes its keys at a URL, changes them, and is sometimes unavailable.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::signing_keys::{SigningPair, elliptic, jwks};
use super::{claims, get_quota_with};
use crate::test_app::{Database, TestApp, TestEnv};

/// An unknown key id causes a new request for the keys, at most once in this time.
const REFRESH_PAUSE_MS: i64 = 30_000;

const OWN_SECRET: (&str, &str) = ("WHARFINGER_JWT_SECRET", "a secret of thirty-two bytes or more");

struct Issuer {
    url: String,
    response: Arc<Mutex<(StatusCode, String)>>,
    requests: Arc<AtomicU64>,
}

impl Issuer {
    async fn start(keys: &[Value]) -> Issuer {
        let response = Arc::new(Mutex::new((StatusCode::OK, jwks(keys).to_string())));
        let requests = Arc::new(AtomicU64::new(0));
        let (answer, counter) = (response.clone(), requests.clone());
        let handler = async move || {
            counter.fetch_add(1, Ordering::SeqCst);
            answer.lock().expect("not poisoned").clone()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/keys", listener.local_addr().expect("bound"));
        let router = Router::new().route("/keys", get(handler));
        tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Issuer { url, response, requests }
    }

    fn respond(&self, status: StatusCode, body: impl ToString) {
        *self.response.lock().expect("not poisoned") = (status, body.to_string());
    }

    fn publish(&self, keys: &[Value]) {
        self.respond(StatusCode::OK, jwks(keys));
    }

    fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }
}

async fn start(issuer: &Issuer) -> (TestEnv, TestApp) {
    let env = TestEnv::with(Database::Sqlite, &[("WHARFINGER_JWKS_URL", &issuer.url), OWN_SECRET]);
    let server = env.start().await;
    (env, server)
}

async fn is_accepted(server: &TestApp, pair: &SigningPair, kid: &str) -> bool {
    let answer = get_quota_with(server, &pair.token(Some(kid), &claims())).await;
    match answer.status.as_u16() {
        200 => true,
        _ => {
            answer.expect_problem(401, "unauthorized");
            false
        }
    }
}

#[tokio::test]
async fn keys_are_cached_and_read_again_for_an_unknown_key_id() {
    let (old, new) = (elliptic(), elliptic());
    let issuer = Issuer::start(&[old.public(Some("old"))]).await;
    let (env, server) = start(&issuer).await;
    assert!(is_accepted(&server, &old, "old").await);
    assert!(is_accepted(&server, &old, "old").await);
    assert_eq!(issuer.requests(), 1);

    issuer.publish(&[new.public(Some("new"))]);
    env.advance(REFRESH_PAUSE_MS - 1);
    assert!(!is_accepted(&server, &new, "new").await, "unknown key ids do not cause a request each time");
    assert_eq!(issuer.requests(), 1);
    env.advance(1);
    assert!(is_accepted(&server, &new, "new").await);
    assert!(!is_accepted(&server, &old, "old").await, "a key that is no longer published is refused");
    assert_eq!(issuer.requests(), 2);
}

/// No unknown key id triggers the request here.
#[tokio::test]
async fn a_withdrawn_key_is_refused_after_five_minutes() {
    let (kept, withdrawn) = (elliptic(), elliptic());
    let issuer = Issuer::start(&[kept.public(Some("a")), withdrawn.public(Some("b"))]).await;
    let (env, server) = start(&issuer).await;
    assert!(is_accepted(&server, &withdrawn, "b").await);
    issuer.publish(&[kept.public(Some("a"))]);
    env.advance(5 * 60_000 - 1);
    assert!(is_accepted(&server, &withdrawn, "b").await);
    assert_eq!(issuer.requests(), 1);
    env.advance(1);
    assert!(is_accepted(&server, &kept, "a").await);
    assert_eq!(issuer.requests(), 2);
    assert!(!is_accepted(&server, &withdrawn, "b").await);
    assert_eq!(issuer.requests(), 2, "the keys were read a moment ago");
}

#[tokio::test]
async fn a_redirect_or_a_large_answer_is_refused() {
    let pair = elliptic();
    let redirect_target = Issuer::start(&[pair.public(Some("a"))]).await;
    let location = redirect_target.url.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base = format!("http://{}", listener.local_addr().expect("bound"));
    let padded = jwks(&[pair.public(Some("a"))]).to_string() + &" ".repeat(2 << 20);
    let router = Router::new()
        .route("/redirect", get(async move || axum::response::Redirect::temporary(&location)))
        .route("/large", get(async move || padded.clone()));
    tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    for path in ["redirect", "large"] {
        let url = format!("{base}/{path}");
        let server = TestEnv::with(Database::Sqlite, &[("WHARFINGER_JWKS_URL", &url)]).start().await;
        assert!(!is_accepted(&server, &pair, "a").await, "{path}");
    }
    assert_eq!(redirect_target.requests(), 0);
}

#[tokio::test]
async fn invalid_answers_of_the_issuer_keep_the_old_keys() {
    let (old, new) = (elliptic(), elliptic());
    let issuer = Issuer::start(&[old.public(Some("old"))]).await;
    let (env, server) = start(&issuer).await;
    assert!(is_accepted(&server, &old, "old").await);
    for (status, body) in [
        (StatusCode::INTERNAL_SERVER_ERROR, jwks(&[new.public(Some("new"))]).to_string()),
        (StatusCode::NOT_FOUND, String::new()),
        (StatusCode::OK, "<html>".to_owned()),
        (StatusCode::OK, "{}".to_owned()),
    ] {
        issuer.respond(status, body);
        env.advance(REFRESH_PAUSE_MS);
        let before = issuer.requests();
        assert!(!is_accepted(&server, &new, "new").await);
        assert_eq!(issuer.requests(), before + 1);
        assert!(is_accepted(&server, &old, "old").await);
    }
    issuer.publish(&[old.public(Some("old")), new.public(Some("new"))]);
    env.advance(REFRESH_PAUSE_MS);
    assert!(is_accepted(&server, &new, "new").await);
    assert!(is_accepted(&server, &old, "old").await);
}

/// The last key may be stolen. So a valid answer replaces the keys, even if it contains no usable key.
#[tokio::test]
async fn the_last_key_can_be_withdrawn_too() {
    let pair = elliptic();
    let mut encrypting = pair.public(Some("a"));
    encrypting["use"] = json!("enc");
    let unknown_type = json!({ "kty": "lattice", "kid": "a" });
    for published in [vec![], vec![encrypting], vec![unknown_type]] {
        let issuer = Issuer::start(&[pair.public(Some("a"))]).await;
        let (env, server) = start(&issuer).await;
        assert!(is_accepted(&server, &pair, "a").await);
        issuer.publish(&published);
        env.advance(5 * 60_000);
        assert!(!is_accepted(&server, &pair, "a").await, "{published:?}");
        issuer.publish(&[pair.public(Some("a"))]);
        env.advance(REFRESH_PAUSE_MS);
        assert!(is_accepted(&server, &pair, "a").await);
    }
}

#[tokio::test]
async fn an_invalid_key_does_not_keep_a_withdrawn_one() {
    let (kept, withdrawn) = (elliptic(), elliptic());
    let issuer = Issuer::start(&[kept.public(Some("a")), withdrawn.public(Some("b"))]).await;
    let (env, server) = start(&issuer).await;
    assert!(is_accepted(&server, &withdrawn, "b").await);
    let mut broken = kept.public(Some("c"));
    broken["x"] = json!("no base64!");
    let unknown_type = json!({ "kty": "lattice", "kid": "d" });
    issuer.publish(&[broken, unknown_type, kept.public(Some("a"))]);
    env.advance(5 * 60_000);
    assert!(!is_accepted(&server, &withdrawn, "b").await);
    assert!(is_accepted(&server, &kept, "a").await);
}

#[tokio::test]
async fn an_unreachable_issuer_does_not_affect_own_tokens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/keys", listener.local_addr().expect("bound"));
    drop(listener);
    let env = TestEnv::with(Database::Sqlite, &[("WHARFINGER_JWKS_URL", &url), OWN_SECRET]);
    let server = env.start().await;
    assert!(!is_accepted(&server, &elliptic(), "any").await);
    server.me().get("/api/v2/quota").await.expect(200);
}

#[tokio::test]
async fn concurrent_requests_with_a_new_key_cause_one_key_request() {
    let pair = elliptic();
    let issuer = Issuer::start(&[pair.public(Some("new"))]).await;
    let (_env, server) = start(&issuer).await;
    let accepted = futures::future::join_all((0..20).map(|_| is_accepted(&server, &pair, "new"))).await;
    assert_eq!(accepted, [true; 20]);
    assert_eq!(issuer.requests(), 1);
}
