//! Fault: a quota counter that differs from the sum of its tenant's charges. For example, after a crash during a registration,
//! Redis counts a file that was never registered.

use serde::Serialize;
use utoipa::ToSchema;

use super::SweepLease;
use crate::core::VerbError;
use crate::quota::Quota;
use crate::quota::QuotaContext;
use crate::quota::sync::{self, SyncMode};
use crate::telemetry::metric;

pub const NAME: &str = "quota-sync";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = QuotaSyncResult)]
pub struct Outcome {
    #[schema(example = 12)]
    pub tenants: u64,
    #[schema(example = 0)]
    pub drift_bytes: u64,
    /// Tenants whose Redis counter was rebuilt. In a dry run: would be rebuilt; their drift is only known after that.
    #[schema(example = 0)]
    pub rebuilt: u64,
    /// Tenants that could not be checked.
    #[schema(example = 0)]
    pub failed: u64,
}

pub async fn run(quota: &Quota, lease: &SweepLease) -> Result<Outcome, VerbError> {
    let quota_context = QuotaContext { catalog: &lease.catalog, ..quota.quota_context() };
    let mode = match lease.is_dry_run() {
        true => SyncMode::Compare,
        false => SyncMode::Repair(quota.redis_owner.as_ref()),
    };
    let synced = sync::all(&quota_context, mode, || lease.should_continue(&quota.core)).await?;
    if !lease.is_dry_run() {
        metric::quota_drift(synced.drift_bytes);
        if synced.drift_bytes > 0 {
            let drift_bytes = synced.drift_bytes;
            tracing::warn!(job = NAME, driftBytes = drift_bytes, "quota counters were corrected");
        }
    }
    Ok(Outcome {
        tenants: synced.tenants,
        drift_bytes: synced.drift_bytes,
        rebuilt: synced.rebuilt,
        failed: synced.failed,
    })
}
