//! `wharfinger config`: the effective settings and where each came from.

use clap::Args;

use super::Failure;
use super::output::line;
use crate::config::{Flags, SETTINGS, Settings, Values};

#[derive(Args)]
pub(super) struct Arguments {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    let values = Values::read(flags)?;
    // Impossible values are reported here as they would be at the start.
    Settings::from_values(&values)?;
    let rows = SETTINGS.iter().map(|setting| {
        let (value, origin) = values.with_origin(setting.env).unwrap_or(("", "not set"));
        let value = match setting.secret {
            false => value.to_owned(),
            true if setting.env.ends_with("WEBHOOK_URL") => mask_path(value),
            true if setting.env.ends_with("_URL") || value.is_empty() => mask_url(value),
            true => HIDDEN.to_owned(),
        };
        (setting.env, value, origin)
    });
    if arguments.json {
        let object: serde_json::Map<String, serde_json::Value> = rows
            .map(|(name, value, origin)| {
                (name.to_owned(), serde_json::json!({ "value": value, "from": origin }))
            })
            .collect();
        line(format!("{}", serde_json::Value::Object(object)));
    } else {
        for (name, value, origin) in rows {
            line(format!("{name:<28} {value:<32} # {origin}"));
        }
    }
    Ok(())
}

const HIDDEN: &str = "********";

/// Hides the password of a URL, before the host or in the query.
fn mask_url(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else {
        return if value.is_empty() || value.ends_with(':') { value.to_owned() } else { HIDDEN.to_owned() };
    };
    let mut parts = rest.split("password=");
    let mut rest = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let after = part.find('&').map_or("", |end| &part[end..]);
        rest = format!("{rest}password={HIDDEN}{after}");
    }
    match rest.rsplit_once('@') {
        Some((user, host)) => {
            let name = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{name}:{HIDDEN}@{host}")
        }
        None => format!("{scheme}://{rest}"),
    }
}

/// Whoever knows the path of such a URL can use it: only where it leads is shown.
fn mask_path(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else { return mask_url(value) };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}/{HIDDEN}")
}

#[cfg(test)]
mod tests {
    use super::{mask_path, mask_url};

    #[test]
    fn secrets_are_masked() {
        assert_eq!(mask_url("postgres://app:p@ss@db/x"), "postgres://app:********@db/x");
        assert_eq!(mask_url("postgres://db/x"), "postgres://db/x");
        assert_eq!(mask_url("postgres://db/x?password=p@ss&a=b"), "postgres://db/x?password=********&a=b");
        assert_eq!(mask_url("0123456789"), "********");
        assert_eq!(mask_url("sqlite:"), "sqlite:");
        assert_eq!(mask_url(""), "");
        assert_eq!(mask_path("https://hooks.slack.com/services/T/B/x"), "https://hooks.slack.com/********");
        assert_eq!(mask_path("https://u:p@hooks.example?token=x"), "https://hooks.example/********");
        assert_eq!(mask_path(""), "");
    }
}
