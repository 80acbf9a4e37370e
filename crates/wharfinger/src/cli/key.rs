//! `wharfinger key`: creates, lists and revokes service keys, directly in the catalog.

use clap::{Args, Subcommand};
use serde_json::json;
use wharfinger_catalog::{Catalog, SERVICE_KEYS_MAX, ServiceKey};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::{TenantId, UserId};

use super::output::line;
use super::{Failure, catalog_failed, migrated_catalog};
use crate::auth::{KeyRequest, NewKey, key_id_of};
use crate::clock::{Clock, rfc3339};
use crate::config::{Flags, Settings, parse_duration_ms};
use crate::core::Role;
use crate::core::audit::AuditedAction;
use crate::http::KeyView;

const NAME_CHARS_MAX: usize = 100;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Create a key and print it. It is shown only once
    Create(Create),
    /// List all keys, newest first, with their last use
    List,
    /// Revoke a key. Every process refuses it within a minute
    Revoke {
        /// The key's id, as `key list` shows it
        id: String,
    },
}

#[derive(Args)]
struct Create {
    /// What the key may do. `ingest` may only send events, `metrics` may only read /metrics
    #[arg(long, value_parser = ["user", "admin", "operator", "worker", "ingest", "metrics"])]
    role: String,
    /// The tenant. Needed for user, admin and ingest. A worker leases only files of this tenant [default: of all tenants]
    #[arg(long)]
    tenant: Option<String>,
    /// The user within the tenant. Needed for user [default: key-ID]
    #[arg(long)]
    user: Option<String>,
    /// How long the key is valid: 12h, 90d [default: until it is revoked]
    #[arg(long, value_parser = parse_duration_ms)]
    expires: Option<i64>,
    /// What the key is for, shown in lists
    #[arg(long)]
    name: Option<String>,
}

pub(super) async fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    let settings = Settings::load(flags)?;
    let json = arguments.json;
    match arguments.action {
        Action::Create(create) => {
            // Wrong usage is reported before the database is opened.
            let new = new_key(create, Clock::system().now())?;
            let (catalog, _) = migrated_catalog(&settings).await?;
            store(&catalog, new, json).await?;
            catalog.close().await;
        }
        Action::List => {
            let (catalog, _) = migrated_catalog(&settings).await?;
            let keys = catalog.service_keys(None, SERVICE_KEYS_MAX).await.map_err(catalog_failed)?;
            list(keys.into_iter().map(KeyView::from).collect(), json);
            catalog.close().await;
        }
        Action::Revoke { id } => {
            let (catalog, _) = migrated_catalog(&settings).await?;
            revoke(&catalog, key_id_of(&id), json).await?;
            catalog.close().await;
        }
    }
    Ok(())
}

fn new_key(create: Create, now: UnixMs) -> Result<NewKey, Failure> {
    let Create { role, tenant, user, expires, name } = create;
    let usage =
        |option: &str, problem: &dyn std::fmt::Display| Failure::Usage(format!("--{option} {problem}"));
    if let Some(name) = &name
        && (name.chars().count() > NAME_CHARS_MAX || name.chars().any(char::is_control) || name.is_empty())
    {
        let problem = format!("must have 1 to {NAME_CHARS_MAX} characters, and no control characters");
        return Err(usage("name", &problem));
    }
    let request = KeyRequest {
        role: Role::parse(&role).ok_or_else(|| usage("role", &format!("`{role}` is not a role")))?,
        tenant: tenant.map(|name| TenantId::new(&name)).transpose().map_err(|bad| usage("tenant", &bad))?,
        user: user.map(|name| UserId::new(&name)).transpose().map_err(|bad| usage("user", &bad))?,
        name,
        expires_at: expires.map(|ms| now.saturating_add(ms)),
    };
    NewKey::create(request, now).map_err(|wrong| usage(wrong.field, &wrong.problem))
}

/// The entry of the audit log. It has no secret.
fn key_action(name: &'static str, key: &ServiceKey) -> AuditedAction<'static> {
    AuditedAction {
        name,
        tenant: None,
        subject: key.id.clone(),
        detail: json!({ "name": key.name, "role": key.role, "tenant": key.tenant, "user": key.user }),
    }
}

async fn store(catalog: &Catalog, new: NewKey, as_json: bool) -> Result<(), Failure> {
    let view = KeyView::from(new.row.clone());
    let audited = catalog.audited(key_action("key-created", &new.row).by_command(new.row.created_at));
    if !audited.create_service_key(new.row).await.map_err(catalog_failed)? {
        return Err(Failure::Failed(format!(
            "there are {SERVICE_KEYS_MAX} keys already. Revoke some; they are removed 90 days later"
        )));
    }
    if as_json {
        let mut object = object(&view);
        object.insert("key".into(), new.token.into());
        line(serde_json::Value::Object(object).to_string());
        return Ok(());
    }
    line(new.token);
    let end = match &view.expires_at {
        Some(at) => format!("It expires at {at}."),
        None => "It does not expire.".to_owned(),
    };
    // Standard output has only the key, so that a script can store it.
    eprintln!(
        "Key {} with role {}. {end} It is shown only now: store it in a safe place.",
        view.key_id, view.role
    );
    Ok(())
}

fn object(view: &KeyView) -> serde_json::Map<String, serde_json::Value> {
    match serde_json::to_value(view) {
        Ok(serde_json::Value::Object(object)) => object,
        _ => serde_json::Map::new(),
    }
}

fn list(keys: Vec<KeyView>, json: bool) {
    if json {
        line(serde_json::json!({ "keys": keys }).to_string());
        return;
    }
    if keys.is_empty() {
        line("There are no service keys. `wharfinger key create` creates one.");
        return;
    }
    let now = rfc3339(Clock::system().now());
    let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let minute = |time: &Option<String>| time.as_ref().map(|time| time.chars().take(16).collect());
    let head = ["ID", "NAME", "ROLE", "TENANT", "USER", "CREATED", "LAST USE", "EXPIRES", "STATE"];
    let mut rows = vec![head.map(str::to_owned)];
    for key in &keys {
        let state = match (&key.revoked_at, &key.expires_at) {
            (Some(_), _) => "revoked",
            // Times in this form are ordered like their texts.
            (None, Some(end)) if *end <= now => "expired",
            _ => "valid",
        };
        rows.push([
            key.key_id.clone(),
            dash(&key.name),
            key.role.clone(),
            dash(&key.tenant),
            dash(&key.user),
            dash(&minute(&Some(key.created_at.clone()))),
            dash(&minute(&key.last_used_at)),
            dash(&minute(&key.expires_at)),
            state.to_owned(),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        line(cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

async fn revoke(catalog: &Catalog, id: &str, json: bool) -> Result<(), Failure> {
    let now = Clock::system().now();
    let known = catalog.service_key(id).await.map_err(catalog_failed)?;
    let audited = match &known {
        Some(key) => catalog.audited(key_action("key-revoked", key).by_command(now)),
        None => catalog.clone(),
    };
    let revoked = audited.revoke_service_key(id, now).await.map_err(catalog_failed)?;
    let Some(key) = revoked else {
        let problem = format!("there is no key `{id}`. `wharfinger key list` shows all ids");
        return Err(Failure::Failed(problem));
    };
    let view = KeyView::from(key);
    if json {
        line(serde_json::Value::Object(object(&view)).to_string());
    } else {
        line(format!("Key {} is revoked. Every process refuses it within a minute.", view.key_id));
    }
    Ok(())
}
