//! Tokens that are signed with the server's own secret. Every invalid token is answered 401.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::{EXP, claims, get_quota, get_quota_with};
use crate::test_app::{Database, START, TestApp, TestEnv};

const SECRET: &str = "a secret that is longer than thirty-two bytes";

async fn start(settings: &[(&'static str, &str)]) -> (TestEnv, TestApp) {
    let mut all = vec![("WHARFINGER_JWT_SECRET", SECRET)];
    all.extend_from_slice(settings);
    let env = TestEnv::with(Database::Sqlite, &all);
    let server = env.start().await;
    (env, server)
}

fn signed_with(algorithm: Algorithm, claims: &Value, secret: &str) -> String {
    encode(&Header::new(algorithm), claims, &EncodingKey::from_secret(secret.as_bytes())).expect("a token")
}

fn signed(claims: &Value) -> String {
    signed_with(Algorithm::HS256, claims, SECRET)
}

fn with(member: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[member] = value;
    claims
}

fn without(member: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().expect("an object").remove(member);
    claims
}

/// Joins the parts of a token without any check.
fn assembled(header: &Value, claims: &Value, signature: &str) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{signature}", part(header), part(claims))
}

#[tokio::test]
async fn a_valid_token_is_accepted_with_any_spelling_of_bearer() {
    let (_env, server) = start(&[]).await;
    let token = signed(&claims());
    for header in [format!("Bearer {token}"), format!("bearer {token}"), format!("BEARER   {token}")] {
        assert_eq!(get_quota(&server, Some(&header)).await.expect(200)["tenant"], "t");
    }
    get_quota_with(&server, &signed(&with("exp", json!(EXP as f64 + 0.5)))).await.expect(200);
    get_quota_with(&server, &signed(&with("role", json!("operator")))).await.expect(200);
    get_quota_with(&server, &signed(&with("role", Value::Null))).await.expect(200);
    get_quota_with(&server, &signed(&with("colour", json!("blue")))).await.expect(200);
}

#[tokio::test]
async fn a_request_without_a_token_gets_a_bearer_challenge() {
    let (_env, server) = start(&[]).await;
    let token = signed(&claims());
    let basic = format!("Basic {token}");
    for header in
        [None, Some(""), Some("Bearer"), Some(token.as_str()), Some(basic.as_str()), Some("Bearer ")]
    {
        let answer = get_quota(&server, header).await;
        assert_eq!(answer.headers["www-authenticate"], "Bearer", "{header:?}");
        answer.expect_problem(401, "unauthorized");
    }
}

#[tokio::test]
async fn a_malformed_or_forged_token_is_refused() {
    let (_env, server) = start(&[]).await;
    let valid = signed(&claims());
    let (unsigned, signature) = valid.rsplit_once('.').expect("three parts");
    let hs256_header = json!({ "alg": "HS256", "typ": "JWT" });
    let mut refused = vec![
        ("no token".to_owned(), "x".to_owned()),
        ("dots alone".to_owned(), "..".to_owned()),
        ("no signature".to_owned(), format!("{unsigned}.")),
        ("no third part".to_owned(), unsigned.to_owned()),
        ("a fourth part".to_owned(), format!("{valid}.x")),
        ("a cut signature".to_owned(), valid[..valid.len() - 2].to_owned()),
        (
            "the claims of another tenant".to_owned(),
            assembled(&hs256_header, &with("tenant", json!("other")), signature),
        ),
        ("a raised role".to_owned(), assembled(&hs256_header, &with("role", json!("operator")), signature)),
        ("another secret".to_owned(), signed_with(Algorithm::HS256, &claims(), &SECRET.to_uppercase())),
        ("an empty secret".to_owned(), signed_with(Algorithm::HS256, &claims(), "")),
        ("too long".to_owned(), signed(&with("padding", json!("x".repeat(8_192))))),
    ];
    for algorithm in [Algorithm::HS384, Algorithm::HS512] {
        refused.push((format!("{algorithm:?}"), signed_with(algorithm, &claims(), SECRET)));
    }
    for algorithm in ["none", "None", "NONE", "nOnE", "", "hs256", "RS256", "ES256"] {
        let header = json!({ "alg": algorithm, "typ": "JWT" });
        refused.push((format!("alg {algorithm:?} unsigned"), assembled(&header, &claims(), "")));
        refused.push((
            format!("alg {algorithm:?} with the signature of a valid token"),
            assembled(&header, &claims(), signature),
        ));
    }
    refused.push(("no alg".to_owned(), assembled(&json!({ "typ": "JWT" }), &claims(), signature)));
    for (case, token) in refused {
        let answer = get_quota_with(&server, &token).await;
        assert_eq!(answer.status, 401, "{case}: {}", answer.body);
        assert!(!answer.body.to_string().contains(&token), "{case}: the answer repeats the token");
        answer.expect_problem(401, "unauthorized");
    }
}

#[tokio::test]
async fn a_token_with_invalid_claims_is_refused() {
    let (_env, server) = start(&[]).await;
    let now = START / 1_000;
    let refused = [
        without("exp"),
        without("sub"),
        without("tenant"),
        with("exp", json!(now)),
        with("exp", json!(now - 1)),
        with("exp", json!(0)),
        with("exp", json!(-1)),
        with("exp", json!(EXP.to_string())),
        with("exp", Value::Null),
        with("nbf", json!(now + 3_600)),
        with("nbf", json!("soon")),
        with("sub", json!("")),
        with("sub", Value::Null),
        with("sub", json!(7.5)),
        with("sub", json!(["u"])),
        with("sub", json!("a\u{0}b")),
        with("sub", json!("x".repeat(256))),
        with("tenant", json!("")),
        with("tenant", json!(["t"])),
        with("tenant", Value::Null),
        with("tenant", json!("x".repeat(256))),
        with("role", json!(7)),
        with("role", json!({ "admin": true })),
        json!([]),
        json!("t"),
    ];
    for claims in refused {
        let answer = get_quota_with(&server, &signed(&claims)).await;
        assert_eq!(answer.status, 401, "{claims}: {}", answer.body);
        answer.expect_problem(401, "unauthorized");
    }
    get_quota_with(&server, &signed(&with("exp", json!(now + 1)))).await.expect(200);
    get_quota_with(&server, &signed(&with("nbf", json!(now)))).await.expect(200);
}

#[tokio::test]
async fn a_token_is_refused_after_it_expires() {
    let (env, server) = start(&[]).await;
    let token = signed(&claims());
    env.advance(3_600_000 - 1);
    get_quota_with(&server, &token).await.expect(200);
    env.advance(1);
    let problem = get_quota_with(&server, &token).await.expect_problem(401, "unauthorized");
    assert_eq!(problem["detail"], "the token has expired");
}

#[tokio::test]
async fn issuer_and_audience_are_checked_when_configured() {
    let settings = [("WHARFINGER_JWT_ISSUER", "https://id.example/"), ("WHARFINGER_JWT_AUDIENCE", "wharf")];
    let (_env, server) = start(&settings).await;
    let both = |iss: Value, aud: Value| {
        let mut claims = claims();
        claims["iss"] = iss;
        claims["aud"] = aud;
        claims
    };
    let issuer = || json!("https://id.example/");
    for valid in [both(issuer(), json!("wharf")), both(issuer(), json!(["other", "wharf"]))] {
        get_quota_with(&server, &signed(&valid)).await.expect(200);
    }
    for refused in [
        claims(),
        both(issuer(), Value::Null),
        both(Value::Null, json!("wharf")),
        both(json!("https://id.example"), json!("wharf")),
        both(json!("https://other.example/"), json!("wharf")),
        both(issuer(), json!("Wharf")),
        both(issuer(), json!(["other"])),
        both(issuer(), json!([])),
        with("iss", issuer()),
        with("aud", json!("wharf")),
    ] {
        let answer = get_quota_with(&server, &signed(&refused)).await;
        assert_eq!(answer.status, 401, "{refused}: {}", answer.body);
    }
    // The server puts the configured issuer and audience into its own tokens.
    server.me().get("/api/v2/quota").await.expect(200);
}
