//! Checks the webhook and Slack: name resolution and 410 Gone. Sends nothing.

use wharfinger_catalog::{Catalog, Destination};
use wharfinger_engines::webhooks::{Endpoint, check_resolves};

use super::{Finding, bad, good};
use crate::clock::rfc3339;
use crate::config::Settings;
use crate::notify::{disabled_since, enable};

pub(super) async fn check(settings: &Settings, catalog: Option<&Catalog>, findings: &mut Vec<Finding>) {
    let webhook = settings.notify.webhook.as_ref();
    if let Some(webhook) = webhook {
        let secrets = match webhook.secrets.count() {
            1 => "signs with one secret".to_owned(),
            n => format!("signs with {n} secrets"),
        };
        findings.push(match check_resolves(&webhook.endpoint).await {
            Ok(()) => good("webhook", format!("{} resolves, {secrets}", shown(&webhook.endpoint))),
            Err(error) => bad("webhook", format!("WEBHOOK_URL: {error}")),
        });
    }
    if let Some(slack) = &settings.notify.slack {
        findings.push(match check_resolves(slack).await {
            Ok(()) => good("slack", format!("{} resolves", shown(slack))),
            Err(error) => bad("slack", format!("SLACK_WEBHOOK_URL: {error}")),
        });
    }
    let Some(catalog) = catalog else { return };
    if let Some(webhook) = webhook {
        match disabled_since(catalog, &webhook.endpoint).await {
            Ok(None) => {}
            Ok(Some(since)) => findings.push(bad(
                "webhook",
                format!(
                    "disabled: its receiver answered 410 Gone at {}. Change WEBHOOK_URL, or run `wharfinger doctor \
                     --enable-webhook` when the receiver works again",
                    rfc3339(since)
                ),
            )),
            Err(error) => findings.push(bad("webhook", error)),
        }
    }
    for (what, destination, is_there) in [
        ("webhook", Destination::Webhook, webhook.is_some()),
        ("slack", Destination::Slack, settings.notify.slack.is_some()),
        ("archive", Destination::Archive, settings.ingest.archive),
    ] {
        match catalog.outbox_depth(destination).await {
            Ok((waiting, Some(oldest))) if is_there => findings.push(good(
                what,
                format!("{waiting} outbox lines wait, the oldest since {}", rfc3339(oldest)),
            )),
            Ok(_) => {}
            Err(error) => findings.push(bad(what, error)),
        }
    }
}

fn shown(endpoint: &Endpoint) -> String {
    match endpoint.is_encrypted() {
        true => endpoint.host(),
        false => format!(
            "{} (http:// is not encrypted: others in the network can read the messages)",
            endpoint.host()
        ),
    }
}

/// `--enable-webhook`.
pub(super) async fn enable_again(settings: &Settings, catalog: &Catalog) -> Finding {
    match &settings.notify.webhook {
        None => bad("webhook", "WEBHOOK_URL is not set, so there is nothing to enable"),
        Some(webhook) => match enable(catalog, &webhook.endpoint).await {
            Ok(()) => good("webhook", "enabled: new notifications are sent to it"),
            Err(error) => bad("webhook", error),
        },
    }
}
