//! `wharfinger token`: prints an access token, signed with the server's key.

use clap::Args;
use wharfinger_lifecycle::id::{TenantId, UserId};
use wharfinger_lifecycle::stage::Stage;

use super::output::line;
use super::{Failure, failed};
use crate::auth::{LeaseScope, TokenKeys};
use crate::clock::{Clock, rfc3339};
use crate::config::parse_duration_ms;
use crate::config::{Flags, Settings, prepare_secrets};
use crate::core::{Caller, Role};

#[derive(Args)]
pub(super) struct Arguments {
    /// The tenant whose quota and files the token is for
    #[arg(long)]
    tenant: String,
    /// The user within the tenant
    #[arg(long)]
    user: String,
    /// What the token may do: `admin` sees the whole tenant, `operator` everything
    #[arg(long, default_value = "user", value_parser = ["user", "admin", "operator", "worker"])]
    role: String,
    /// How long the token is valid: 90s, 30m, 1h, 7d
    #[arg(long, default_value = "1h", value_parser = parse_duration_ms)]
    expires: i64,
    /// For role worker: the stages that it may lease, separated by commas [default: all]
    #[arg(long, value_delimiter = ',')]
    stages: Option<Vec<String>>,
    /// For role worker: the tenants whose files it may lease, separated by commas [default: all]
    #[arg(long, value_delimiter = ',')]
    tenants: Option<Vec<String>>,
    /// Print one JSON object: {token, expiresAt}
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

/// The command that prints a token for the server with these settings.
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
        role: Role::parse(role)
            .ok_or_else(|| Failure::Usage(format!("--role: there is no role `{role}`")))?,
    })
}

fn scope(arguments: &Arguments) -> Result<LeaseScope, Failure> {
    if arguments.role != "worker" && (arguments.stages.is_some() || arguments.tenants.is_some()) {
        return Err(Failure::Usage("--stages and --tenants need --role worker".into()));
    }
    let stage = |word: &String| {
        Stage::parse(word).ok_or_else(|| {
            Failure::Usage(format!("--stages: `{word}` is not a stage. Use scan, extract, chunk, embed"))
        })
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
    TokenKeys::load(settings, &secrets)?.mint_scoped(caller, scope, expires_at).map_err(failed)
}
