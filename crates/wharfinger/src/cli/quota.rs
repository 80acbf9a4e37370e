//! `wharfinger quota`: shows and sets tenants' limits, and corrects the counters.

use clap::{Args, Subcommand};
use serde_json::json;
use wharfinger_calls::faults::Faults;
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::limits::QUOTA_BYTES_MAX;
use wharfinger_lifecycle::quota::Quota;

use super::output::line;
use super::{Failure, failed, migrated_catalog};
use crate::clock::Clock;
use crate::config::{Flags, Settings, format_size, parse_size};
use crate::core::audit::AuditedAction;
use crate::quota::sync::{self, SyncMode, Synced};
use crate::quota::{QuotaContext, RedisQuotaOwner};

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
    /// Set a tenant's limit
    Set {
        /// The tenant's name
        tenant: String,
        /// A size: 10GiB, 500MB, or a number of bytes
        #[arg(value_parser = limit)]
        limit: u64,
    },
    /// Show a tenant's usage and limit
    Show {
        /// The tenant's name
        tenant: String,
    },
    /// Recompute the counters from the files, of one tenant or of all
    Sync {
        /// The tenant's name [default: all tenants]
        tenant: Option<String>,
    },
}

fn limit(text: &str) -> Result<u64, String> {
    parse_size(text)
        .filter(|bytes| *bytes <= QUOTA_BYTES_MAX)
        .ok_or_else(|| format!("it must be a size like 10GiB, at most {}", format_size(QUOTA_BYTES_MAX)))
}

fn tenant(name: &str) -> Result<TenantId, Failure> {
    TenantId::new(name).map_err(|bad| Failure::Usage(format!("the tenant's name {bad}")))
}

pub(super) async fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    let settings = Settings::load(flags)?;
    let (catalog, _) = migrated_catalog(&settings).await?;
    let default_limit = settings.default_quota_bytes;
    match arguments.action {
        Action::Set { tenant: name, limit } => {
            let tenant = tenant(&name)?;
            let action = AuditedAction {
                name: "quota-limit-set",
                tenant: Some(&tenant),
                subject: name.clone(),
                detail: json!({ "limit": limit }),
            };
            let audited = catalog.audited(action.by_command(Clock::system().now()));
            audited.set_limit(&tenant, limit).await.map_err(failed)?;
            show(&name, catalog.quota(&tenant, default_limit).await.map_err(failed)?, arguments.json);
        }
        Action::Show { tenant: name } => {
            let quota = catalog.quota(&tenant(&name)?, default_limit).await.map_err(failed)?;
            show(&name, quota, arguments.json);
        }
        Action::Sync { tenant: name } => {
            let owner = RedisQuotaOwner::open(&settings, &catalog, &Faults::none()).await.map_err(failed)?;
            if let Some(away) = owner.as_ref().filter(|owner| owner.is_away()) {
                let problem = format!(
                    "WHARFINGER_QUOTA_URL: Redis at {} does not answer. Is it running?",
                    away.redis.address()
                );
                return Err(Failure::Failed(problem));
            }
            let clock = Clock::system();
            let quota_context =
                QuotaContext { catalog: &catalog, clock: &clock, default_limit_bytes: default_limit };
            let synced = match name {
                None => sync::all(&quota_context, SyncMode::Repair(owner.as_ref()), || true)
                    .await
                    .map_err(failed)?,
                Some(name) => sync::tenant(&quota_context, owner.as_ref(), &tenant(&name)?)
                    .await
                    .map_err(failed)?
                    .ok_or_else(|| {
                        Failure::Failed(format!("there is no tenant `{name}` in this database"))
                    })?,
            };
            report(synced, arguments.json);
        }
    }
    catalog.close().await;
    Ok(())
}

fn show(tenant: &str, quota: Quota, json: bool) {
    let Quota { limit_bytes, used_bytes, reserved_bytes } = quota;
    if json {
        let view = serde_json::json!({
            "tenant": tenant, "used": used_bytes, "limit": limit_bytes, "reserved": reserved_bytes,
        });
        line(format!("{view}"));
    } else {
        line(format!(
            "{tenant}: {} of {} used ({used_bytes} of {limit_bytes} bytes), of this {} by unconfirmed uploads",
            format_size(used_bytes),
            format_size(limit_bytes),
            format_size(reserved_bytes),
        ));
    }
}

fn report(synced: Synced, json: bool) {
    let Synced { tenants, drift_bytes, rebuilt, failed } = synced;
    if json {
        let view = serde_json::json!({ "tenants": tenants, "driftBytes": drift_bytes, "rebuilt": rebuilt, "failed": failed });
        line(format!("{view}"));
        return;
    }
    if failed > 0 {
        line(format!("{failed} tenants could not be checked. The log above says why."));
    }
    let redis = match rebuilt {
        0 => String::new(),
        rebuilt => format!(" {rebuilt} counters were rebuilt in Redis."),
    };
    if drift_bytes == 0 {
        line(format!("{tenants} tenants checked, all counters are exact.{redis}"));
    } else {
        line(format!(
            "{tenants} tenants checked, {drift_bytes} bytes of drift corrected. All counters are exact now.{redis}"
        ));
    }
}
