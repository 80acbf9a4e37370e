//! Key pairs of a token issuer for the tests.

use std::sync::LazyLock;

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use p256::elliptic_curve::rand_core::OsRng;
use p256::pkcs8::EncodePrivateKey as _;
use rsa::pkcs1::EncodeRsaPrivateKey as _;
use serde_json::{Value, json};

pub struct SigningPair {
    algorithm: Algorithm,
    key: EncodingKey,
    /// The public half, without a key id.
    jwk: Value,
}

/// Shared by all tests, because an RSA key is slow to generate.
pub static RSA: LazyLock<SigningPair> = LazyLock::new(|| {
    let private = rsa::RsaPrivateKey::new(&mut OsRng, 2_048).expect("a key");
    let der = private.to_pkcs1_der().expect("a key in DER");
    SigningPair::new(Algorithm::RS256, EncodingKey::from_rsa_der(der.as_bytes()))
});

pub fn elliptic() -> SigningPair {
    let der = p256::SecretKey::random(&mut OsRng).to_pkcs8_der().expect("a key in DER");
    SigningPair::new(Algorithm::ES256, EncodingKey::from_ec_der(der.as_bytes()))
}

impl SigningPair {
    pub fn new(algorithm: Algorithm, key: EncodingKey) -> SigningPair {
        let jwk = Jwk::from_encoding_key(&key, algorithm).expect("a public half");
        SigningPair { algorithm, key, jwk: serde_json::to_value(jwk).expect("JSON") }
    }

    /// The public half as an issuer publishes it.
    pub fn public(&self, kid: Option<&str>) -> Value {
        let mut jwk = self.jwk.clone();
        if let Some(kid) = kid {
            jwk["kid"] = kid.into();
        }
        jwk
    }

    pub fn token(&self, kid: Option<&str>, claims: &Value) -> String {
        self.token_with(self.algorithm, kid, claims)
    }

    /// Signs with another algorithm than the key is published for.
    pub fn token_with(&self, algorithm: Algorithm, kid: Option<&str>, claims: &Value) -> String {
        let header = Header { kid: kid.map(str::to_owned), ..Header::new(algorithm) };
        encode(&header, claims, &self.key).expect("a token")
    }
}

pub fn jwks(keys: &[Value]) -> Value {
    json!({ "keys": keys })
}
