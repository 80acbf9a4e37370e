//! Service keys: long-lived tokens for programs. The catalog stores only their hashes.

use wharfinger_lifecycle::UnixMs;

use crate::Catalog;
use crate::database::sql::{Row, Tx, args, typed_rows};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::unreadable::{SPARE_ROWS, Table};

/// Every process keeps all keys in memory, so their number is bounded.
pub const SERVICE_KEYS_MAX: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceKey {
    pub id: String,
    /// SHA-256 of the whole token, in hex.
    pub hash: String,
    pub name: Option<String>,
    pub role: String,
    pub tenant: Option<String>,
    pub user: Option<String>,
    pub created_at: UnixMs,
    pub expires_at: Option<UnixMs>,
    pub revoked_at: Option<UnixMs>,
    /// Written only now and then: see [`Catalog::record_key_uses`].
    pub last_used_at: Option<UnixMs>,
}

/// When a key was last used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    pub id: String,
    pub at: UnixMs,
}

const COLUMNS: &str =
    "id, hash, name, role, tenant_id, user_id, created_at, expires_at, revoked_at, last_used_at";

pub(crate) fn decode(row: &Row) -> Result<ServiceKey, CatalogError> {
    Ok(ServiceKey {
        id: row.text("id")?,
        hash: row.text("hash")?,
        name: row.maybe_text("name")?,
        role: row.text("role")?,
        tenant: row.maybe_text("tenant_id")?,
        user: row.maybe_text("user_id")?,
        created_at: row.int("created_at")?,
        expires_at: row.maybe_int("expires_at")?,
        revoked_at: row.maybe_int("revoked_at")?,
        last_used_at: row.maybe_int("last_used_at")?,
    })
}

struct CreateKey {
    key: ServiceKey,
}

impl Write for CreateKey {
    type Answer = bool;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<bool>, CatalogError> {
        let key = &self.key;
        let inserted = tx
            .run(
                "INSERT INTO service_keys (id, hash, name, role, tenant_id, user_id, created_at, expires_at) \
                 SELECT CAST($1 AS TEXT), CAST($2 AS TEXT), CAST($3 AS TEXT), CAST($4 AS TEXT), CAST($5 AS TEXT), \
                 CAST($6 AS TEXT), CAST($7 AS BIGINT), CAST($8 AS BIGINT) \
                 WHERE (SELECT COUNT(*) FROM service_keys) < $9",
                args![
                    key.id.as_str(),
                    key.hash.as_str(),
                    key.name.as_deref(),
                    key.role.as_str(),
                    key.tenant.as_deref(),
                    key.user.as_deref(),
                    key.created_at,
                    key.expires_at,
                    SERVICE_KEYS_MAX as i64,
                ],
            )
            .await?;
        Ok(TxOutcome::Commit(inserted == 1))
    }
}

/// A second revocation keeps the time of the first.
struct RevokeKey {
    id: String,
    now: UnixMs,
}

impl Write for RevokeKey {
    type Answer = Option<ServiceKey>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let sql = format!(
            "UPDATE service_keys SET revoked_at = COALESCE(revoked_at, $2) WHERE id = $1 RETURNING {COLUMNS}"
        );
        let rows = tx.rows_built(sql, args![self.id.as_str(), self.now]).await?;
        Ok(match rows.first() {
            Some(row) => TxOutcome::Commit(Some(decode(row)?)),
            None => TxOutcome::Rollback(None),
        })
    }
}

struct RecordUses {
    uses: Vec<KeyUse>,
    not_after: UnixMs,
}

impl Write for RecordUses {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        for some in self.uses.chunks(tx.dialect().rows_max()) {
            let mut args = args![self.not_after];
            for key in some {
                args.extend(args![key.id.as_str(), key.at]);
            }
            // `column1` is the name that both databases give.
            let sql = format!(
                "UPDATE service_keys SET last_used_at = uses.column2 FROM (VALUES {}) AS uses \
                 WHERE service_keys.id = uses.column1 AND uses.column2 > COALESCE(service_keys.last_used_at, 0) \
                 AND COALESCE(service_keys.last_used_at, 0) <= $1",
                typed_rows(2, &["TEXT", "BIGINT"], some.len())
            );
            tx.run_built(sql, args).await?;
        }
        Ok(TxOutcome::Commit(()))
    }
}

struct PurgeKeys {
    before: UnixMs,
    limit: usize,
}

impl Write for PurgeKeys {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<u64>, CatalogError> {
        let deleted = tx
            .run(
                "DELETE FROM service_keys WHERE id IN (SELECT id FROM service_keys \
                 WHERE COALESCE(revoked_at, expires_at) < $1 ORDER BY COALESCE(revoked_at, expires_at), id LIMIT $2)",
                args![self.before, self.limit as i64],
            )
            .await?;
        Ok(TxOutcome::Commit(deleted))
    }
}

impl Catalog {
    /// False: there are [`SERVICE_KEYS_MAX`] keys already, and nothing was written.
    pub async fn create_service_key(&self, key: ServiceKey) -> Result<bool, CatalogError> {
        self.write(CreateKey { key }).await
    }

    /// The key as it is now. None: there is no such key.
    pub async fn revoke_service_key(
        &self,
        id: &str,
        now: UnixMs,
    ) -> Result<Option<ServiceKey>, CatalogError> {
        self.write(RevokeKey { id: id.to_owned(), now }).await
    }

    /// Newest first: ids begin with their time. Keys that cannot be read are left out.
    pub async fn service_keys(
        &self,
        before: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ServiceKey>, CatalogError> {
        let sql = format!("SELECT {COLUMNS} FROM service_keys WHERE id < $1 ORDER BY id DESC LIMIT $2");
        let mut reader = self.reader().await?;
        let rows = reader
            .tx(&self.faults)
            .rows_built(sql, args![before.unwrap_or("~"), (limit + SPARE_ROWS) as i64])
            .await?;
        Ok(self.readable_page(Table::ServiceKeys, &rows, limit, decode).await)
    }

    /// None: there is no such key, or it cannot be read.
    pub async fn service_key(&self, id: &str) -> Result<Option<ServiceKey>, CatalogError> {
        let sql = format!("SELECT {COLUMNS} FROM service_keys WHERE id = $1");
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_built(sql, args![id]).await?;
        Ok(self.readable(Table::ServiceKeys, "id", &rows, decode).await.pop())
    }

    /// Writes when keys were last used, each only if its last time is not after `not_after`: so many processes together
    /// write a key no more often than one.
    pub async fn record_key_uses(&self, uses: Vec<KeyUse>, not_after: UnixMs) -> Result<(), CatalogError> {
        if uses.is_empty() {
            return Ok(());
        }
        self.write(RecordUses { uses, not_after }).await
    }

    /// Deletes keys that were revoked or expired before a time; returns how many.
    pub async fn purge_service_keys(&self, before: UnixMs, limit: usize) -> Result<u64, CatalogError> {
        self.write(PurgeKeys { before, limit }).await
    }
}
