//! The public keys of an issuer, from a file or a URL. They are read again every few minutes, so that a key which the
//! issuer has withdrawn stops working here too.

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

/// Keys older than this are read again before the next token is checked.
const KEYS_AGE_MS_MAX: i64 = 5 * 60_000;
/// The issuer is asked at most this often, whatever tokens come.
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
    /// A file must be readable and sound; a URL is asked when the first token comes.
    pub fn open(source: Source) -> Result<Jwks, String> {
        let keys = match &source {
            Source::File(path) => match read_file(path)? {
                keys if keys.is_empty() => return Err(format!("{}: it has no {USABLE}", path.display())),
                keys => keys,
            },
            Source::Url(_) => Vec::new(),
        };
        let long_ago = i64::MIN / 2;
        let times = Mutex::new(Times { asked_at: long_ago, read_at: long_ago });
        Ok(Jwks { source, keys: RwLock::new(keys), times })
    }

    /// What the function makes of each key that fits, up to the first that it accepts. None: no key fits.
    pub fn find<T, E>(
        &self,
        algorithm: Algorithm,
        id: Option<&str>,
        accept: impl Fn(&DecodingKey) -> Result<T, E>,
    ) -> Option<Result<T, E>> {
        let keys = self.keys.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let fits = |key: &&VerifyingKey| {
            key.algorithm == algorithm && (id.is_none() || key.id.is_none() || key.id.as_deref() == id)
        };
        let mut last = None;
        for key in keys.iter().filter(fits) {
            let outcome = accept(&key.key);
            let is_accepted = outcome.is_ok();
            last = Some(outcome);
            if is_accepted {
                break;
            }
        }
        last
    }

    /// Reads the keys again if they are old. Where another request does so already, the old keys are used meanwhile.
    pub async fn refresh_old(&self, now: UnixMs) {
        if let Ok(mut times) = self.times.try_lock()
            && now >= times.read_at.saturating_add(KEYS_AGE_MS_MAX)
            && now >= times.asked_at.saturating_add(ASK_PAUSE_MS)
        {
            self.read_again(&mut times, now).await;
        }
    }

    /// Reads the keys again because none fits, unless that was done a moment ago. All requests wait for the same answer.
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
                    tracing::error!("the JWKS has no {USABLE}: no token is taken until it has one");
                }
                times.read_at = now;
                *self.keys.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = keys;
            }
            Err(problem) => tracing::error!(error = %problem, "cannot read the JWKS, the old keys stay"),
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<VerifyingKey>, String> {
    let text = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text).map_err(|problem| format!("{}: {problem}", path.display()))
}

/// From this address and no other: an answer that leads elsewhere is refused.
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
        return Err(format!("{shown} answers {}", answer.status()));
    }
    let mut text = Vec::new();
    let mut chunks = answer.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        text.extend_from_slice(&chunk.map_err(failed)?);
        if text.len() > JWKS_BYTES_MAX {
            return Err(format!("{shown} answers with more than {JWKS_BYTES_MAX} bytes"));
        }
    }
    parse(&text)
}

#[derive(serde::Deserialize)]
struct KeySet {
    keys: Vec<serde_json::Value>,
}

/// What the keys of a set have to be.
const USABLE: &str = "RS256 (at least 2048 bits) or ES256 key for signatures";

/// Keys of other kinds, for other uses, or that make no sense are skipped: what is left is what the issuer stands for now,
/// even if that is nothing.
pub fn parse(text: &[u8]) -> Result<Vec<VerifyingKey>, String> {
    if text.len() > JWKS_BYTES_MAX {
        return Err(format!("larger than {JWKS_BYTES_MAX} bytes"));
    }
    let set: KeySet = serde_json::from_slice(text).map_err(|error| format!("not a JWKS: {error}"))?;
    let mut keys = Vec::new();
    // A kind of key that is not known here is no reason to do without the others.
    let known = set.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    for jwk in known.filter(is_for_signatures) {
        let Some(algorithm) = algorithm(&jwk) else { continue };
        let key = match DecodingKey::from_jwk(&jwk) {
            Ok(key) => key,
            Err(error) => {
                tracing::warn!(keyId = jwk.common.key_id, error = %error, "a key of the JWKS is skipped");
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

/// A key that says what it is for says that it verifies signatures.
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
