//! Tokens of an issuer whose public keys lie in a file.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::signing_keys::{RSA, elliptic, jwks};
use super::{claims, knock_with};
use crate::test_app::{Database, Ground, TestApp};

/// A server that knows these keys, and the folder that holds them.
async fn start(keys: &[Value]) -> (tempfile::TempDir, Ground, TestApp) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("jwks.json");
    std::fs::write(&file, jwks(keys).to_string()).expect("a file of keys");
    let path = file.to_str().expect("UTF-8");
    let ground = Ground::with(Database::Sqlite, &[("WHARFINGER_JWKS_FILE", path)]);
    let server = ground.start().await;
    (folder, ground, server)
}

#[tokio::test]
async fn tokens_signed_with_the_published_keys_are_let_in() {
    let curve = elliptic();
    let (_folder, _ground, server) = start(&[RSA.public(Some("r")), curve.public(Some("e"))]).await;
    for pair in [&*RSA, &curve] {
        let kid = if std::ptr::eq(pair, &curve) { "e" } else { "r" };
        assert_eq!(knock_with(&server, &pair.token(Some(kid), &claims())).await.expect(200)["tenant"], "t");
        knock_with(&server, &pair.token(None, &claims())).await.expect(200);
        for kid in ["x", "", "E"] {
            let problem = knock_with(&server, &pair.token(Some(kid), &claims())).await;
            problem.expect_problem(401, "unauthorized");
        }
        let mut expired = claims();
        expired["exp"] = json!(1);
        knock_with(&server, &pair.token(Some(kid), &expired)).await.expect_problem(401, "unauthorized");
    }
    // The server's own secret still signs its own tokens.
    server.me().get("/api/v2/quota").await.expect(200);
}

#[tokio::test]
async fn tokens_signed_with_another_key_or_by_another_algorithm_are_refused() {
    let (ours, theirs) = (elliptic(), elliptic());
    let (_folder, _ground, server) = start(&[RSA.public(Some("r")), ours.public(Some("e"))]).await;
    let mut refused = vec![
        ("another key under our id", theirs.token(Some("e"), &claims())),
        ("another key without an id", theirs.token(None, &claims())),
        ("the curve's key under the other's id", ours.token(Some("r"), &claims())),
        ("RSA with SHA-512", RSA.token_by(Algorithm::RS512, Some("r"), &claims())),
        ("RSA with PSS", RSA.token_by(Algorithm::PS256, Some("r"), &claims())),
    ];
    // The classic confusion: the public key, which everybody has, taken for a shared secret.
    let jwk = RSA.public(Some("r"));
    let modulus = jwk["n"].as_str().expect("a modulus");
    let raw = URL_SAFE_NO_PAD.decode(modulus).expect("base64");
    for secret in [modulus.as_bytes().to_vec(), raw, jwk.to_string().into_bytes(), spki_pem(&jwk)] {
        let header = Header { kid: Some("r".into()), ..Header::new(Algorithm::HS256) };
        let token = encode(&header, &claims(), &EncodingKey::from_secret(&secret)).expect("a token");
        refused.push(("the public key as a secret", token));
    }
    for (what, token) in refused {
        let answer = knock_with(&server, &token).await;
        assert_eq!(answer.status, 401, "{what}: {}", answer.body);
    }
}

/// The RSA key in the form that most programs keep it in.
fn spki_pem(jwk: &Value) -> Vec<u8> {
    use rsa::pkcs8::EncodePublicKey as _;
    let number = |name: &str| {
        let bytes = URL_SAFE_NO_PAD.decode(jwk[name].as_str().expect("a number")).expect("base64");
        rsa::BigUint::from_bytes_be(&bytes)
    };
    let public = rsa::RsaPublicKey::new(number("n"), number("e")).expect("a key");
    let der = public.to_public_key_der().expect("a key in DER");
    let text = base64::engine::general_purpose::STANDARD.encode(der.as_bytes());
    let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
    format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", lines.join("\n")).into_bytes()
}

#[tokio::test]
async fn keys_of_other_kinds_are_passed_over() {
    let curve = elliptic();
    let shared =
        json!({ "kty": "oct", "kid": "o", "k": URL_SAFE_NO_PAD.encode("a well known shared secret") });
    let (_folder, _ground, server) = start(&[shared, curve.public(Some("e"))]).await;
    knock_with(&server, &curve.token(Some("e"), &claims())).await.expect(200);
    let header = Header { kid: Some("o".into()), ..Header::new(Algorithm::HS256) };
    let key = EncodingKey::from_secret(b"a well known shared secret");
    let token = encode(&header, &claims(), &key).expect("a token");
    knock_with(&server, &token).await.expect_problem(401, "unauthorized");
}
