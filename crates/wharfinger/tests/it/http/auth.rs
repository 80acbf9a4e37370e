//! Tokens of the server's own secret: every way in which one can be wrong is a 401.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::{EXP, claims, knock, knock_with};
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

/// A token in parts that nobody checked.
fn assembled(header: &Value, claims: &Value, signature: &str) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{signature}", part(header), part(claims))
}

#[tokio::test]
async fn a_sound_token_is_let_in_with_any_spelling_of_bearer() {
    let (_ground, server) = start(&[]).await;
    let token = signed(&claims());
    for header in [format!("Bearer {token}"), format!("bearer {token}"), format!("BEARER   {token}")] {
        assert_eq!(knock(&server, Some(&header)).await.expect(200)["tenant"], "t");
    }
    knock_with(&server, &signed(&with("exp", json!(EXP as f64 + 0.5)))).await.expect(200);
    knock_with(&server, &signed(&with("role", json!("operator")))).await.expect(200);
    knock_with(&server, &signed(&with("role", Value::Null))).await.expect(200);
    knock_with(&server, &signed(&with("colour", json!("blue")))).await.expect(200);
}

#[tokio::test]
async fn a_request_without_a_token_is_told_how_to_bring_one() {
    let (_ground, server) = start(&[]).await;
    let token = signed(&claims());
    let basic = format!("Basic {token}");
    for header in
        [None, Some(""), Some("Bearer"), Some(token.as_str()), Some(basic.as_str()), Some("Bearer ")]
    {
        let answer = knock(&server, header).await;
        assert_eq!(answer.headers["www-authenticate"], "Bearer", "{header:?}");
        answer.expect_problem(401, "unauthorized");
    }
}

#[tokio::test]
async fn a_token_that_is_malformed_or_not_ours_is_refused() {
    let (_ground, server) = start(&[]).await;
    let sound = signed(&claims());
    let (unsigned, signature) = sound.rsplit_once('.').expect("three parts");
    let own_header = json!({ "alg": "HS256", "typ": "JWT" });
    let mut refused = vec![
        ("no token".to_owned(), "x".to_owned()),
        ("dots alone".to_owned(), "..".to_owned()),
        ("no signature".to_owned(), format!("{unsigned}.")),
        ("no third part".to_owned(), unsigned.to_owned()),
        ("a fourth part".to_owned(), format!("{sound}.x")),
        ("a cut signature".to_owned(), sound[..sound.len() - 2].to_owned()),
        ("another's claims".to_owned(), assembled(&own_header, &with("tenant", json!("other")), signature)),
        ("a raised role".to_owned(), assembled(&own_header, &with("role", json!("operator")), signature)),
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
            format!("alg {algorithm:?} with our signature"),
            assembled(&header, &claims(), signature),
        ));
    }
    refused.push(("no alg".to_owned(), assembled(&json!({ "typ": "JWT" }), &claims(), signature)));
    for (what, token) in refused {
        let answer = knock_with(&server, &token).await;
        assert_eq!(answer.status, 401, "{what}: {}", answer.body);
        assert!(!answer.body.to_string().contains(&token), "{what} is not repeated");
        answer.expect_problem(401, "unauthorized");
    }
}

#[tokio::test]
async fn a_token_whose_claims_are_not_in_order_is_refused() {
    let (_ground, server) = start(&[]).await;
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
        with("sub", json!(7)),
        with("sub", Value::Null),
        with("sub", json!("a\u{0}b")),
        with("sub", json!("x".repeat(256))),
        with("tenant", json!("")),
        with("tenant", json!(["t"])),
        with("tenant", Value::Null),
        with("tenant", json!("x".repeat(256))),
        with("role", json!("root")),
        with("role", json!("Admin")),
        with("role", json!("")),
        with("role", json!(["operator"])),
        json!([]),
        json!("t"),
    ];
    for claims in refused {
        let answer = knock_with(&server, &signed(&claims)).await;
        assert_eq!(answer.status, 401, "{claims}: {}", answer.body);
        answer.expect_problem(401, "unauthorized");
    }
    knock_with(&server, &signed(&with("exp", json!(now + 1)))).await.expect(200);
    knock_with(&server, &signed(&with("nbf", json!(now)))).await.expect(200);
}

#[tokio::test]
async fn a_token_dies_when_its_time_comes() {
    let (env, server) = start(&[]).await;
    let token = signed(&claims());
    env.advance(3_600_000 - 1);
    knock_with(&server, &token).await.expect(200);
    env.advance(1);
    let problem = knock_with(&server, &token).await.expect_problem(401, "unauthorized");
    assert_eq!(problem["detail"], "the token has expired");
}

#[tokio::test]
async fn issuer_and_audience_are_checked_where_they_are_set() {
    let settings = [("WHARFINGER_JWT_ISSUER", "https://id.example/"), ("WHARFINGER_JWT_AUDIENCE", "wharf")];
    let (_ground, server) = start(&settings).await;
    let both = |iss: Value, aud: Value| {
        let mut claims = claims();
        claims["iss"] = iss;
        claims["aud"] = aud;
        claims
    };
    let issuer = || json!("https://id.example/");
    for sound in [both(issuer(), json!("wharf")), both(issuer(), json!(["other", "wharf"]))] {
        knock_with(&server, &signed(&sound)).await.expect(200);
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
        let answer = knock_with(&server, &signed(&refused)).await;
        assert_eq!(answer.status, 401, "{refused}: {}", answer.body);
    }
    // The server's own tokens are made to its own taste.
    server.me().get("/api/v2/quota").await.expect(200);
}
