//! Bearer tokens: HS256 with the server's secret, RS256 and ES256 with the keys of a JWKS. The algorithm
//! belongs to the key, never to the token.

use std::sync::RwLock;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::{TenantId, UserId};

use super::Shared;
use super::problem::Problem;
use crate::config::{BadSetting, Secrets, Settings};
use crate::uploads::{Caller, Role};

const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// An unknown key id asks the issuer again at most this often.
const REFRESH_PAUSE_MS: i64 = 30_000;
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    sub: String,
    tenant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    exp: serde_json::Number,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<serde_json::Number>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iss: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    aud: Option<serde_json::Value>,
}

struct VerifyingKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

pub struct TokenKeys {
    secret: Option<(EncodingKey, DecodingKey)>,
    jwks: RwLock<Vec<VerifyingKey>>,
    jwks_url: Option<String>,
    asked_at: Mutex<UnixMs>,
    issuer: Option<String>,
    audience: Option<String>,
}

impl TokenKeys {
    pub fn load(settings: &Settings, secrets: &Secrets) -> Result<TokenKeys, BadSetting> {
        let mut jwks = Vec::new();
        if let Some(path) = &settings.jwks_file {
            let bad = |problem: String| BadSetting { name: "WHARFINGER_JWKS_FILE".into(), problem };
            let text = std::fs::read(path).map_err(|error| bad(format!("{}: {error}", path.display())))?;
            jwks = parse_jwks(&text).map_err(|problem| bad(format!("{}: {problem}", path.display())))?;
        }
        let pair = |secret: &Vec<u8>| (EncodingKey::from_secret(secret), DecodingKey::from_secret(secret));
        Ok(TokenKeys {
            secret: secrets.jwt_secret.as_ref().map(pair),
            jwks: RwLock::new(jwks),
            jwks_url: settings.jwks_url.clone(),
            asked_at: Mutex::new(i64::MIN / 2),
            issuer: settings.jwt_issuer.clone(),
            audience: settings.jwt_audience.clone(),
        })
    }

    /// A token signed with the server's own secret; none where it has only a JWKS.
    pub fn mint(&self, caller: &Caller, expires_at: UnixMs) -> Option<String> {
        let (signing, _) = self.secret.as_ref()?;
        let claims = Claims {
            sub: caller.user.to_string(),
            tenant: caller.tenant.to_string(),
            role: Some(caller.role.as_str().to_owned()),
            exp: (expires_at / 1_000).into(),
            nbf: None,
            iss: self.issuer.clone(),
            aud: self.audience.clone().map(serde_json::Value::String),
        };
        encode(&Header::new(Algorithm::HS256), &claims, signing).ok()
    }

    pub async fn verify(&self, token: &str, now: UnixMs) -> Result<Session, &'static str> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err("the token is too long");
        }
        let header = decode_header(token).map_err(|_| "the token cannot be read")?;
        let claims = match header.alg {
            Algorithm::HS256 => {
                let (_, key) = self.secret.as_ref().ok_or("the token's algorithm is not accepted")?;
                self.decode(token, key, Algorithm::HS256)?
            }
            Algorithm::RS256 | Algorithm::ES256 => {
                match self.by_jwks(token, header.alg, header.kid.as_deref()) {
                    Some(Ok(claims)) => claims,
                    // Perhaps the issuer has other keys by now.
                    Some(Err(_)) | None => {
                        self.refresh(now).await;
                        self.by_jwks(token, header.alg, header.kid.as_deref())
                            .ok_or("the token's key is not known here")??
                    }
                }
            }
            _ => return Err("the token's algorithm is not accepted"),
        };
        session(claims, now)
    }

    fn decode(&self, token: &str, key: &DecodingKey, algorithm: Algorithm) -> Result<Claims, &'static str> {
        let mut validation = Validation::new(algorithm);
        // Times are compared with our own clock, below.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = self.audience.is_some();
        let mut required = vec!["exp", "sub"];
        if let Some(issuer) = &self.issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        if let Some(audience) = &self.audience {
            validation.set_audience(&[audience]);
            required.push("aud");
        }
        validation.set_required_spec_claims(&required);
        use jsonwebtoken::errors::ErrorKind;
        decode::<Claims>(token, key, &validation).map(|data| data.claims).map_err(|error| {
            match error.kind() {
                ErrorKind::InvalidSignature => "the token's signature is wrong",
                ErrorKind::InvalidIssuer => "the token is from another issuer",
                ErrorKind::InvalidAudience => "the token is for another audience",
                ErrorKind::MissingRequiredClaim(_) | ErrorKind::Json(_) => {
                    "the token lacks a claim: `sub`, `tenant` and `exp` are required"
                }
                _ => "the token cannot be read",
            }
        })
    }

    /// None: no key fits.
    fn by_jwks(
        &self,
        token: &str,
        algorithm: Algorithm,
        id: Option<&str>,
    ) -> Option<Result<Claims, &'static str>> {
        let keys = self.jwks.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let fits = |key: &&VerifyingKey| {
            key.algorithm == algorithm && (id.is_none() || key.id.is_none() || key.id.as_deref() == id)
        };
        let mut last = None;
        for key in keys.iter().filter(fits) {
            let outcome = self.decode(token, &key.key, algorithm);
            if outcome.is_ok() {
                return Some(outcome);
            }
            last = Some(outcome);
        }
        last
    }

    /// Asks the issuer for its keys, unless that was done a moment ago.
    pub async fn refresh(&self, now: UnixMs) {
        let Some(url) = &self.jwks_url else { return };
        // Those who come meanwhile wait for the same answer.
        let mut asked_at = self.asked_at.lock().await;
        if now < asked_at.saturating_add(REFRESH_PAUSE_MS) {
            return;
        }
        *asked_at = now;
        match fetch_jwks(url).await {
            Ok(keys) => *self.jwks.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = keys,
            Err(problem) => {
                tracing::error!(error = %problem, "the JWKS could not be fetched; the old keys stay")
            }
        }
    }
}

