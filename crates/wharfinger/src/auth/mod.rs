//! Bearer tokens: HS256 with the server's secret, RS256 and ES256 with the keys of a JWKS, and service keys. The key decides
//! which algorithm is accepted, not the token's header.

mod claims;
mod jwks;
mod service_keys;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode};
use serde_json::Value;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::stage::Stage;

use crate::config::{BadSetting, Secrets, Settings};
use crate::core::{Caller, Role};
use claims::{ClaimRules, Claims, kind};
pub use jwks::{Jwks, Source};

pub use service_keys::{KEY_PREFIX, KeyError, KeyRequest, NewKey, ServiceKeys, key_id_of};

const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// Why a token is not accepted. The text is for the client: it contains no value of the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl From<&str> for Refused {
    fn from(reason: &str) -> Self {
        Refused(reason.to_owned())
    }
}

/// Why the server cannot sign a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    #[error("this server has no WHARFINGER_JWT_SECRET and cannot sign tokens. Get a token from your issuer")]
    NoSecret,
    #[error("WHARFINGER_JWT_ROLE_MAP leaves no word for the role `{}`", .0.as_str())]
    RoleWithoutWord(Role),
    #[error("the settings read two different things from the claim `{0}`, so no token can have both")]
    SameClaim(String),
    #[error("the token cannot be signed: {0}")]
    Failed(String),
}

/// A caller, until the token expires.
#[derive(Clone, Debug)]
pub struct Session {
    pub caller: Caller,
    pub expires_at: UnixMs,
    pub lease_scope: LeaseScope,
    /// The id of its service key. It may be revoked at any time.
    pub service_key: Option<String>,
}

/// The limits in a worker's token.
#[derive(Clone, Debug, Default)]
pub struct LeaseScope {
    /// None: all stages.
    pub stages: Option<Vec<Stage>>,
    /// None: all tenants.
    pub tenants: Option<Vec<TenantId>>,
}

pub struct TokenKeys {
    secret: Option<(EncodingKey, DecodingKey)>,
    jwks: Option<Jwks>,
    issuer: Option<String>,
    audience: Option<String>,
    rules: ClaimRules,
}

impl TokenKeys {
    pub fn load(settings: &Settings, secrets: &Secrets) -> Result<TokenKeys, BadSetting> {
        let file = settings.jwks_file.clone().map(Source::File);
        let source = file.or_else(|| settings.jwks_url.clone().map(Source::Url));
        let jwks = source.map(Jwks::open).transpose();
        let pair = |secret: &Vec<u8>| (EncodingKey::from_secret(secret), DecodingKey::from_secret(secret));
        Ok(TokenKeys {
            secret: secrets.jwt_secret.as_ref().map(pair),
            jwks: jwks.map_err(|problem| BadSetting { name: "WHARFINGER_JWKS_FILE".into(), problem })?,
            issuer: settings.jwt_issuer.clone(),
            audience: settings.jwt_audience.clone(),
            rules: ClaimRules::new(settings.token_claims.clone())?,
        })
    }

    /// A token signed with the server's secret.
    pub fn mint(&self, caller: &Caller, expires_at: UnixMs) -> Result<String, SignError> {
        self.mint_scoped(caller, &LeaseScope::default(), expires_at)
    }

    /// The same for a worker with limits.
    pub fn mint_scoped(
        &self,
        caller: &Caller,
        scope: &LeaseScope,
        expires_at: UnixMs,
    ) -> Result<String, SignError> {
        let (signing, _) = self.secret.as_ref().ok_or(SignError::NoSecret)?;
        let mut claims = self.rules.of_caller(caller)?;
        let stages = scope.stages.as_ref().map(|stages| stages.iter().map(|stage| stage.as_str()).collect());
        let tenants = scope.tenants.as_ref().map(|names| names.iter().map(TenantId::as_str).collect());
        for (name, value) in [
            ("exp", Some(Value::from(expires_at / 1_000))),
            ("stages", stages.map(|words: Vec<&str>| words.into())),
            ("tenants", tenants.map(|names: Vec<&str>| names.into())),
            ("iss", self.issuer.clone().map(Value::from)),
            ("aud", self.audience.clone().map(Value::from)),
        ] {
            let Some(value) = value else { continue };
            match claims.insert(name.to_owned(), value.clone()) {
                Some(other) if other != value => return Err(SignError::SameClaim(name.to_owned())),
                _ => {}
            }
        }
        let signed = encode(&Header::new(Algorithm::HS256), &claims, signing);
        signed.map_err(|error| SignError::Failed(error.to_string()))
    }

    /// Reads the issuer's keys if they are old.
    pub async fn refresh(&self, now: UnixMs) {
        if let Some(jwks) = &self.jwks {
            jwks.refresh_old(now).await;
        }
    }

