//! When each sweep last ran and what came of it; whose turn the next run is, and the fence that keeps whoever lost
//! that turn from writing.

use wharfinger_lifecycle::UnixMs;

use crate::Catalog;
use crate::database::sql::{Row, Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::leases::engine::{self, Claim};
use crate::leases::tables::SWEEPS;
use crate::unreadable::Table;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepRecord {
    pub name: &'static str,
    pub started_at: UnixMs,
    pub ended_at: UnixMs,
    /// A JSON object.
    pub result: Option<String>,
    pub error: Option<String>,
}

/// How a sweep stands: what is known of its last run, and of the one under way or to come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepState {
    pub name: String,
    pub last_start_at: Option<UnixMs>,
    pub last_end_at: Option<UnixMs>,
    /// A JSON object.
    pub last_result: Option<String>,
    pub last_error: Option<String>,
    pub last_success_at: Option<UnixMs>,
    pub next_run_at: Option<UnixMs>,
    pub lease_owner: Option<String>,
    pub lease_until: UnixMs,
}

/// A try to be the one that runs a sweep.
#[derive(Clone, Debug)]
pub struct SweepClaim {
    pub name: &'static str,
    /// Names the process, for people who look at the row.
    pub owner: String,
    pub now: UnixMs,
    pub lease_ms: i64,
    /// Otherwise a person asks for it, at any time.
    pub only_if_due: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SweepClaimOutcome {
    Leased(Fence),
    /// It is not time for the next run.
    NotDue {
        next_run_at: UnixMs,
    },
    /// Another process runs it, or died while doing so.
    Taken {
        owner: String,
        lease_until: UnixMs,
    },
}

/// What a sweep writes is kept only while its row still has this number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    sweep: &'static str,
    number: i64,
}

impl Fence {
    /// Fails if another process has claimed the sweep since, and keeps claims out until this transaction has ended.
    pub(crate) async fn hold(&self, tx: &mut Tx<'_>) -> Result<(), CatalogError> {
        // SQLite needs no lock: it has one writer at a time.
        let sql = tx.dialect().pick(
            "SELECT lease_token FROM sweeps WHERE name = $1",
            "SELECT lease_token FROM sweeps WHERE name = $1 FOR NO KEY UPDATE",
        );
        let row = tx.row(sql, args![self.sweep]).await?;
        match row.map(|row| row.int("lease_token")).transpose()? {
            Some(number) if number == self.number => Ok(()),
            _ => Err(CatalogError::Fenced),
        }
    }
}

impl Write for SweepRecord {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        tx.run(
            "INSERT INTO sweeps (name, last_start_at, last_end_at, last_result, last_error, last_success_at) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (name) DO UPDATE SET \
             last_start_at = excluded.last_start_at, last_end_at = excluded.last_end_at, \
             last_result = excluded.last_result, last_error = excluded.last_error, \
             last_success_at = COALESCE(excluded.last_success_at, sweeps.last_success_at)",
            args![
                self.name,
                self.started_at,
                self.ended_at,
                self.result.as_deref(),
                self.error.as_deref(),
                self.error.is_none().then_some(self.ended_at),
            ],
        )
        .await?;
        Ok(TxOutcome::Commit(()))
    }
}

impl Write for SweepClaim {
    type Answer = SweepClaimOutcome;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<SweepClaimOutcome>, CatalogError> {
        tx.run("INSERT INTO sweeps (name) VALUES ($1) ON CONFLICT (name) DO NOTHING", args![self.name])
            .await?;
        let claim = Claim {
            queue: self.name,
            now: self.now,
            lease_until: self.now.saturating_add(self.lease_ms),
            due: "lease_until <= $2 AND (next_run_at IS NULL OR next_run_at <= $5)",
            order: "name",
            by_rank: false,
            limit: 1,
            args: args![self.owner.as_str(), if self.only_if_due { self.now } else { i64::MAX }],
        };
        if let Some(row) = engine::claim(tx, &SWEEPS, claim).await?.rows.first() {
            let fence = Fence { sweep: self.name, number: row.int("lease_token")? };
            return Ok(TxOutcome::Commit(SweepClaimOutcome::Leased(fence)));
        }
        let sql = "SELECT next_run_at, lease_owner, lease_until FROM sweeps WHERE name = $1";
        let row = tx.row(sql, args![self.name]).await?.ok_or(CatalogError::Stale)?;
        let lease_until = row.int("lease_until")?;
        Ok(TxOutcome::Rollback(match row.maybe_int("next_run_at")? {
            Some(next_run_at) if lease_until <= self.now => SweepClaimOutcome::NotDue { next_run_at },
            _ => {
                SweepClaimOutcome::Taken { owner: row.maybe_text("lease_owner")?.unwrap_or_default(), lease_until }
            }
        }))
    }
}

