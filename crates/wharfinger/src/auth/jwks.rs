//! The public keys of an issuer (JWKS), from a file or a URL. They are read again every few minutes, so that a key that
//! the issuer withdraws stops working here too.

use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::StreamExt as _;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use tokio::sync::Mutex;
use wharfinger_lifecycle::UnixMs;

use crate::config::mask_url;

/// Keys older than this are read again.
const KEYS_AGE_MS_MAX: i64 = 5 * 60_000;
/// The keys are requested at most this often, whatever tokens arrive.
const ASK_PAUSE_MS: i64 = 30_000;
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const JWKS_BYTES_MAX: usize = 1 << 20;
const KEYS_MAX: usize = 100;
/// Shorter RSA keys can be broken.
const RSA_BITS_MIN: usize = 2_048;

pub struct VerifyingKey {
    pub id: Option<String>,
    pub algorithm: Algorithm,
    pub key: DecodingKey,
}

#[derive(Clone, Debug)]
pub enum Source {
    File(PathBuf),
    Url(String),
}

pub struct Jwks {
    source: Source,
    keys: RwLock<Vec<VerifyingKey>>,
    /// Held while the keys are read.
    times: Mutex<Times>,
}

struct Times {
    asked_at: UnixMs,
    read_at: UnixMs,
}

impl Jwks {
    /// A file must be readable and valid. A URL is requested later, by `refresh_old`.
    pub fn open(source: Source) -> Result<Jwks, String> {
        let keys = match &source {
            Source::File(path) => match read_file(path)? {
                keys if keys.is_empty() => {
                    return Err(format!("{}: the file has no {USABLE}", path.display()));
                }
                keys => keys,
            },
            Source::Url(_) => Vec::new(),
        };
        let long_ago = i64::MIN / 2;
        let times = Mutex::new(Times { asked_at: long_ago, read_at: long_ago });
        Ok(Jwks { source, keys: RwLock::new(keys), times })
    }

    /// Calls `accept` with each matching key, up to the first that it accepts. None: no key matches.
    pub fn find<T, E>(
        &self,
        algorithm: Algorithm,
        id: Option<&str>,
        accept: impl Fn(&DecodingKey) -> Result<T, E>,
    ) -> Option<Result<T, E>> {
        let keys = self.keys.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let matches = |key: &&VerifyingKey| {
            key.algorithm == algorithm && (id.is_none() || key.id.is_none() || key.id.as_deref() == id)
        };
        let mut last = None;
        for key in keys.iter().filter(matches) {
            let outcome = accept(&key.key);
            let is_accepted = outcome.is_ok();
            last = Some(outcome);
            if is_accepted {
                break;
            }
        }
        last
    }

    /// Reads the keys again if they are old. While another request does that, the old keys are used.
    pub async fn refresh_old(&self, now: UnixMs) {
        if let Ok(mut times) = self.times.try_lock()
            && now >= times.read_at.saturating_add(KEYS_AGE_MS_MAX)
            && now >= times.asked_at.saturating_add(ASK_PAUSE_MS)
        {
            self.read_again(&mut times, now).await;
        }
    }

    /// Reads the keys again because none matches, unless that just happened. All requests wait for the same answer.
    pub async fn refresh_unknown(&self, now: UnixMs) {
        let mut times = self.times.lock().await;
        if now >= times.asked_at.saturating_add(ASK_PAUSE_MS) {
            self.read_again(&mut times, now).await;
        }
    }

    async fn read_again(&self, times: &mut Times, now: UnixMs) {
        times.asked_at = now;
        let read = match &self.source {
            Source::File(path) => read_file(path),
            Source::Url(url) => fetch(url).await,
        };
        match read {
            Ok(keys) => {
                if keys.is_empty() {
                    tracing::error!(
                        "the JWKS has no usable key, all its tokens are refused; it needs an {USABLE}"
                    );
                }
                times.read_at = now;
                *self.keys.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = keys;
            }
            Err(problem) => {
                tracing::error!(error = %problem, "cannot read the JWKS, the old keys stay valid")
            }
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<VerifyingKey>, String> {
    let text = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text).map_err(|problem| format!("{}: {problem}", path.display()))
}

/// Redirects are refused: only this address is trusted.
async fn fetch(url: &str) -> Result<Vec<VerifyingKey>, String> {
    let client = reqwest::Client::builder()
        .timeout(FETCH_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|error| error.to_string())?;
    let shown = mask_url(url);
    let failed = |error: reqwest::Error| format!("{shown}: {}", error.without_url());
    let answer = client.get(url).send().await.map_err(failed)?;
    if !answer.status().is_success() {
        return Err(format!("{shown} answered {}", answer.status()));
    }
    let mut text = Vec::new();
    let mut chunks = answer.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        text.extend_from_slice(&chunk.map_err(failed)?);
        if text.len() > JWKS_BYTES_MAX {
            return Err(format!("{shown} answered with more than {JWKS_BYTES_MAX} bytes"));
        }
    }
    parse(&text)
}

#[derive(serde::Deserialize)]
struct KeySet {
    keys: Vec<serde_json::Value>,
}

/// The kinds of keys that are used.
const USABLE: &str = "RS256 (at least 2048 bits) or ES256 key for signatures";

/// Skips invalid keys and keys of other kinds or uses. The result may be empty: then the issuer has no valid key now.
pub fn parse(text: &[u8]) -> Result<Vec<VerifyingKey>, String> {
    if text.len() > JWKS_BYTES_MAX {
        return Err(format!("larger than {JWKS_BYTES_MAX} bytes"));
    }
    let set: KeySet = serde_json::from_slice(text).map_err(|error| format!("not a JWKS: {error}"))?;
    let mut keys = Vec::new();
    // An unknown kind of key must not prevent the use of the others.
    let known = set.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    for jwk in known.filter(is_for_signatures) {
        let Some(algorithm) = algorithm(&jwk) else { continue };
        let key = match DecodingKey::from_jwk(&jwk) {
            Ok(key) => key,
            Err(error) => {
                tracing::warn!(keyId = jwk.common.key_id, error = %error, "an invalid key of the JWKS was skipped");
                continue;
            }
        };
        keys.push(VerifyingKey { id: jwk.common.key_id.clone(), algorithm, key });
    }
    match keys.len() {
        count if count > KEYS_MAX => Err(format!("it has more than {KEYS_MAX} keys")),
        _ => Ok(keys),
    }
}

/// Keys may omit their use. If they have it, it must be the verification of signatures.
fn is_for_signatures(jwk: &Jwk) -> bool {
    let by_use = jwk.common.public_key_use.as_ref().is_none_or(|word| *word == PublicKeyUse::Signature);
    let operations = jwk.common.key_operations.as_ref();
    by_use && operations.is_none_or(|list| list.contains(&KeyOperations::Verify))
}

/// None: another algorithm, or a key too weak for it.
fn algorithm(jwk: &Jwk) -> Option<Algorithm> {
    let (algorithm, name) = match &jwk.algorithm {
        AlgorithmParameters::RSA(rsa) => {
            let modulus = URL_SAFE_NO_PAD.decode(&rsa.n).ok()?;
            let leading = modulus.iter().take_while(|byte| **byte == 0).count();
            ((modulus.len() - leading) * 8 >= RSA_BITS_MIN)
                .then_some((Algorithm::RS256, KeyAlgorithm::RS256))?
        }
        AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        _ => return None,
    };
    jwk.common.key_algorithm.is_none_or(|named| named == name).then_some(algorithm)
}
