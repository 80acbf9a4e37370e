//! `wharfinger token`: mints a token with the server's key.

use clap::Args;
use wharfinger_lifecycle::id::{TenantId, UserId};

use super::Failure;
use super::output::line;
use crate::clock::{Clock, rfc3339};
use crate::config::parse_duration_ms;
use crate::config::{Flags, Settings, prepare_secrets};
use crate::http::auth::TokenKeys;
use crate::uploads::{Caller, Role};

#[derive(Args)]
pub(super) struct Arguments {
    /// Whose quota and files
    #[arg(long)]
    tenant: String,
    /// Whose files within the tenant
    #[arg(long)]
    user: String,
    #[arg(long, default_value = "user", value_parser = ["user", "admin", "operator", "worker"])]
    role: String,
    /// How long it lives: 90s, 30m, 1h, 7d
    #[arg(long, default_value = "1h", value_parser = parse_duration_ms)]
    expires: i64,
    /// {token, expiresAt}
    #[arg(long)]
    json: bool,
}

pub(super) fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    let settings = Settings::load(flags)?;
    let caller = caller(&arguments.tenant, &arguments.user, &arguments.role)?;
    let expires_at = Clock::system().now().saturating_add(arguments.expires);
    let token = mint(&settings, &caller, expires_at)?;
    if arguments.json {
        line(format!("{}", serde_json::json!({ "token": token, "expiresAt": rfc3339(expires_at) })));
    } else {
        line(token);
    }
    Ok(())
}

pub(super) fn caller(tenant: &str, user: &str, role: &str) -> Result<Caller, Failure> {
    Ok(Caller {
        tenant: TenantId::new(tenant).map_err(|bad| Failure::Usage(format!("--tenant {bad}")))?,
        user: UserId::new(user).map_err(|bad| Failure::Usage(format!("--user {bad}")))?,
        role: Role::parse(role).ok_or_else(|| Failure::Usage("--role is not known".into()))?,
    })
}

pub(super) fn mint(settings: &Settings, caller: &Caller, expires_at: i64) -> Result<String, Failure> {
    let secrets = prepare_secrets(settings)?;
    TokenKeys::load(settings, &secrets)?.mint(caller, expires_at).ok_or_else(|| {
        Failure::Failed(
            "this server has no secret of its own (WHARFINGER_JWT_SECRET): ask your issuer".into(),
        )
    })
}