/// Extends the lease of a sweep.
struct Extend {
    fence: Fence,
    lease_until: UnixMs,
}

impl Write for Extend {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        let Fence { sweep, number } = &self.fence;
        engine::renew(tx, &SWEEPS, (sweep, *number), self.lease_until).await?;
        Ok(TxOutcome::Commit(()))
    }
}

/// Ends the lease of a sweep.
struct Release {
    fence: Fence,
    next_run_at: Option<UnixMs>,
}

impl Write for Release {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        let Fence { sweep, number } = &self.fence;
        let held = "name = $2 AND lease_token = $3";
        engine::release(tx, &SWEEPS, held, self.next_run_at, &[], args![*sweep, *number]).await?;
        Ok(TxOutcome::Commit(()))
    }
}

/// Brings the next run forward, unless it has been set anew since it was read: then somebody has run meanwhile.
struct Advance {
    name: &'static str,
    from: UnixMs,
    to: UnixMs,
}

impl Write for Advance {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        tx.run(
            "UPDATE sweeps SET next_run_at = $3 WHERE name = $1 AND next_run_at = $2",
            args![self.name, self.from, self.to],
        )
        .await?;
        Ok(TxOutcome::Commit(()))
    }
}

pub(crate) fn decode(row: &Row) -> Result<SweepState, CatalogError> {
    Ok(SweepState {
        name: row.text("name")?,
        last_start_at: row.maybe_int("last_start_at")?,
        last_end_at: row.maybe_int("last_end_at")?,
        last_result: row.maybe_text("last_result")?,
        last_error: row.maybe_text("last_error")?,
        last_success_at: row.maybe_int("last_success_at")?,
        next_run_at: row.maybe_int("next_run_at")?,
        lease_owner: row.maybe_text("lease_owner")?,
        lease_until: row.int("lease_until")?,
    })
}

impl Catalog {
    pub async fn record_sweep(&self, record: SweepRecord) -> Result<(), CatalogError> {
        self.write(record).await
    }

    /// Ours if the sweep is due and nobody else is at it: one of many gets it.
    pub async fn claim_sweep(&self, claim: SweepClaim) -> Result<SweepClaimOutcome, CatalogError> {
        self.write(claim).await
    }

    /// This catalog as a sweep writes to it: every write answers [`CatalogError::Fenced`] and changes nothing once
    /// another has claimed the sweep.
    pub fn fenced(&self, fence: Fence) -> Catalog {
        Catalog { fence: Some(fence), ..self.clone() }
    }

    /// Keeps the sweep that this catalog is fenced for.
    pub async fn extend_sweep(&self, lease_until: UnixMs) -> Result<(), CatalogError> {
        self.write(Extend { fence: self.own_fence()?, lease_until }).await
    }

    /// Ends its turn. Without a time for the next run the sweep stays due, and anybody may take it up.
    pub async fn release_sweep(&self, next_run_at: Option<UnixMs>) -> Result<(), CatalogError> {
        self.write(Release { fence: self.own_fence()?, next_run_at }).await
    }

    fn own_fence(&self) -> Result<Fence, CatalogError> {
        self.fence.clone().ok_or(CatalogError::Fenced)
    }

    /// For a schedule that was made denser since the next run was written down.
    pub async fn advance_sweep(
        &self,
        name: &'static str,
        from: UnixMs,
        to: UnixMs,
    ) -> Result<(), CatalogError> {
        self.write(Advance { name, from, to }).await
    }

    /// Those that have ever been looked at, in no order.
    pub async fn sweeps(&self) -> Result<Vec<SweepState>, CatalogError> {
        let sql = "SELECT name, last_start_at, last_end_at, last_result, last_error, last_success_at, next_run_at, \
                   lease_owner, lease_until FROM sweeps";
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows(sql, args![]).await?;
        drop(reader);
        Ok(self.readable(Table::Sweeps, "name", &rows, decode).await)
    }

    pub async fn sweep_ended_at(&self, name: &'static str) -> Result<Option<UnixMs>, CatalogError> {
        let mut reader = self.reader().await?;
        let row = reader
            .tx(&self.faults)
            .row("SELECT last_end_at FROM sweeps WHERE name = $1", args![name])
            .await?;
        row.map_or(Ok(None), |row| row.maybe_int("last_end_at"))
    }
}
