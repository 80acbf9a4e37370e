//! Idempotency keys. A key is written in the transaction of what it makes, so it is either unused or done:
//! two requests with one key wait for each other in the database, and the second reads what the first made.

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
    /// A hash of the body: the same key with another body is a mistake of the client's.
    pub fingerprint: String,
    pub expires_at: UnixMs,
}

pub(crate) enum Taken {
    Ours,
    Before(Uuid),
    OtherBody,
}

/// A key is remembered for its time, and that of a large file as long as it still waits for its parts: an upload that
/// is gone on with after days is the same one.
pub(crate) async fn take(
    tx: &mut Tx<'_>,
    (tenant, user): (&TenantId, &UserId),
    idempotency_key: &IdempotencyKey,
    made: Uuid,
    now: UnixMs,
) -> Result<Taken, CatalogError> {
    let (tenant, user) = (tenant.as_str(), user.as_str());
    let taken = tx
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
                made.to_string(),
                idempotency_key.expires_at,
                now,
            ],
        )
        .await?;
    if taken == 1 {
        return Ok(Taken::Ours);
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

fn compared(before: &Row, idempotency_key: &IdempotencyKey) -> Result<Taken, CatalogError> {
    if before.text("fingerprint")? == idempotency_key.fingerprint {
        Ok(Taken::Before(before.parsed("made_id")?))
    } else {
        Ok(Taken::OtherBody)
    }
}

struct ForgetExpired {
    now: UnixMs,
    limit: usize,
}

impl Write for ForgetExpired {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<u64>, CatalogError> {
        let gone = tx
            .run(
                "DELETE FROM idempotency_keys WHERE (tenant_id, user_id, route, key) IN \
                 (SELECT tenant_id, user_id, route, key FROM idempotency_keys WHERE expires_at <= $1 \
                 AND NOT EXISTS (SELECT 1 FROM files WHERE files.id = idempotency_keys.made_id \
                 AND files.pipeline_status = 'registered' \
                 AND files.part_size IS NOT NULL) ORDER BY expires_at LIMIT $2) AND expires_at <= $1",
                args![self.now, self.limit as i64],
            )
            .await?;
        Ok(TxOutcome::Commit(gone))
    }
}

impl Catalog {
    /// What a registration with this key will surely answer, if that is known already: who asks for room first
    /// would be refused it for something that has its room.
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
                args![tenant.as_str(), user.as_str(), idempotency_key.route, idempotency_key.key.as_str(), now],
            )
            .await?;
        Ok(match before.map(|row| compared(&row, idempotency_key)).transpose()? {
            Some(Taken::Before(made)) => Some(RegisterOutcome::Repeated(made)),
            Some(Taken::OtherBody) => Some(RegisterOutcome::KeyMismatch),
            Some(Taken::Ours) | None => None,
        })
    }

    pub async fn purge_expired_keys(&self, now: UnixMs, limit: usize) -> Result<u64, CatalogError> {
        self.write(ForgetExpired { now, limit }).await
    }
}