    pub async fn verify(&self, token: &str, now: UnixMs) -> Result<Session, Refused> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err("the token is too long".into());
        }
        let header = decode_header(token).map_err(|_| "the token cannot be read")?;
        if has_critical_extensions(token) {
            return Err("the token needs an extension that is not supported (`crit`)".into());
        }
        let claims = match header.alg {
            Algorithm::HS256 => {
                let (_, key) = self.secret.as_ref().ok_or("the token's algorithm is not accepted")?;
                self.decode(token, key, Algorithm::HS256)?
            }
            Algorithm::RS256 | Algorithm::ES256 => self.by_jwks(token, &header, now).await?,
            _ => return Err("the token's algorithm is not accepted".into()),
        };
        self.session(&claims, now)
    }

    async fn by_jwks(&self, token: &str, header: &Header, now: UnixMs) -> Result<Claims, Refused> {
        let jwks = self.jwks.as_ref().ok_or("the token's algorithm is not accepted")?;
        jwks.refresh_old(now).await;
        let find = || jwks.find(header.alg, header.kid.as_deref(), |key| self.decode(token, key, header.alg));
        if let Some(Ok(claims)) = find() {
            return Ok(claims);
        }
        // The issuer may have new keys.
        jwks.refresh_unknown(now).await;
        find().unwrap_or_else(|| Err("the token is signed with an unknown key".into()))
    }

    /// The claims of a token with a valid signature, for us and from our issuer.
    fn decode(&self, token: &str, key: &DecodingKey, algorithm: Algorithm) -> Result<Claims, Refused> {
        let mut validation = Validation::new(algorithm);
        // `session` compares the times with our clock.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = self.audience.is_some();
        let mut required = Vec::new();
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
                ErrorKind::InvalidSignature => "the token's signature is wrong".into(),
                ErrorKind::InvalidIssuer => {
                    "the token is from another issuer: its claim `iss` is not WHARFINGER_JWT_ISSUER".into()
                }
                ErrorKind::InvalidAudience => {
                    "the token is for another audience: its claim `aud` does not have WHARFINGER_JWT_AUDIENCE"
                        .into()
                }
                ErrorKind::MissingRequiredClaim(name) => Refused(format!(
                    "the token has no claim `{name}`, or not a text, and the settings require it"
                )),
                ErrorKind::Json(_) => "the token's claims are not a JSON object".into(),
                _ => "the token cannot be read".into(),
            }
        })
    }

    fn session(&self, claims: &Claims, now: UnixMs) -> Result<Session, Refused> {
        let now_seconds = now as f64 / 1_000.0;
        let expires = time(claims, "exp")?.ok_or("the token has no claim `exp`. Tokens must expire")?;
        if expires <= now_seconds {
            return Err("the token has expired".into());
        }
        if time(claims, "nbf")?.is_some_and(|begins| begins > now_seconds + 60.0) {
            return Err("the token is not valid yet".into());
        }
        let caller = self.rules.caller(claims)?;
        // Other issuers use these names for other things.
        let lease_scope = match caller.role {
            Role::Worker | Role::Operator => lease_scope(claims)?,
            Role::User | Role::Admin | Role::Ingest | Role::Metrics => LeaseScope::default(),
        };
        Ok(Session { caller, expires_at: (expires * 1_000.0) as UnixMs, lease_scope, service_key: None })
    }
}

/// A claim in seconds since 1970. Null counts as absent.
fn time(claims: &Claims, name: &str) -> Result<Option<f64>, Refused> {
    match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => Ok(number.as_f64().filter(|seconds| seconds.is_finite())),
        Some(other) => Err(Refused(format!(
            "the claim `{name}` must be a number of seconds, the token has {}",
            kind(other)
        ))),
    }
}

fn lease_scope(claims: &Claims) -> Result<LeaseScope, Refused> {
    let words = |name: &str| -> Result<Option<Vec<&str>>, Refused> {
        let wrong = || Refused(format!("the claim `{name}` must be a list of texts"));
        match claims.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(list)) => {
                list.iter().map(|item| item.as_str().ok_or_else(wrong)).collect::<Result<_, _>>().map(Some)
            }
            Some(_) => Err(wrong()),
        }
    };
    let stages = words("stages")?.map(|words| words.into_iter().map(Stage::parse).collect());
    let stages: Option<Option<Vec<Stage>>> = stages;
    let tenants = words("tenants")?.map(|names| names.into_iter().map(TenantId::new).collect());
    let tenants: Option<Result<Vec<TenantId>, _>> = tenants;
    Ok(LeaseScope {
        stages: stages.map(|all| all.ok_or("the token's `stages` has an unknown stage")).transpose()?,
        tenants: tenants.transpose().map_err(|_| "the token's `tenants` has an invalid name")?,
    })
}

/// Extensions that a verifier must support (RFC 7515, 4.1.11). This one supports none.
fn has_critical_extensions(token: &str) -> bool {
    let header = token.split('.').next().unwrap_or_default();
    let bytes = URL_SAFE_NO_PAD.decode(header).unwrap_or_default();
    let header: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    header.get("crit").is_some()
}