async fn fetch_jwks(url: &str) -> Result<Vec<VerifyingKey>, String> {
    let client = reqwest::Client::builder().timeout(FETCH_TIMEOUT).build().map_err(|e| e.to_string())?;
    let answer = client.get(url).send().await.and_then(|answer| answer.error_for_status());
    let bytes = answer.map_err(|e| e.to_string())?.bytes().await.map_err(|e| e.to_string())?;
    parse_jwks(&bytes)
}

/// Keys of other kinds are passed over; a set without one that can be used is an error.
fn parse_jwks(text: &[u8]) -> Result<Vec<VerifyingKey>, String> {
    let set: JwkSet = serde_json::from_slice(text).map_err(|error| format!("not a JWKS: {error}"))?;
    let mut keys = Vec::new();
    for jwk in &set.keys {
        let algorithm = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => Algorithm::RS256,
            AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P256 => Algorithm::ES256,
            _ => continue,
        };
        let key = DecodingKey::from_jwk(jwk).map_err(|error| format!("a key cannot be used: {error}"))?;
        keys.push(VerifyingKey { id: jwk.common.key_id.clone(), algorithm, key });
    }
    if keys.is_empty() { Err("it holds no RS256 or ES256 key".into()) } else { Ok(keys) }
}

fn session(claims: Claims, now: UnixMs) -> Result<Session, &'static str> {
    let seconds = |number: &serde_json::Number| number.as_f64().filter(|s| s.is_finite());
    let now_seconds = now as f64 / 1_000.0;
    let expires = seconds(&claims.exp).ok_or("the token's `exp` is no time")?;
    if expires <= now_seconds {
        return Err("the token has expired");
    }
    if let Some(nbf) = &claims.nbf
        && seconds(nbf).ok_or("the token's `nbf` is no time")? > now_seconds + 60.0
    {
        return Err("the token is not valid yet");
    }
    let role = match claims.role.as_deref() {
        None => Role::User,
        Some(word) => Role::parse(word).ok_or("the token's `role` is not known")?,
    };
    let caller = Caller {
        tenant: TenantId::new(&claims.tenant).map_err(|_| "the token's `tenant` is not a usable name")?,
        user: UserId::new(&claims.sub).map_err(|_| "the token's `sub` is not a usable name")?,
        role,
    };
    Ok(Session { caller, expires_at: (expires * 1_000.0) as UnixMs })
}

/// A caller, for as long as their token holds.
pub struct Session {
    pub caller: Caller,
    pub expires_at: UnixMs,
}

impl FromRequestParts<Shared> for Session {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        let session = authenticate(parts, app).await?;
        if session.caller.role == Role::Worker {
            return Err(Problem::forbidden("a worker's token is for the worker calls only"));
        }
        Ok(session)
    }
}

async fn authenticate(parts: &Parts, app: &Shared) -> Result<Session, Problem> {
    let header = parts.headers.get(axum::http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = header
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim())
        .ok_or_else(|| Problem::unauthorized("send `Authorization: Bearer <token>`"))?;
    app.tokens.verify(token, app.clock.now()).await.map_err(Problem::unauthorized)
}

/// A caller who works on files: of all tenants, and by leases only.
pub struct Hand(pub Caller);

impl FromRequestParts<Shared> for Hand {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        let Session { caller, .. } = authenticate(parts, app).await?;
        match caller.role {
            Role::Worker | Role::Operator => Ok(Hand(caller)),
            Role::User | Role::Admin => Err(Problem::forbidden("this call is for workers and operators")),
        }
    }
}

/// A caller who may use the calls for people; workers have calls of their own.
pub struct Person(pub Caller);

impl FromRequestParts<Shared> for Person {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        Session::from_request_parts(parts, app).await.map(|session| Person(session.caller))
    }
}

/// A caller who looks after others' files: an admin those of its tenant, an operator all.
pub struct Keeper(pub Caller);

impl FromRequestParts<Shared> for Keeper {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        let Person(caller) = Person::from_request_parts(parts, app).await?;
        match caller.role {
            Role::Admin | Role::Operator => Ok(Keeper(caller)),
            Role::User | Role::Worker => Err(Problem::forbidden("this call is for admins and operators")),
        }
    }
}

/// A caller who may see and do what concerns all tenants.
pub struct Operator(pub Caller);

impl FromRequestParts<Shared> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        let Person(caller) = Person::from_request_parts(parts, app).await?;
        match caller.role {
            Role::Operator => Ok(Operator(caller)),
            Role::User | Role::Admin | Role::Worker => Err(Problem::forbidden("this call is for operators")),
        }
    }
}
