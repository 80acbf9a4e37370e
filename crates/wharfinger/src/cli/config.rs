//! `wharfinger config`: prints the effective settings and where each one was set.

use clap::Args;

use super::Failure;
use super::output::line;
use crate::config::{Flags, HIDDEN, SETTINGS, Settings, Values, mask_path, mask_url};

#[derive(Args)]
pub(super) struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    let values = Values::read(flags)?;
    // Reports invalid values, as `serve` does.
    Settings::from_values(&values)?;
    let rows = SETTINGS.iter().map(|setting| {
        let (value, origin) = values.with_origin(setting).unwrap_or_else(|| (String::new(), "not set"));
        let value = match setting.secret {
            // A URL may contain a password although the setting is not marked as a secret.
            false if value.contains("://") => mask_url(&value),
            false => value,
            true if setting.env.ends_with("WEBHOOK_URL") => mask_path(&value),
            true if setting.env.ends_with("_URL") || value.is_empty() => mask_url(&value),
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
