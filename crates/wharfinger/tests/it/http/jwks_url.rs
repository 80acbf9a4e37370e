//! Tokens of an issuer that publishes its keys at a URL, changes them, and is sometimes away.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::signing_keys::{SigningPair, elliptic, jwks};
use super::{claims, knock_with};
use crate::test_app::{Database, TestApp, TestEnv};

/// An unknown key makes the server ask again, but no sooner than this.
const PAUSE_MS: i64 = 30_000;

const OWN_SECRET: (&str, &str) = ("WHARFINGER_JWT_SECRET", "a secret of thirty-two bytes or more");

struct Issuer {
    url: String,
    says: Arc<Mutex<(StatusCode, String)>>,
    asked: Arc<AtomicU64>,
}

impl Issuer {
    async fn start(keys: &[Value]) -> Issuer {
        let says = Arc::new(Mutex::new((StatusCode::OK, jwks(keys).to_string())));
        let asked = Arc::new(AtomicU64::new(0));
        let (answer, counter) = (says.clone(), asked.clone());
        let handler = async move || {
            counter.fetch_add(1, Ordering::SeqCst);
            answer.lock().expect("not poisoned").clone()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/keys", listener.local_addr().expect("bound"));
        let router = Router::new().route("/keys", get(handler));
        tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Issuer { url, says, asked }
    }

    fn says(&self, status: StatusCode, body: impl ToString) {
        *self.says.lock().expect("not poisoned") = (status, body.to_string());
    }

    fn publishes(&self, keys: &[Value]) {
        self.says(StatusCode::OK, jwks(keys));
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

async fn start(issuer: &Issuer) -> (TestEnv, TestApp) {
    let env = TestEnv::with(Database::Sqlite, &[("WHARFINGER_JWKS_URL", &issuer.url), OWN_SECRET]);
    let server = env.start().await;
    (env, server)
}

async fn is_let_in(server: &TestApp, pair: &SigningPair, kid: &str) -> bool {
    let answer = knock_with(server, &pair.token(Some(kid), &claims())).await;
    match answer.status.as_u16() {
        200 => true,
        _ => {
            answer.expect_problem(401, "unauthorized");
            false
        }
    }
}

#[tokio::test]
async fn keys_are_asked_for_once_and_again_when_they_change() {
    let (old, new) = (elliptic(), elliptic());
    let issuer = Issuer::start(&[old.public(Some("old"))]).await;
    let (env, server) = start(&issuer).await;
    assert!(is_let_in(&server, &old, "old").await);
    assert!(is_let_in(&server, &old, "old").await);
    assert_eq!(issuer.asked(), 1);

    issuer.publishes(&[new.public(Some("new"))]);
    env.advance(PAUSE_MS - 1);
    assert!(
        !is_let_in(&server, &new, "new").await,
        "whoever sends nonsense must not make us ask all the time"
    );
    assert_eq!(issuer.asked(), 1);
    env.advance(1);
    assert!(is_let_in(&server, &new, "new").await);
    assert!(!is_let_in(&server, &old, "old").await, "what is not published any more is not taken");
    assert_eq!(issuer.asked(), 2);
}

/// Without any token of another key.
#[tokio::test]
async fn a_key_that_was_withdrawn_stops_working() {
    let (kept, withdrawn) = (elliptic(), elliptic());
    let issuer = Issuer::start(&[kept.public(Some("a")), withdrawn.public(Some("b"))]).await;
    let (env, server) = start(&issuer).await;
    assert!(is_let_in(&server, &withdrawn, "b").await);
    issuer.publishes(&[kept.public(Some("a"))]);
    env.advance(5 * 60_000 - 1);
    assert!(is_let_in(&server, &withdrawn, "b").await);
    assert_eq!(issuer.asked(), 1);
    env.advance(1);
    assert!(is_let_in(&server, &kept, "a").await);
    assert_eq!(issuer.asked(), 2);
    assert!(!is_let_in(&server, &withdrawn, "b").await);
    assert_eq!(issuer.asked(), 2, "it was asked a moment ago");
}

/// What leads elsewhere or has no end is no set of keys.
#[tokio::test]
async fn an_answer_from_elsewhere_or_without_end_is_refused() {
    let pair = elliptic();
    let elsewhere = Issuer::start(&[pair.public(Some("a"))]).await;
    let location = elsewhere.url.clone();
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
        assert!(!is_let_in(&server, &pair, "a").await, "{path}");
    }
    assert_eq!(elsewhere.asked(), 0);
}

#[tokio::test]
async fn while_the_issuer_is_away_or_talks_nonsense_the_old_keys_stay() {
    let (old, new) = (elliptic(), elliptic());
    let issuer = Issuer::start(&[old.public(Some("old"))]).await;
    let (env, server) = start(&issuer).await;
    assert!(is_let_in(&server, &old, "old").await);
    for (status, nonsense) in [
        (StatusCode::INTERNAL_SERVER_ERROR, jwks(&[new.public(Some("new"))]).to_string()),
        (StatusCode::NOT_FOUND, String::new()),
        (StatusCode::OK, "<html>".to_owned()),
        (StatusCode::OK, "{}".to_owned()),
    ] {
        issuer.says(status, nonsense);
        env.advance(PAUSE_MS);
        let before = issuer.asked();
        assert!(!is_let_in(&server, &new, "new").await);
        assert_eq!(issuer.asked(), before + 1);
        assert!(is_let_in(&server, &old, "old").await);
    }
    issuer.publishes(&[old.public(Some("old")), new.public(Some("new"))]);
    env.advance(PAUSE_MS);
    assert!(is_let_in(&server, &new, "new").await);
    assert!(is_let_in(&server, &old, "old").await);
}

/// The last key may have been stolen: a sound answer counts, even if nothing in it can be used.
#[tokio::test]
async fn the_last_key_can_be_withdrawn_too() {
    let pair = elliptic();
    let mut encrypting = pair.public(Some("a"));
    encrypting["use"] = json!("enc");
    let of_tomorrow = json!({ "kty": "lattice", "kid": "a" });
    for left in [vec![], vec![encrypting], vec![of_tomorrow]] {
        let issuer = Issuer::start(&[pair.public(Some("a"))]).await;
        let (env, server) = start(&issuer).await;
        assert!(is_let_in(&server, &pair, "a").await);
        issuer.publishes(&left);
        env.advance(5 * 60_000);
        assert!(!is_let_in(&server, &pair, "a").await, "{left:?}");
        issuer.publishes(&[pair.public(Some("a"))]);
        env.advance(PAUSE_MS);
        assert!(is_let_in(&server, &pair, "a").await);
    }
}

#[tokio::test]
async fn a_key_that_makes_no_sense_does_not_keep_a_withdrawn_one() {
    let (kept, withdrawn) = (elliptic(), elliptic());
    let issuer = Issuer::start(&[kept.public(Some("a")), withdrawn.public(Some("b"))]).await;
    let (env, server) = start(&issuer).await;
    assert!(is_let_in(&server, &withdrawn, "b").await);
    let mut broken = kept.public(Some("c"));
    broken["x"] = json!("no base64!");
    let of_tomorrow = json!({ "kty": "lattice", "kid": "d" });
    issuer.publishes(&[broken, of_tomorrow, kept.public(Some("a"))]);
    env.advance(5 * 60_000);
    assert!(!is_let_in(&server, &withdrawn, "b").await);
    assert!(is_let_in(&server, &kept, "a").await);
}

#[tokio::test]
async fn an_issuer_that_was_never_there_lets_nobody_in_and_stops_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/keys", listener.local_addr().expect("bound"));
    drop(listener);
    let env = TestEnv::with(Database::Sqlite, &[("WHARFINGER_JWKS_URL", &url), OWN_SECRET]);
    let server = env.start().await;
    assert!(!is_let_in(&server, &elliptic(), "any").await);
    server.me().get("/api/v2/quota").await.expect(200);
}

#[tokio::test]
async fn many_who_come_with_a_new_key_at_once_are_all_let_in() {
    let pair = elliptic();
    let issuer = Issuer::start(&[pair.public(Some("new"))]).await;
    let (_ground, server) = start(&issuer).await;
    let let_in = futures::future::join_all((0..20).map(|_| is_let_in(&server, &pair, "new"))).await;
    assert_eq!(let_in, [true; 20]);
    assert_eq!(issuer.asked(), 1);
}
