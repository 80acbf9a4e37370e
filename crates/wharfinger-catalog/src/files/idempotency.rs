//! Idempotency keys. A key is written in the transaction that creates the file or batch, so it is either unused or done.
//! Of two requests with one key the second waits in the database and then reads what the first created.

use uuid::Uuid;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::{TenantId, UserId};

use crate::Catalog;
use crate::database::sql::{Row, Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::registrations::RegisterOutcome;

#[derive(Clone, Debug)]
pub struct IdempotencyKey {
    pub route: &'static str,
    pub key: String,
    /// A hash of the body. The same key with another body is a client error.
    pub fingerprint: String,
    pub expires_at: UnixMs,
}

/// The outcome of [`claim`].
pub(crate) enum KeyClaim {
    New,
    /// The key was used before and created this.
    Repeated(Uuid),
    /// The key was used before with another body.
    Mismatch,
}

/// A key is valid until it expires. The key of a multipart upload is also valid while its file is unconfirmed: a client
/// that resumes after days gets the same upload.
pub(crate) async fn claim(
    tx: &mut Tx<'_>,
    (tenant, user): (&TenantId, &UserId),
    idempotency_key: &IdempotencyKey,
    created: Uuid,
    now: UnixMs,
) -> Result<KeyClaim, CatalogError> {
    let (tenant, user) = (tenant.as_str(), user.as_str());
    let claimed = tx
        .run(
            "INSERT INTO idempotency_keys (tenant_id, user_id, route, key, fingerprint, made_id, expires_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) \
             ON CONFLICT (tenant_id, user_id, route, key) DO UPDATE SET \
             fingerprint = excluded.fingerprint, made_id = excluded.made_id, expires_at = excluded.expires_at \
             WHERE idempotency_keys.expires_at <= $8 AND NOT EXISTS (SELECT 1 FROM files \
             WHERE files.id = idempotency_keys.made_id AND files.pipeline_status = 'registered' \
                 AND files.part_size IS NOT NULL)",
            args![
                tenant,
                user,
                idempotency_key.route,
                idempotency_key.key.as_str(),
                idempotency_key.fingerprint.as_str(),
                created.to_string(),
                idempotency_key.expires_at,
                now,
            ],
        )
        .await?;
    if claimed == 1 {
        return Ok(KeyClaim::New);
    }
    let before = tx
        .row(
            "SELECT fingerprint, made_id FROM idempotency_keys \
             WHERE tenant_id = $1 AND user_id = $2 AND route = $3 AND key = $4",
            args![tenant, user, idempotency_key.route, idempotency_key.key.as_str()],
        )
        .await?
        .ok_or(CatalogError::Stale)?;
    compared(&before, idempotency_key)
}

fn compared(before: &Row, idempotency_key: &IdempotencyKey) -> Result<KeyClaim, CatalogError> {
    if before.text("fingerprint")? == idempotency_key.fingerprint {
        Ok(KeyClaim::Repeated(before.parsed("made_id")?))
    } else {
        Ok(KeyClaim::Mismatch)
    }
}

struct PurgeKeys {
    now: UnixMs,
    limit: usize,
}

impl Write for PurgeKeys {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<u64>, CatalogError> {
        let deleted = tx
            .run(
                "DELETE FROM idempotency_keys WHERE (tenant_id, user_id, route, key) IN \
                 (SELECT tenant_id, user_id, route, key FROM idempotency_keys WHERE expires_at <= $1 \
                 AND NOT EXISTS (SELECT 1 FROM files WHERE files.id = idempotency_keys.made_id \
                 AND files.pipeline_status = 'registered' \
                 AND files.part_size IS NOT NULL) ORDER BY expires_at LIMIT $2) AND expires_at <= $1",
                args![self.now, self.limit as i64],
            )
            .await?;
        Ok(TxOutcome::Commit(deleted))
    }
}

impl Catalog {
    /// The answer that a registration with this key will get, if the key was used before. Checked before quota is reserved:
    /// a repeated request needs no quota and must not be refused for it.
    pub async fn key_answer(
        &self,
        (tenant, user): (&TenantId, &UserId),
        idempotency_key: &IdempotencyKey,
        now: UnixMs,
    ) -> Result<Option<RegisterOutcome>, CatalogError> {
        let mut reader = self.reader().await?;
        let before = reader
            .tx(&self.faults)
            .row(
                "SELECT fingerprint, made_id FROM idempotency_keys \
                 WHERE tenant_id = $1 AND user_id = $2 AND route = $3 AND key = $4 AND (expires_at > $5 \
                 OR EXISTS (SELECT 1 FROM files WHERE files.id = idempotency_keys.made_id \
                 AND files.pipeline_status = 'registered' AND files.part_size IS NOT NULL))",
                args![
                    tenant.as_str(),
                    user.as_str(),
                    idempotency_key.route,
                    idempotency_key.key.as_str(),
                    now
                ],
            )
            .await?;
        Ok(match before.map(|row| compared(&row, idempotency_key)).transpose()? {
            Some(KeyClaim::Repeated(created)) => Some(RegisterOutcome::Repeated(created)),
            Some(KeyClaim::Mismatch) => Some(RegisterOutcome::KeyMismatch),
            Some(KeyClaim::New) | None => None,
        })
    }

    pub async fn purge_expired_keys(&self, now: UnixMs, limit: usize) -> Result<u64, CatalogError> {
        self.write(PurgeKeys { now, limit }).await
    }
}
