//! The tokens that Google signs for each push of a Pub/Sub subscription with authentication.

use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use serde::Deserialize;
use wharfinger_lifecycle::UnixMs;

use crate::auth::{Jwks, Source};
use crate::config::{BadSetting, PubSubSettings};

const ISSUERS: [&str; 2] = ["https://accounts.google.com", "accounts.google.com"];

pub struct PubSubTokens {
    keys: Jwks,
    audience: String,
    service_account: String,
}

#[derive(Deserialize)]
struct Claims {
    email: String,
    email_verified: bool,
}

impl PubSubTokens {
    pub(super) fn open(settings: &PubSubSettings) -> Result<PubSubTokens, BadSetting> {
        Ok(PubSubTokens {
            keys: Jwks::open(Source::Url(settings.keys_url.clone()))
                .map_err(|problem| BadSetting { name: "HOOK_PUBSUB_KEYS_URL".into(), problem })?,
            audience: settings.audience.clone(),
            service_account: settings.service_account.clone(),
        })
    }

    /// Whether Google signed this token for our audience and service account, and it has not expired.
    pub async fn accept(&self, token: &str, now: UnixMs) -> bool {
        let Ok(header) = decode_header(token) else { return false };
        if header.alg != Algorithm::RS256 {
            return false;
        }
        self.keys.refresh_old(now).await;
        let mut validation = Validation::new(Algorithm::RS256);
        validation.set_audience(&[&self.audience]);
        validation.set_issuer(&ISSUERS);
        validation.set_required_spec_claims(&["exp", "aud", "iss"]);
        // The expiry is compared with the program's clock below.
        validation.validate_exp = false;
        let find = || {
            self.keys.find(Algorithm::RS256, header.kid.as_deref(), |key| {
                decode::<Verified>(token, key, &validation)
            })
        };
        let mut found = find();
        if found.is_none() {
            self.keys.refresh_unknown(now).await;
            found = find();
        }
        let Some(Ok(token)) = found else { return false };
        let Verified { exp, claims } = token.claims;
        let is_current = exp.saturating_mul(1_000) > now;
        is_current && claims.email_verified && claims.email == self.service_account
    }
}

#[derive(Deserialize)]
struct Verified {
    exp: i64,
    #[serde(flatten)]
    claims: Claims,
}
