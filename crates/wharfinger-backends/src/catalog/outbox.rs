//! What must reach another system: lines written in the transaction they follow from, claimed row by row (never by
//! a cursor: commit order is not id order), and removed when they have arrived. A line may be delivered twice.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::{JobId, TenantId};
use wharfinger_lifecycle::limits::{ERROR_TEXT_BYTES_MAX, clip};

use super::error::CatalogError;
use super::jobs::NewJob;
use super::sql::{Row, Tx, args, places, tuples};
use super::writer::{Verdict, Write};
use super::{Catalog, fresh_id};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    Quota,
    Broker,
}

impl Destination {
    pub fn as_str(self) -> &'static str {
        match self {
            Destination::Quota => "quota",
            Destination::Broker => "broker",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxLine {
    pub id: String,
    pub tenant: TenantId,
    pub what: Outbound,
    pub attempts: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outbound {
    /// Bytes that Redis still counts, if it counts from this epoch on.
    Refund { bytes: u64, epoch: i64 },
    /// A delayed check that the broker is to bring back when it is due.
    Check { job: JobId, due_at: UnixMs },
}

impl Outbound {
    fn destination(&self) -> Destination {
        match self {
            Outbound::Refund { .. } => Destination::Quota,
            Outbound::Check { .. } => Destination::Broker,
        }
    }
}

pub(super) async fn insert(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    what: &Outbound,
    now: UnixMs,
) -> Result<(), CatalogError> {
    let (bytes, epoch, job, due_at) = match what {
        Outbound::Refund { bytes, epoch } => (Some(super::files::signed(*bytes)), Some(*epoch), None, None),
        Outbound::Check { job, due_at } => (None, None, Some(job.to_string()), Some(*due_at)),
    };
    tx.run(
        "INSERT INTO outbox (id, destination, tenant_id, bytes, epoch, job_id, due_at, attempts, created_at, \
         next_attempt_at) VALUES ($1, $2, $3, $4, $5, $6, $7, 0, $8, $8)",
        args![
            fresh_id(now).to_string(),
            what.destination().as_str(),
            tenant.as_str(),
            bytes,
            epoch,
            job,
            due_at,
            now
        ],
    )
    .await?;
    Ok(())
}

/// The delayed checks of these jobs, which the broker is to bring back.
pub(super) async fn insert_checks(
    tx: &mut Tx<'_>,
    checks: &[(JobId, NewJob)],
    now: UnixMs,
) -> Result<(), CatalogError> {
    let rows = checks.iter().flat_map(|(id, job)| {
        let line = fresh_id(now).to_string();
        args![
            line,
            Destination::Broker.as_str(),
            job.tenant.as_str(),
            id.to_string(),
            job.run_at,
            0_i64,
            now,
            now
        ]
    });
    let sql = format!(
        "INSERT INTO outbox (id, destination, tenant_id, job_id, due_at, attempts, created_at, next_attempt_at) \
         VALUES {}",
        tuples(1, checks.len(), 8)
    );
    tx.run_built(sql, rows.collect()).await?;
    Ok(())
}

/// Refunds that whatever is loaded under a later epoch contains.
pub(super) async fn forget_refunds_before(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    epoch: i64,
) -> Result<(), CatalogError> {
    tx.run(
        "DELETE FROM outbox WHERE destination = 'quota' AND tenant_id = $1 AND epoch < $2",
        args![tenant.as_str(), epoch],
    )
    .await?;
    Ok(())
}

struct ForgetAll {
    destination: Destination,
}

impl Write for ForgetAll {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<()>, CatalogError> {
        tx.run("DELETE FROM outbox WHERE destination = $1", args![self.destination.as_str()]).await?;
        Ok(Verdict::Commit(()))
    }
}

/// Takes due lines out of others' sight for a while. Who dies with them has only held them up.
struct Claim {
    destination: Destination,
    limit: usize,
    now: UnixMs,
    hidden_until: UnixMs,
}

impl Write for Claim {
    type Answer = Vec<OutboxLine>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Answer>, CatalogError> {
        let lock = tx.dialect().pick("", "FOR UPDATE SKIP LOCKED");
        let sql = format!(
            "WITH due AS MATERIALIZED (SELECT id FROM outbox WHERE destination = $1 AND next_attempt_at <= $2 \
             ORDER BY next_attempt_at, id LIMIT $4 {lock}) \
             UPDATE outbox SET next_attempt_at = $3 WHERE id IN (SELECT id FROM due) \
             RETURNING id, tenant_id, bytes, epoch, job_id, due_at, attempts"
        );
        let args = args![self.destination.as_str(), self.now, self.hidden_until, self.limit as i64];
        let rows = tx.rows_built(sql, args).await?;
        // One that cannot be read must not hold up the others; hidden, it shows in the depth.
        let mut lines: Vec<OutboxLine> = rows.iter().filter_map(|row| decode(row).ok()).collect();
        lines.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(match lines.is_empty() {
            true => Verdict::Rollback(lines),
            false => Verdict::Commit(lines),
        })
    }
}

fn decode(row: &Row) -> Result<OutboxLine, CatalogError> {
    let tenant = row.text("tenant_id")?;
    let what = match (row.maybe_int("epoch")?, row.maybe_int("due_at")?) {
        (Some(epoch), _) => Outbound::Refund { bytes: row.bytes("bytes")?, epoch },
        (None, Some(due_at)) => Outbound::Check { job: row.parsed("job_id")?, due_at },
        (None, None) => return Err(CatalogError::Corrupt("an outbox line that says nothing".into())),
    };
    Ok(OutboxLine {
        id: row.text("id")?,
        tenant: TenantId::new(&tenant)
            .map_err(|_| CatalogError::Corrupt(format!("outbox names the tenant {tenant:?}")))?,
        what,
        attempts: u32::try_from(row.int("attempts")?).unwrap_or(u32::MAX),
    })
}

struct Arrived {
    ids: Vec<String>,
}

impl Write for Arrived {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<()>, CatalogError> {
        let sql = format!("DELETE FROM outbox WHERE id IN ({})", places(1, self.ids.len()));
        tx.run_built(sql, self.ids.iter().flat_map(|id| args![id.as_str()]).collect()).await?;
        Ok(Verdict::Commit(()))
    }
}

struct PutOff {
    ids: Vec<String>,
    error: String,
    until: UnixMs,
}

impl Write for PutOff {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<()>, CatalogError> {
        let sql = format!(
            "UPDATE outbox SET attempts = attempts + 1, last_error = $1, next_attempt_at = $2 WHERE id IN ({})",
            places(3, self.ids.len())
        );
        let mut args = args![clip(&self.error, ERROR_TEXT_BYTES_MAX), self.until];
        args.extend(self.ids.iter().flat_map(|id| args![id.as_str()]));
        tx.run_built(sql, args).await?;
        Ok(Verdict::Commit(()))
    }
}

impl Catalog {
    pub async fn claim_outbox(
        &self,
        destination: Destination,
        limit: usize,
        now: UnixMs,
        hidden_until: UnixMs,
    ) -> Result<Vec<OutboxLine>, CatalogError> {
        self.write(Claim { destination, limit, now, hidden_until }).await
    }

    pub async fn outbox_arrived(&self, ids: Vec<String>) -> Result<(), CatalogError> {
        if ids.is_empty() {
            return Ok(());
        }
        self.write(Arrived { ids }).await
    }

    pub async fn put_off_outbox(
        &self,
        ids: Vec<String>,
        error: &str,
        until: UnixMs,
    ) -> Result<(), CatalogError> {
        if ids.is_empty() {
            return Ok(());
        }
        self.write(PutOff { ids, error: error.to_owned(), until }).await
    }

    /// Nobody is there any more to tell.
    pub async fn forget_outbox(&self, destination: Destination) -> Result<(), CatalogError> {
        if self.outbox_depth(destination).await?.0 == 0 {
            return Ok(());
        }
        self.write(ForgetAll { destination }).await
    }

    /// How many lines wait for a destination, and since when the oldest does.
    pub async fn outbox_depth(
        &self,
        destination: Destination,
    ) -> Result<(u64, Option<UnixMs>), CatalogError> {
        let mut reader = self.reader().await?;
        let row = reader
            .tx(&self.faults)
            .row(
                "SELECT COUNT(*) AS waiting, MIN(created_at) AS oldest FROM outbox WHERE destination = $1",
                args![destination.as_str()],
            )
            .await?;
        row.map_or(Ok((0, None)), |row| Ok((row.bytes("waiting")?, row.maybe_int("oldest")?)))
    }
}
