//! The settings of notifications: a webhook, and Slack.

use wharfinger_engines::webhooks::{Endpoint, Secrets};

use super::layers::Values;
use super::{BadSetting, boolean};

#[derive(Clone, Debug)]
pub struct NotifySettings {
    pub webhook: Option<WebhookSettings>,
    pub slack: Option<Endpoint>,
}

#[derive(Clone, Debug)]
pub struct WebhookSettings {
    pub endpoint: Endpoint,
    pub secrets: Secrets,
}

impl NotifySettings {
    pub(super) fn from_values(values: &Values) -> Result<NotifySettings, BadSetting> {
        let allow_private = boolean("WEBHOOK_ALLOW_PRIVATE", values)?;
        let endpoint = |name: &'static str| {
            let given = values.get(name).map(|url| Endpoint::new(&url, allow_private));
            given.transpose().map_err(|error| BadSetting::new(name, error.to_string()))
        };
        Ok(NotifySettings {
            webhook: match endpoint("WEBHOOK_URL")? {
                Some(endpoint) => Some(WebhookSettings { endpoint, secrets: secrets(values)? }),
                None => None,
            },
            slack: endpoint("SLACK_WEBHOOK_URL")?,
        })
    }
}

fn secrets(values: &Values) -> Result<Secrets, BadSetting> {
    const NAME: &str = "WEBHOOK_SECRET";
    let Some(text) = values.get(NAME) else {
        let problem = "must be set if WEBHOOK_URL is set: receivers verify messages with it. \
                       Create one with `echo whsec_$(openssl rand -base64 32)`";
        return Err(BadSetting::new(NAME, problem));
    };
    text.parse()
        .map_err(|error: wharfinger_engines::webhooks::SecretError| BadSetting::new(NAME, error.to_string()))
}
