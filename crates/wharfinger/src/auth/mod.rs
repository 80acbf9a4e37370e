//! Bearer tokens: HS256 with the server's secret, RS256 and ES256 with the keys of a JWKS. The key decides which algorithm
//! is accepted, not the token's header.

mod jwks;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode};
use serde::{Deserialize, Serialize};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::{TenantId, UserId};
use wharfinger_lifecycle::stage::Stage;

use crate::config::{BadSetting, Secrets, Settings};
use crate::core::{Caller, Role};
use jwks::{Jwks, Source};

const TOKEN_BYTES_MAX: usize = 8 * 1024;

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    sub: String,
    tenant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    exp: serde_json::Number,
    /// For workers: the stages that they may lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stages: Option<Vec<String>>,
    /// For workers: the tenants whose files they may lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenants: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<serde_json::Number>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iss: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    aud: Option<serde_json::Value>,
}

/// A caller, until the token expires.
#[derive(Clone, Debug)]
pub struct Session {
    pub caller: Caller,
    pub expires_at: UnixMs,
    pub lease_scope: LeaseScope,
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
        })
    }

    /// A token signed with the server's secret. None if it has only a JWKS.
    pub fn mint(&self, caller: &Caller, expires_at: UnixMs) -> Option<String> {
        self.mint_scoped(caller, &LeaseScope::default(), expires_at)
    }

    /// The same for a worker with limits.
    pub fn mint_scoped(&self, caller: &Caller, scope: &LeaseScope, expires_at: UnixMs) -> Option<String> {
        let (signing, _) = self.secret.as_ref()?;
        let words = |stages: &Vec<Stage>| stages.iter().map(|stage| stage.as_str().to_owned()).collect();
        let names = |tenants: &Vec<TenantId>| tenants.iter().map(TenantId::to_string).collect();
        let claims = Claims {
            sub: caller.user.to_string(),
            tenant: caller.tenant.to_string(),
            role: Some(caller.role.as_str().to_owned()),
            exp: (expires_at / 1_000).into(),
            stages: scope.stages.as_ref().map(words),
            tenants: scope.tenants.as_ref().map(names),
            nbf: None,
            iss: self.issuer.clone(),
            aud: self.audience.clone().map(serde_json::Value::String),
        };
        encode(&Header::new(Algorithm::HS256), &claims, signing).ok()
    }

    /// Reads the issuer's keys if they are old.
    pub async fn refresh(&self, now: UnixMs) {
        if let Some(jwks) = &self.jwks {
            jwks.refresh_old(now).await;
        }
    }

    pub async fn verify(&self, token: &str, now: UnixMs) -> Result<Session, &'static str> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err("the token is too long");
        }
        let header = decode_header(token).map_err(|_| "the token cannot be read")?;
        if has_critical_extensions(token) {
            return Err("the token needs an extension that is not supported (`crit`)");
        }
        let claims = match header.alg {
            Algorithm::HS256 => {
                let (_, key) = self.secret.as_ref().ok_or("the token's algorithm is not accepted")?;
                self.decode(token, key, Algorithm::HS256)?
            }
            Algorithm::RS256 | Algorithm::ES256 => self.by_jwks(token, &header, now).await?,
            _ => return Err("the token's algorithm is not accepted"),
        };
        session(claims, now)
    }

    async fn by_jwks(&self, token: &str, header: &Header, now: UnixMs) -> Result<Claims, &'static str> {
        let jwks = self.jwks.as_ref().ok_or("the token's algorithm is not accepted")?;
        jwks.refresh_old(now).await;
        let find = || jwks.find(header.alg, header.kid.as_deref(), |key| self.decode(token, key, header.alg));
        if let Some(Ok(claims)) = find() {
            return Ok(claims);
        }
        // The issuer may have new keys.
        jwks.refresh_unknown(now).await;
        find().unwrap_or(Err("the token is signed with an unknown key"))
    }

    fn decode(&self, token: &str, key: &DecodingKey, algorithm: Algorithm) -> Result<Claims, &'static str> {
        let mut validation = Validation::new(algorithm);
        // `session` compares the times with our clock.
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
                    "a claim is missing in the token: `sub`, `tenant` and `exp` are required"
                }
                _ => "the token cannot be read",
            }
        })
    }
}

/// Extensions that a verifier must support (RFC 7515, 4.1.11). This one supports none.
fn has_critical_extensions(token: &str) -> bool {
    let header = token.split('.').next().unwrap_or_default();
    let bytes = URL_SAFE_NO_PAD.decode(header).unwrap_or_default();
    let header: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    header.get("crit").is_some()
}

fn session(claims: Claims, now: UnixMs) -> Result<Session, &'static str> {
    let seconds = |number: &serde_json::Number| number.as_f64().filter(|s| s.is_finite());
    let now_seconds = now as f64 / 1_000.0;
    let expires = seconds(&claims.exp).ok_or("the token's `exp` is not a time")?;
    if expires <= now_seconds {
        return Err("the token has expired");
    }
    if let Some(nbf) = &claims.nbf
        && seconds(nbf).ok_or("the token's `nbf` is not a time")? > now_seconds + 60.0
    {
        return Err("the token is not valid yet");
    }
    let role = match claims.role.as_deref() {
        None => Role::User,
        Some(word) => Role::parse(word).ok_or("the token's `role` is unknown")?,
    };
    let caller = Caller {
        tenant: TenantId::new(&claims.tenant).map_err(|_| "the token's `tenant` is not a valid name")?,
        user: UserId::new(&claims.sub).map_err(|_| "the token's `sub` is not a valid name")?,
        role,
    };
    let stages = claims.stages.map(|words| words.iter().map(|word| Stage::parse(word)).collect());
    let stages: Option<Option<Vec<Stage>>> = stages;
    let tenants = claims.tenants.map(|names| names.iter().map(|name| TenantId::new(name)).collect());
    let tenants: Option<Result<Vec<TenantId>, _>> = tenants;
    let lease_scope = LeaseScope {
        stages: stages.map(|all| all.ok_or("the token's `stages` has an unknown stage")).transpose()?,
        tenants: tenants.transpose().map_err(|_| "the token's `tenants` has an invalid name")?,
    };
    Ok(Session { caller, expires_at: (expires * 1_000.0) as UnixMs, lease_scope })
}
