//! The state of each sweep: its last run and result, its next run, its lease, and the fence that rejects writes of a
//! process that lost the lease.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::limits::{ERROR_TEXT_BYTES_MAX, clip};

use crate::Catalog;
use crate::OutboxTargets;
use crate::database::sql::{Row, Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::leases::engine::{self, Claim};
use crate::leases::tables::SWEEPS;
use crate::outbox::lines;
use crate::sweep_runs::{self, RunEffect, RunStart};
use crate::unreadable::Table;

/// A finished run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepRecord {
    pub name: &'static str,
    pub start: RunStart,
    pub effect: RunEffect,
    /// It was stopped before its end, and the next run continues.
    pub is_stopped: bool,
    pub started_at: UnixMs,
    pub ended_at: UnixMs,
    /// A JSON object.
    pub result: Option<String>,
    pub error: Option<String>,
}

/// The last run of a sweep, and its current or next one.
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

/// A try to lease a sweep.
#[derive(Clone, Debug)]
pub struct SweepClaim {
    pub name: &'static str,
    /// The name of the process, shown to operators.
    pub owner: String,
    pub now: UnixMs,
    pub lease_ms: i64,
    /// False: a person runs it now, due or not.
    pub only_if_due: bool,
    pub start: RunStart,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SweepClaimOutcome {
    Leased(Fence),
    /// The sweep is not due.
    NotDue {
        next_run_at: UnixMs,
    },
    /// Another process has the lease. It may have died.
    Taken {
        owner: String,
        lease_until: UnixMs,
    },
}

/// A write of a sweep is accepted only while the row of the sweep still has this number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    sweep: &'static str,
    number: i64,
    /// The row of this run in the history.
    run: String,
}

impl Fence {
    /// Fails if another process has claimed the sweep since. Blocks claims until this transaction ends.
    pub(crate) async fn check(&self, tx: &mut Tx<'_>) -> Result<(), CatalogError> {
        // SQLite has one writer and needs no lock.
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

impl SweepRecord {
    /// Writes the end of a run; `run` is its row in the history, if it has one.
    async fn write_end(
        &self,
        tx: &mut Tx<'_>,
        run: Option<&str>,
        targets: OutboxTargets,
    ) -> Result<(), CatalogError> {
        // The last run of a sweep is one that did all its work.
        if !self.start.is_dry_run && !self.is_stopped {
            if targets.slack {
                self.alert_first_error(tx).await?;
            }
            self.write_last_run(tx).await?;
        }
        sweep_runs::close(tx, run, self).await
    }

    /// Only the first of several runs with errors is reported, because some sweeps run every minute.
    async fn alert_first_error(&self, tx: &mut Tx<'_>) -> Result<(), CatalogError> {
        let Some(error) = &self.error else { return Ok(()) };
        let row = tx.row("SELECT last_error FROM sweeps WHERE name = $1", args![self.name]).await?;
        let before = row.map_or(Ok(None), |row| row.maybe_text("last_error"))?;
        if before.is_none() {
            let message =
                format!("The sweep {} had errors: {}", self.name, clip(error, ERROR_TEXT_BYTES_MAX));
            lines::alert(tx, message, self.ended_at).await?;
        }
        Ok(())
    }

    async fn write_last_run(&self, tx: &mut Tx<'_>) -> Result<(), CatalogError> {
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
        Ok(())
    }
}

/// Records a run that had no lease.
struct RecordRun {
    record: SweepRecord,
    targets: OutboxTargets,
}

impl Write for RecordRun {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        self.record.write_end(tx, None, self.targets).await?;
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
            let run = sweep_runs::open(tx, self.name, &self.start, self.now).await?;
            let fence = Fence { sweep: self.name, number: row.int("lease_token")?, run };
            return Ok(TxOutcome::Commit(SweepClaimOutcome::Leased(fence)));
        }
        let sql = "SELECT next_run_at, lease_owner, lease_until FROM sweeps WHERE name = $1";
        let row = tx.row(sql, args![self.name]).await?.ok_or(CatalogError::Stale)?;
        let lease_until = row.int("lease_until")?;
        Ok(TxOutcome::Rollback(match row.maybe_int("next_run_at")? {
            Some(next_run_at) if lease_until <= self.now => SweepClaimOutcome::NotDue { next_run_at },
            _ => SweepClaimOutcome::Taken {
                owner: row.maybe_text("lease_owner")?.unwrap_or_default(),
                lease_until,
            },
        }))
    }
}

/// Extends the lease of a sweep.
struct ExtendLease {
    fence: Fence,
    lease_until: UnixMs,
}

impl Write for ExtendLease {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        let Fence { sweep, number, .. } = &self.fence;
        engine::renew(tx, &SWEEPS, (sweep, *number), self.lease_until).await?;
        Ok(TxOutcome::Commit(()))
    }
}

/// Records a run and ends its lease.
struct EndRun {
    fence: Fence,
    record: SweepRecord,
    next_run_at: Option<UnixMs>,
    targets: OutboxTargets,
}

impl Write for EndRun {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        let Fence { sweep, number, run } = &self.fence;
        self.record.write_end(tx, Some(run), self.targets).await?;
        let held = "name = $2 AND lease_token = $3";
        engine::release(tx, &SWEEPS, held, self.next_run_at, &[], args![*sweep, *number]).await?;
        Ok(TxOutcome::Commit(()))
    }
}

/// Moves the next run from one time to another, if it still has the first. Otherwise the sweep has run since.
struct AdvanceNextRun {
    name: &'static str,
    from: UnixMs,
    to: UnixMs,
}

impl Write for AdvanceNextRun {
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
    /// Records a run that had no lease.
    pub async fn record_sweep(&self, record: SweepRecord) -> Result<(), CatalogError> {
        self.write(RecordRun { record, targets: self.rows.targets }).await
    }

    /// Leases the sweep if it is due and not leased. Of many callers one gets it.
    pub async fn claim_sweep(&self, claim: SweepClaim) -> Result<SweepClaimOutcome, CatalogError> {
        self.write(claim).await
    }

    /// This catalog for the writes of a sweep. Once another process has claimed the sweep, each write fails with
    /// [`CatalogError::Fenced`] and changes nothing.
    pub fn fenced(&self, fence: Fence) -> Catalog {
        Catalog { fence: Some(fence), ..self.clone() }
    }

    /// Extends the lease of the sweep that this catalog is fenced for.
    pub async fn extend_sweep(&self, lease_until: UnixMs) -> Result<(), CatalogError> {
        self.write(ExtendLease { fence: self.own_fence()?, lease_until }).await
    }

    /// Records a run and releases its lease. Without a time, the next run keeps its time: a sweep that was due stays due.
    pub async fn end_sweep(
        &self,
        record: SweepRecord,
        next_run_at: Option<UnixMs>,
    ) -> Result<(), CatalogError> {
        let fence = self.own_fence()?;
        self.write(EndRun { fence, record, next_run_at, targets: self.rows.targets }).await
    }

    fn own_fence(&self) -> Result<Fence, CatalogError> {
        self.fence.clone().ok_or(CatalogError::Fenced)
    }

    /// Moves the next run to an earlier time, after the schedule was changed.
    pub async fn advance_sweep(
        &self,
        name: &'static str,
        from: UnixMs,
        to: UnixMs,
    ) -> Result<(), CatalogError> {
        self.write(AdvanceNextRun { name, from, to }).await
    }

    /// All sweeps that were ever claimed or recorded, in no order.
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
