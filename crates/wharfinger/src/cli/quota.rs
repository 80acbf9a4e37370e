//! `wharfinger quota`: tenants' limits, and reconciliation now.

use clap::{Args, Subcommand};
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::limits::QUOTA_BYTES_MAX;
use wharfinger_lifecycle::quota::Quota;

use super::output::line;
use super::{Failure, failed, migrated_catalog};
use crate::config::{Flags, Settings, format_size, parse_size};

#[derive(Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Set a tenant's limit
    Set {
        tenant: String,
        /// 10GiB, 500MB, or bytes
        #[arg(value_parser = limit)]
        limit: u64,
    },
    /// Show what a tenant holds
    Show { tenant: String },
    /// Recompute counters from the files: of one tenant, or of all
    Sync { tenant: Option<String> },
}

fn limit(text: &str) -> Result<u64, String> {
    parse_size(text)
        .filter(|bytes| *bytes <= QUOTA_BYTES_MAX)
        .ok_or_else(|| format!("`{text}` is not a size like 10GiB, at most {}", format_size(QUOTA_BYTES_MAX)))
}

fn tenant(name: &str) -> Result<TenantId, Failure> {
    TenantId::new(name).map_err(|bad| Failure::Usage(format!("the tenant's name {bad}")))
}

const TENANTS_PER_PAGE: usize = 500;

pub(super) async fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    let settings = Settings::load(flags)?;
    let (catalog, _) = migrated_catalog(&settings).await?;
    let default_limit = settings.default_quota_bytes;
    match arguments.action {
        Action::Set { tenant: name, limit } => {
            let tenant = tenant(&name)?;
            catalog.set_limit(&tenant, limit).await.map_err(failed)?;
            show(&name, catalog.quota(&tenant, default_limit).await.map_err(failed)?, arguments.json);
        }
        Action::Show { tenant: name } => {
            let quota = catalog.quota(&tenant(&name)?, default_limit).await.map_err(failed)?;
            show(&name, quota, arguments.json);
        }
        Action::Sync { tenant: Some(name) } => {
            let drift = catalog.rebuild_quota(&tenant(&name)?, default_limit).await.map_err(failed)?;
            let drift = drift.ok_or_else(|| Failure::Failed(format!("no tenant {name} is known here")))?;
            report(1, drift.drift_bytes.unsigned_abs(), arguments.json);
        }
        Action::Sync { tenant: None } => {
            let (mut tenants, mut drifted, mut after) = (0, 0, String::new());
            loop {
                let page = catalog.tenants(&after, TENANTS_PER_PAGE).await.map_err(failed)?;
                let Some(last) = page.last() else { break };
                after = last.to_string();
                for tenant in &page {
                    if let Some(drift) = catalog.rebuild_quota(tenant, default_limit).await.map_err(failed)? {
                        tenants += 1;
                        drifted += drift.drift_bytes.unsigned_abs();
                    }
                }
            }
            report(tenants, drifted, arguments.json);
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
            "{tenant}: {} of {} used ({used_bytes} of {limit_bytes} bytes), {} of it reserved for unconfirmed uploads",
            format_size(used_bytes),
            format_size(limit_bytes),
            format_size(reserved_bytes),
        ));
    }
}

fn report(tenants: u64, drift_bytes: u64, json: bool) {
    if json {
        line(format!("{}", serde_json::json!({ "tenants": tenants, "driftBytes": drift_bytes })));
    } else if drift_bytes == 0 {
        line(format!("{tenants} tenants checked, all counters exact."));
    } else {
        line(format!(
            "{tenants} tenants checked, counters were off by {drift_bytes} bytes and are exact now."
        ));
    }
}
