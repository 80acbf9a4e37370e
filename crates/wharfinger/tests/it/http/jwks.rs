//! Tokens of an issuer whose public keys are in a file.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::signing_keys::{RSA, SigningPair, elliptic, jwks};
use super::{claims, get_quota_with};
use crate::test_app::{Database, TestApp, TestEnv, caller};
use wharfinger::core::Role;

/// Starts a server with these keys. Also returns the folder of the key file.
async fn start(keys: &[Value]) -> (tempfile::TempDir, TestEnv, TestApp) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("jwks.json");
    std::fs::write(&file, jwks(keys).to_string()).expect("a file of keys");
    let path = file.to_str().expect("UTF-8");
    let secret = ("WHARFINGER_JWT_SECRET", "a secret of thirty-two bytes or more");
    let env = TestEnv::with(Database::Sqlite, &[("WHARFINGER_JWKS_FILE", path), secret]);
    let server = env.start().await;
    (folder, env, server)
}

#[tokio::test]
async fn tokens_signed_with_the_published_keys_are_accepted() {
    let curve = elliptic();
    let (_folder, _env, server) = start(&[RSA.public(Some("r")), curve.public(Some("e"))]).await;
    for pair in [&*RSA, &curve] {
        let kid = if std::ptr::eq(pair, &curve) { "e" } else { "r" };
        assert_eq!(
            get_quota_with(&server, &pair.token(Some(kid), &claims())).await.expect(200)["tenant"],
            "t"
        );
        get_quota_with(&server, &pair.token(None, &claims())).await.expect(200);
        for kid in ["x", "", "E"] {
            let problem = get_quota_with(&server, &pair.token(Some(kid), &claims())).await;
            problem.expect_problem(401, "unauthorized");
        }
        let mut expired = claims();
        expired["exp"] = json!(1);
        get_quota_with(&server, &pair.token(Some(kid), &expired)).await.expect_problem(401, "unauthorized");
    }
    // The server's own secret still signs its own tokens.
    server.me().get("/api/v2/quota").await.expect(200);
}

#[tokio::test]
async fn tokens_signed_with_another_key_or_by_another_algorithm_are_refused() {
    let (published, unpublished) = (elliptic(), elliptic());
    let (_folder, _env, server) = start(&[RSA.public(Some("r")), published.public(Some("e"))]).await;
    let mut refused = vec![
        ("an unpublished key with a published id", unpublished.token(Some("e"), &claims())),
        ("an unpublished key without an id", unpublished.token(None, &claims())),
        ("the EC key with the id of the RSA key", published.token(Some("r"), &claims())),
        ("RSA with SHA-512", RSA.token_with(Algorithm::RS512, Some("r"), &claims())),
        ("RSA with PSS", RSA.token_with(Algorithm::PS256, Some("r"), &claims())),
    ];
    // Key confusion: a token that is signed with the public key as an HMAC secret.
    let jwk = RSA.public(Some("r"));
    let modulus = jwk["n"].as_str().expect("a modulus");
    let raw = URL_SAFE_NO_PAD.decode(modulus).expect("base64");
    for secret in [modulus.as_bytes().to_vec(), raw, jwk.to_string().into_bytes(), spki_pem(&jwk)] {
        let header = Header { kid: Some("r".into()), ..Header::new(Algorithm::HS256) };
        let token = encode(&header, &claims(), &EncodingKey::from_secret(&secret)).expect("a token");
        refused.push(("the public key as a secret", token));
    }
    for (case, token) in refused {
        let answer = get_quota_with(&server, &token).await;
        assert_eq!(answer.status, 401, "{case}: {}", answer.body);
    }
}

/// The public RSA key as PEM, another form that an attacker may use as the secret.
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

/// With an issuer, the server does not generate a secret. It signs only with a configured one.
#[tokio::test]
async fn with_an_issuer_no_secret_is_generated() {
    let (folder, env, _server) = start(&[RSA.public(Some("r"))]).await;
    let env = env.without("WHARFINGER_JWT_SECRET");
    let server = env.start().await;
    get_quota_with(&server, &RSA.token(Some("r"), &claims())).await.expect(200);
    assert!(server.app.tokens.mint(&caller("t", "u", Role::User), i64::MAX / 2).is_err());
    let key_file = env.data_dir().join("secrets/jwt.key");
    assert!(!key_file.exists(), "{} was created", key_file.display());
    drop(folder);
}

