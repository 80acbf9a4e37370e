//! The history of sweeps: the last runs of each. A run under the lease has a row from its claim on. If its process is lost,
//! the row stays unfinished until the next claim closes it. Runs without the lease get their row when they end.

use uuid::Uuid;
use wharfinger_lifecycle::UnixMs;

use crate::Catalog;
use crate::database::sql::{Row, Tx, args};
use crate::error::CatalogError;
use crate::fresh_id;
use crate::sweeps::SweepRecord;
use crate::unreadable::{SPARE_ROWS, Table};

/// How many runs of a sweep are kept, besides one that is not finished.
pub const SWEEP_RUNS_KEPT: i64 = 100;
/// The error of a run whose process was lost.
pub const RUN_LOST: &str = "the process of this run was lost before its end";

/// Who started a run, and where it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunStart {
    /// A caller, or the schedule.
    pub by: String,
    /// The name of the process, as in its logs.
    pub instance: String,
    pub is_dry_run: bool,
}

/// What a finished run did, for the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunEffect {
    /// It found something, or had errors.
    #[default]
    Some,
    /// It found nothing to do.
    Idle,
    /// The same, and it replaces the last such run with the same starter. The history keeps one of them.
    StillIdle,
}

/// A run in the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRun {
    pub id: Uuid,
    pub started_at: UnixMs,
    /// None: it runs, or its process was lost.
    pub ended_at: Option<UnixMs>,
    pub start: RunStart,
    /// It found nothing to do.
    pub is_idle: bool,
    /// A JSON object.
    pub result: Option<String>,
    pub error: Option<String>,
}

/// Inserts the row of a run that has just claimed the lease; returns its id. An unfinished run before it has lost the lease.
pub(crate) async fn open(
    tx: &mut Tx<'_>,
    sweep: &str,
    start: &RunStart,
    now: UnixMs,
) -> Result<String, CatalogError> {
    tx.run(
        "UPDATE sweep_runs SET ended_at = $2, error = $3 WHERE sweep = $1 AND ended_at IS NULL",
        args![sweep, now, RUN_LOST],
    )
    .await?;
    let id = fresh_id(now).to_string();
    tx.run(
        "INSERT INTO sweep_runs (id, sweep, started_at, dry_run, started_by, instance, idle) \
         VALUES ($1, $2, $3, $4, $5, $6, 0)",
        args![
            id.as_str(),
            sweep,
            now,
            i64::from(start.is_dry_run),
            start.by.as_str(),
            start.instance.as_str()
        ],
    )
    .await?;
    // Here too: runs whose processes are lost again and again do not reach `close`.
    trim(tx, sweep, SWEEP_RUNS_KEPT + 1).await?;
    Ok(id)
}

/// Writes the end of a run into its row. Without a row, the run had no lease.
pub(crate) async fn close(
    tx: &mut Tx<'_>,
    run: Option<&str>,
    record: &SweepRecord,
) -> Result<(), CatalogError> {
    let SweepRecord { name, start, .. } = record;
    let is_idle = record.effect != RunEffect::Some;
    let id = run.map_or_else(|| fresh_id(record.started_at).to_string(), str::to_owned);
    tx.run(
        "INSERT INTO sweep_runs (id, sweep, started_at, ended_at, dry_run, started_by, instance, idle, result, error) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (id) DO UPDATE SET \
         ended_at = excluded.ended_at, idle = excluded.idle, result = excluded.result, error = excluded.error",
        args![
            id.as_str(),
            *name,
            record.started_at,
            record.ended_at,
            i64::from(start.is_dry_run),
            start.by.as_str(),
            start.instance.as_str(),
            i64::from(is_idle),
            record.result.as_deref(),
            record.error.as_deref(),
        ],
    )
    .await?;
    if record.effect == RunEffect::StillIdle {
        tx.run(
            "DELETE FROM sweep_runs WHERE sweep = $1 AND idle = 1 AND dry_run = $2 AND started_by = $3 AND id <> $4",
            args![*name, i64::from(start.is_dry_run), start.by.as_str(), id],
        )
        .await?;
    }
    trim(tx, name, SWEEP_RUNS_KEPT).await
}

/// Deletes all runs except the newest.
async fn trim(tx: &mut Tx<'_>, sweep: &str, kept: i64) -> Result<(), CatalogError> {
    tx.run(
        "DELETE FROM sweep_runs WHERE sweep = $1 AND id < \
         (SELECT id FROM sweep_runs WHERE sweep = $1 ORDER BY id DESC LIMIT 1 OFFSET $2)",
        args![sweep, kept - 1],
    )
    .await?;
    Ok(())
}

pub(crate) fn decode(row: &Row) -> Result<RecordedRun, CatalogError> {
    Ok(RecordedRun {
        id: row.parsed("id")?,
        started_at: row.int("started_at")?,
        ended_at: row.maybe_int("ended_at")?,
        start: RunStart {
            by: row.text("started_by")?,
            instance: row.text("instance")?,
            is_dry_run: row.int("dry_run")? != 0,
        },
        is_idle: row.int("idle")? != 0,
        result: row.maybe_text("result")?,
        error: row.maybe_text("error")?,
    })
}

impl Catalog {
    /// The runs of a sweep, the last started first, started before `before`.
    pub async fn sweep_runs(
        &self,
        sweep: &'static str,
        before: Option<Uuid>,
        limit: usize,
    ) -> Result<Vec<RecordedRun>, CatalogError> {
        let before = before.map_or_else(|| "~".to_owned(), |id| id.to_string());
        let sql = "SELECT id, started_at, ended_at, dry_run, started_by, instance, idle, result, error \
                   FROM sweep_runs WHERE sweep = $1 AND id < $2 ORDER BY id DESC LIMIT $3";
        let mut reader = self.reader().await?;
        let rows =
            reader.tx(&self.faults).rows(sql, args![sweep, before, (limit + SPARE_ROWS) as i64]).await?;
        drop(reader);
        Ok(self.readable_page(Table::SweepRuns, &rows, limit, decode).await)
    }
}
