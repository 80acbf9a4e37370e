//! `wharfinger token`: mints a token with the server's key.

use clap::Args;
use wharfinger_lifecycle::id::{TenantId, UserId};
use wharfinger_lifecycle::stage::Stage;

use super::Failure;
use super::output::line;
use crate::auth::{LeaseScope, TokenKeys};
use crate::clock::{Clock, rfc3339};
use crate::config::parse_duration_ms;
use crate::config::{Flags, Settings, prepare_secrets};
use crate::core::{Caller, Role};

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
    /// Of a worker: the only stages it may lease, separated by commas
    #[arg(long, value_delimiter = ',')]
    stages: Option<Vec<String>>,
    /// Of a worker: the only tenants whose files it may lease, separated by commas
    #[arg(long, value_delimiter = ',')]
    tenants: Option<Vec<String>>,
    /// {token, expiresAt}
    #[arg(long)]
    json: bool,
}

pub(super) fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    let settings = Settings::load(flags)?;
    let caller = caller(&arguments.tenant, &arguments.user, &arguments.role)?;
    let expires_at = Clock::system().now().saturating_add(arguments.expires);
    let scope = scope(&arguments)?;
    let token = mint_scoped(&settings, &caller, &scope, expires_at)?;
    if arguments.json {
        line(format!("{}", serde_json::json!({ "token": token, "expiresAt": rfc3339(expires_at) })));
    } else {
        line(token);
    }
    Ok(())
}

/// The command that mints a token for the server with these settings.
pub(super) fn command(settings: &Settings) -> String {
    let command = "wharfinger token --tenant default --user local --role operator --expires 12h";
    match &settings.jwt_secret {
        Some(_) => command.to_owned(),
        None => {
            let folder =
                std::path::absolute(&settings.data_dir).unwrap_or_else(|_| settings.data_dir.clone());
            format!("WHARFINGER_DATA_DIR='{}' {command}", folder.display())
        }
    }
}

pub(super) fn caller(tenant: &str, user: &str, role: &str) -> Result<Caller, Failure> {
    Ok(Caller {
        tenant: TenantId::new(tenant).map_err(|bad| Failure::Usage(format!("--tenant {bad}")))?,
        user: UserId::new(user).map_err(|bad| Failure::Usage(format!("--user {bad}")))?,
        role: Role::parse(role).ok_or_else(|| Failure::Usage("--role is not known".into()))?,
    })
}

fn scope(arguments: &Arguments) -> Result<LeaseScope, Failure> {
    if arguments.role != "worker" && (arguments.stages.is_some() || arguments.tenants.is_some()) {
        return Err(Failure::Usage("--stages and --tenants go with --role worker".into()));
    }
    let stage = |word: &String| {
        Stage::parse(word).ok_or_else(|| Failure::Usage(format!("--stages: `{word}` is not a stage")))
    };
    let tenant =
        |name: &String| TenantId::new(name).map_err(|bad| Failure::Usage(format!("--tenants {bad}")));
    Ok(LeaseScope {
        stages: arguments.stages.as_ref().map(|words| words.iter().map(stage).collect()).transpose()?,
        tenants: arguments.tenants.as_ref().map(|names| names.iter().map(tenant).collect()).transpose()?,
    })
}

pub(super) fn mint(settings: &Settings, caller: &Caller, expires_at: i64) -> Result<String, Failure> {
    mint_scoped(settings, caller, &LeaseScope::default(), expires_at)
}

fn mint_scoped(
    settings: &Settings,
    caller: &Caller,
    scope: &LeaseScope,
    expires_at: i64,
) -> Result<String, Failure> {
    let secrets = prepare_secrets(settings)?;
    TokenKeys::load(settings, &secrets)?.mint_scoped(caller, scope, expires_at).ok_or_else(|| {
        Failure::Failed(
            "this server has no secret of its own (WHARFINGER_JWT_SECRET): ask your issuer".into(),
        )
    })
}
