//! The settings of `/hooks/object-created`: the messages of object stores about new objects.

use wharfinger_engines::object_events::SnsHosts;

use super::BadSetting;
use super::layers::Values;

#[derive(Clone)]
pub struct HookSettings {
    /// None: the call is off, unless Pub/Sub sends tokens of its own.
    pub secret: Option<String>,
    pub sns_hosts: SnsHosts,
    pub pub_sub: Option<PubSubSettings>,
}

/// Never shows the secret.
impl std::fmt::Debug for HookSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HookSettings")
            .field("has_secret", &self.secret.is_some())
            .field("sns_hosts", &self.sns_hosts)
            .field("pub_sub", &self.pub_sub)
            .finish()
    }
}

/// Tokens that Google signs for a push subscription with authentication.
#[derive(Clone, Debug)]
pub struct PubSubSettings {
    pub audience: String,
    /// The e-mail address of the service account in the tokens.
    pub service_account: String,
    pub keys_url: String,
}

const SECRET: &str = "WHARFINGER_HOOK_SECRET";
const SECRET_BYTES_MIN: usize = 16;
const SNS_ENDPOINT: &str = "HOOK_SNS_ENDPOINT";
const AUDIENCE: &str = "HOOK_PUBSUB_AUDIENCE";
const SERVICE_ACCOUNT: &str = "HOOK_PUBSUB_SERVICE_ACCOUNT";
const KEYS_URL: &str = "HOOK_PUBSUB_KEYS_URL";

impl HookSettings {
    pub(super) fn from_values(values: &Values) -> Result<HookSettings, BadSetting> {
        let secret = values.get(SECRET);
        if secret.as_ref().is_some_and(|secret| secret.len() < SECRET_BYTES_MIN) {
            let problem = format!(
                "must be at least {SECRET_BYTES_MIN} bytes long, for example from `openssl rand -hex 32`"
            );
            return Err(BadSetting::new(SECRET, problem));
        }
        let sns_hosts = match values.get(SNS_ENDPOINT) {
            None => SnsHosts::Aws,
            Some(url) => SnsHosts::Endpoint(http_url(SNS_ENDPOINT, url)?),
        };
        let pub_sub = match (values.get(AUDIENCE), values.get(SERVICE_ACCOUNT)) {
            (None, None) => None,
            (Some(audience), Some(service_account)) => {
                let keys_url = http_url(KEYS_URL, values.text(KEYS_URL)?)?;
                Some(PubSubSettings { audience, service_account, keys_url })
            }
            (Some(_), None) => {
                let problem = "must be set together with HOOK_PUBSUB_AUDIENCE: any Google account can get a token \
                               for an audience";
                return Err(BadSetting::new(SERVICE_ACCOUNT, problem));
            }
            (None, Some(_)) => {
                return Err(BadSetting::new(
                    AUDIENCE,
                    "must be set together with HOOK_PUBSUB_SERVICE_ACCOUNT",
                ));
            }
        };
        Ok(HookSettings { secret, sns_hosts, pub_sub })
    }

    pub fn is_on(&self) -> bool {
        self.secret.is_some() || self.pub_sub.is_some()
    }
}

fn http_url(name: &'static str, url: String) -> Result<String, BadSetting> {
    match url.starts_with("https://") || url.starts_with("http://") {
        true => Ok(url),
        false => Err(BadSetting::new(name, "must start with https:// or http://")),
    }
}