#[tokio::test]
async fn keys_for_other_uses_are_ignored() {
    use rsa::pkcs1::EncodeRsaPrivateKey as _;
    let (signing, encrypting, wrapping, other) = (elliptic(), elliptic(), elliptic(), elliptic());
    let with = |pair: &SigningPair, kid: &str, name: &str, value: Value| {
        let mut jwk = pair.public(Some(kid));
        jwk[name] = value;
        jwk
    };
    let weak = rsa::RsaPrivateKey::new(&mut p256::elliptic_curve::rand_core::OsRng, 1_024).expect("a key");
    let weak = EncodingKey::from_rsa_der(weak.to_pkcs1_der().expect("a key in DER").as_bytes());
    let weak = SigningPair::new(Algorithm::RS256, weak);
    let keys = [
        with(&signing, "signing", "use", json!("sig")),
        with(&encrypting, "enc", "use", json!("enc")),
        with(&wrapping, "wrap", "key_ops", json!(["wrapKey"])),
        with(&other, "other", "alg", json!("ES384")),
        weak.public(Some("weak")),
    ];
    let (_folder, _env, server) = start(&keys).await;
    get_quota_with(&server, &signing.token(Some("signing"), &claims())).await.expect(200);
    for (pair, kid) in [(&encrypting, "enc"), (&wrapping, "wrap"), (&other, "other"), (&weak, "weak")] {
        let answer = get_quota_with(&server, &pair.token(Some(kid), &claims())).await;
        assert_eq!(answer.status, 401, "{kid}: {}", answer.body);
    }
}

/// RFC 7515: a receiver that does not know a critical extension must refuse the token.
#[tokio::test]
async fn a_token_with_critical_extensions_is_refused() {
    let (_folder, _env, server) = start(&[RSA.public(Some("r"))]).await;
    let secret = EncodingKey::from_secret(b"a secret of thirty-two bytes or more");
    let signed = |header: Value| {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(&header), part(&claims()));
        let mac = jsonwebtoken::crypto::sign(message.as_bytes(), &secret, Algorithm::HS256).expect("signed");
        format!("{message}.{mac}")
    };
    get_quota_with(&server, &signed(json!({ "alg": "HS256" }))).await.expect(200);
    let critical = signed(json!({ "alg": "HS256", "crit": ["b64"], "b64": true }));
    let problem = get_quota_with(&server, &critical).await.expect_problem(401, "unauthorized");
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains("crit")), "{problem}");
}

#[tokio::test]
async fn a_changed_key_file_is_read_again() {
    let (old, new) = (elliptic(), elliptic());
    let (folder, env, server) = start(&[old.public(Some("old"))]).await;
    get_quota_with(&server, &old.token(Some("old"), &claims())).await.expect(200);
    std::fs::write(folder.path().join("jwks.json"), jwks(&[new.public(Some("new"))]).to_string())
        .expect("written");
    env.advance(5 * 60_000);
    get_quota_with(&server, &old.token(Some("old"), &claims())).await.expect_problem(401, "unauthorized");
    get_quota_with(&server, &new.token(Some("new"), &claims())).await.expect(200);
    std::fs::write(folder.path().join("jwks.json"), "{").expect("written");
    env.advance(5 * 60_000);
    get_quota_with(&server, &new.token(Some("new"), &claims())).await.expect(200);
}

#[tokio::test]
async fn keys_of_other_types_are_ignored() {
    let curve = elliptic();
    let shared =
        json!({ "kty": "oct", "kid": "o", "k": URL_SAFE_NO_PAD.encode("a well known shared secret") });
    let (_folder, _env, server) = start(&[shared, curve.public(Some("e"))]).await;
    get_quota_with(&server, &curve.token(Some("e"), &claims())).await.expect(200);
    let header = Header { kid: Some("o".into()), ..Header::new(Algorithm::HS256) };
    let key = EncodingKey::from_secret(b"a well known shared secret");
    let token = encode(&header, &claims(), &key).expect("a token");
    get_quota_with(&server, &token).await.expect_problem(401, "unauthorized");
}
