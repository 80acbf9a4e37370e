//! What operators allow single tenants: types, file size and request rate. A tenant without a row has the defaults.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::media_type::TypeList;
use wharfinger_lifecycle::tenant_policy::{TenantPolicy, TenantPolicyChange};

use crate::Catalog;
use crate::database::sql::{Arg, Row, Tx, args, signed};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;

struct SetTenantPolicy {
    tenant: TenantId,
    change: TenantPolicyChange,
    now: UnixMs,
}

impl Write for SetTenantPolicy {
    type Answer = TenantPolicy;

    /// One statement, so that two changes of different fields at the same time both count.
    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<TenantPolicy>, CatalogError> {
        let TenantPolicyChange { allowed_types, file_size_bytes_max, requests_per_second } = &self.change;
        let types = allowed_types.clone().flatten().map(|types| types.to_string());
        let size = file_size_bytes_max.flatten().map(signed);
        let rate = requests_per_second.flatten().map(i64::from);
        let args: Vec<Arg> = args![
            self.tenant.as_str(),
            types.as_deref(),
            size,
            rate,
            self.now,
            i64::from(allowed_types.is_some()),
            i64::from(file_size_bytes_max.is_some()),
            i64::from(requests_per_second.is_some()),
        ];
        let row = tx
            .row(
                "INSERT INTO tenant_policies \
                 (tenant_id, allowed_types, file_size_bytes_max, requests_per_second, updated_at) \
                 VALUES ($1, $2, $3, $4, $5) ON CONFLICT (tenant_id) DO UPDATE SET \
                 allowed_types = CASE WHEN $6 = 1 THEN excluded.allowed_types \
                 ELSE tenant_policies.allowed_types END, \
                 file_size_bytes_max = CASE WHEN $7 = 1 THEN excluded.file_size_bytes_max \
                 ELSE tenant_policies.file_size_bytes_max END, \
                 requests_per_second = CASE WHEN $8 = 1 THEN excluded.requests_per_second \
                 ELSE tenant_policies.requests_per_second END, updated_at = excluded.updated_at \
                 RETURNING tenant_id, allowed_types, file_size_bytes_max, requests_per_second",
                args,
            )
            .await?
            .ok_or_else(|| CatalogError::Corrupt(format!("{} has no policy row", self.tenant)))?;
        Ok(TxOutcome::Commit(decode(&row)?))
    }
}

fn decode(row: &Row) -> Result<TenantPolicy, CatalogError> {
    let bad = |problem: String| {
        let tenant = row.text("tenant_id").unwrap_or_default();
        CatalogError::Corrupt(format!("policy of the tenant {tenant}: {problem}"))
    };
    let types = row.maybe_text("allowed_types")?.map(|text| TypeList::parse(&text));
    let rate = row.maybe_int("requests_per_second")?.map(u32::try_from);
    let size = row.maybe_int("file_size_bytes_max")?.map(u64::try_from);
    Ok(TenantPolicy {
        allowed_types: types.transpose().map_err(|error| bad(format!("allowed_types {error}")))?,
        file_size_bytes_max: size.transpose().map_err(|error| bad(error.to_string()))?,
        requests_per_second: rate.transpose().map_err(|error| bad(error.to_string()))?,
    })
}

impl Catalog {
    pub async fn tenant_policy(&self, tenant: &TenantId) -> Result<TenantPolicy, CatalogError> {
        let sql = "SELECT tenant_id, allowed_types, file_size_bytes_max, requests_per_second \
                   FROM tenant_policies WHERE tenant_id = $1";
        let mut reader = self.reader().await?;
        let row = reader.tx(&self.faults).row(sql, args![tenant.as_str()]).await?;
        row.as_ref().map_or_else(|| Ok(TenantPolicy::default()), decode)
    }

    /// Returns the whole policy after the change.
    pub async fn set_tenant_policy(
        &self,
        tenant: &TenantId,
        change: TenantPolicyChange,
        now: UnixMs,
    ) -> Result<TenantPolicy, CatalogError> {
        self.write(SetTenantPolicy { tenant: tenant.clone(), change, now }).await
    }
}
