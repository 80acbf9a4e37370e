//! The figures of the dashboard for a scope. They are read from counters and the ends of indexes, or counted up to
//! [`COUNTED_MAX`], so that the time does not grow with the number of files.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::{FileId, TenantId};
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;

use crate::Catalog;
use crate::Scope;
use crate::database::sql::{Row, Tx, args};
use crate::error::CatalogError;
use crate::jobs::stuck_files::count_stuck;
use crate::unreadable::{SPARE_ROWS, Table};

/// Rows are counted up to this number. It means this number or more.
pub const COUNTED_MAX: u64 = 100_000;
const ERRORS_SHOWN: usize = 10;
const DURATIONS_AVERAGED: i64 = 100;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub statuses: StatusCounts,
    /// At most [`COUNTED_MAX`].
    pub active_batches: u64,
    /// At most [`COUNTED_MAX`].
    pub stuck: u64,
    /// The newest first.
    pub recent_errors: Vec<RecentError>,
    /// The average time from confirm to ready of the last hundred files. None: no file is ready.
    pub processing_ms: Option<i64>,
    pub outcomes: Outcomes,
}

/// How many files have which status, without deleted ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusCounts {
    pub by_status: Vec<(Status, u64)>,
    /// Files that wait for each stage.
    pub waiting: Vec<(Stage, u64)>,
    pub dead_letters: u64,
}

impl StatusCounts {
    pub fn of(&self, status: Status) -> u64 {
        self.by_status.iter().find(|(counted, _)| *counted == status).map_or(0, |(_, files)| *files)
    }

    pub fn waiting_for(&self, stage: Stage) -> u64 {
        self.waiting.iter().find(|(counted, _)| *counted == stage).map_or(0, |(_, files)| *files)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentError {
    pub file: FileId,
    pub file_name: String,
    pub error: Option<String>,
    pub at: UnixMs,
}

/// How many files reached which outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    pub ready: u64,
    pub failed: u64,
    pub quarantined: u64,
}

impl Outcomes {
    fn add(&mut self, outcome: &str, files: u64) {
        match outcome {
            "ready" => self.ready += files,
            "failed" => self.failed += files,
            _ => self.quarantined += files,
        }
    }
}

/// A negative sum is shown as 0, so that the other figures can be shown. The audit reports it.
fn counted(row: &Row) -> Result<u64, CatalogError> {
    Ok(u64::try_from(row.int("files")?).unwrap_or(0))
}

async fn statuses(tx: &mut Tx<'_>, scope: &Scope) -> Result<StatusCounts, CatalogError> {
    let mut args = args![];
    let owned = scope.condition(&mut args);
    let sql = format!(
        "SELECT status, stage, CAST(SUM(files) AS BIGINT) AS files FROM file_counts \
         WHERE status <> 'deleted' {owned} GROUP BY status, stage"
    );
    let mut counts = StatusCounts::default();
    for row in tx.rows_unprepared(sql, args).await? {
        let files = counted(&row)?;
        let Some(status) = Status::parse(&row.text("status")?) else { continue };
        match counts.by_status.iter_mut().find(|(counted, _)| *counted == status) {
            Some((_, sum)) => *sum += files,
            None => counts.by_status.push((status, files)),
        }
        match (status, Stage::parse(&row.text("stage")?)) {
            (Status::Queued, Some(stage)) => counts.waiting.push((stage, files)),
            (Status::Failed, Some(_)) => counts.dead_letters += files,
            _ => {}
        }
    }
    Ok(counts)
}

async fn active_batches(tx: &mut Tx<'_>, scope: &Scope) -> Result<u64, CatalogError> {
    let mut args = args![COUNTED_MAX as i64];
    let owned = scope.condition(&mut args);
    let sql = format!(
        "SELECT COUNT(*) AS batches FROM (SELECT 1 FROM upload_batches WHERE status = 'active' {owned} LIMIT $1) AS counted"
    );
    let rows = tx.rows_unprepared(sql, args).await?;
    rows.first().map_or(Ok(0), |row| row.bytes("batches"))
}

async fn recent_errors(tx: &mut Tx<'_>, scope: &Scope) -> Result<Vec<Row>, CatalogError> {
    let mut args = args![(ERRORS_SHOWN + SPARE_ROWS) as i64];
    let owned = scope.condition(&mut args);
    let sql = format!(
        "SELECT id, file_name, error, COALESCE(failed_at, updated_at) AS at FROM files \
         WHERE pipeline_status IN ('failed', 'quarantined') {owned} \
         ORDER BY COALESCE(failed_at, updated_at) DESC LIMIT $1"
    );
    tx.rows_unprepared(sql, args).await
}

fn recent_error(row: &Row) -> Result<RecentError, CatalogError> {
    Ok(RecentError {
        file: row.parsed("id")?,
        file_name: row.text("file_name")?,
        error: row.maybe_text("error")?,
        at: row.int("at")?,
    })
}

async fn processing_ms(tx: &mut Tx<'_>, scope: &Scope) -> Result<Option<i64>, CatalogError> {
    let mut args = args![DURATIONS_AVERAGED];
    let owned = scope.condition(&mut args);
    let sql = format!(
        "SELECT CAST(AVG(ready_at - confirmed_at) AS BIGINT) AS average_ms FROM \
         (SELECT ready_at, confirmed_at FROM files WHERE pipeline_status = 'ready' {owned} \
         ORDER BY ready_at DESC LIMIT $1) AS last_ready"
    );
    let rows = tx.rows_unprepared(sql, args).await?;
    rows.first().map_or(Ok(None), |row| row.maybe_int("average_ms"))
}

async fn outcomes(tx: &mut Tx<'_>, scope: &Scope, since: UnixMs) -> Result<Outcomes, CatalogError> {
    let mut args = args![since];
    let owned = scope.condition(&mut args);
    let sql = format!(
        "SELECT outcome, CAST(SUM(files) AS BIGINT) AS files FROM file_outcomes \
         WHERE at > $1 {owned} GROUP BY outcome"
    );
    let mut outcomes = Outcomes::default();
    for row in tx.rows_unprepared(sql, args).await? {
        outcomes.add(&row.text("outcome")?, counted(&row)?);
    }
    Ok(outcomes)
}

impl Catalog {
    /// All figures. Outcomes are counted since `outcomes_since`.
    pub async fn figures(
        &self,
        scope: &Scope,
        now: UnixMs,
        outcomes_since: UnixMs,
    ) -> Result<Figures, CatalogError> {
        let mut reader = self.reader().await?;
        let mut tx = reader.tx(&self.faults);
        let errors = recent_errors(&mut tx, scope).await?;
        let mut figures = Figures {
            statuses: statuses(&mut tx, scope).await?,
            active_batches: active_batches(&mut tx, scope).await?,
            stuck: count_stuck(&mut tx, scope, now).await?,
            recent_errors: Vec::new(),
            processing_ms: processing_ms(&mut tx, scope).await?,
            outcomes: outcomes(&mut tx, scope, outcomes_since).await?,
        };
        drop(reader);
        figures.recent_errors = self.readable_page(Table::Files, &errors, ERRORS_SHOWN, recent_error).await;
        Ok(figures)
    }

    pub async fn status_counts(&self, scope: &Scope) -> Result<StatusCounts, CatalogError> {
        let mut reader = self.reader().await?;
        statuses(&mut reader.tx(&self.faults), scope).await
    }

    /// How many rows of deleted files are left.
    pub async fn tombstone_count(&self, tenant: &TenantId) -> Result<u64, CatalogError> {
        let mut reader = self.reader().await?;
        let sql = "SELECT CAST(COALESCE(SUM(files), 0) AS BIGINT) AS files FROM file_counts \
                   WHERE tenant_id = $1 AND status = 'deleted'";
        let row = reader.tx(&self.faults).row(sql, args![tenant.as_str()]).await?;
        row.as_ref().map_or(Ok(0), counted)
    }

    pub async fn count_active_batches(&self, scope: &Scope) -> Result<u64, CatalogError> {
        let mut reader = self.reader().await?;
        active_batches(&mut reader.tx(&self.faults), scope).await
    }

    /// Outcomes since a time, by quarter of an hour, oldest first. Spans without outcomes are left out.
    pub async fn trend(&self, scope: &Scope, since: UnixMs) -> Result<Vec<(UnixMs, Outcomes)>, CatalogError> {
        let mut args = args![since];
        let owned = scope.condition(&mut args);
        let sql = format!(
            "SELECT at, outcome, CAST(SUM(files) AS BIGINT) AS files FROM file_outcomes \
             WHERE at > $1 {owned} GROUP BY at, outcome ORDER BY at"
        );
        let mut reader = self.reader().await?;
        let mut spans: Vec<(UnixMs, Outcomes)> = Vec::new();
        for row in reader.tx(&self.faults).rows_unprepared(sql, args).await? {
            let at = row.int("at")?;
            if spans.last().is_none_or(|(last, _)| *last != at) {
                spans.push((at, Outcomes::default()));
            }
            if let Some((_, outcomes)) = spans.last_mut() {
                outcomes.add(&row.text("outcome")?, counted(&row)?);
            }
        }
        Ok(spans)
    }

    /// A number that changes when a file of the scope changes.
    pub async fn files_revision(&self, scope: &Scope) -> Result<i64, CatalogError> {
        let mut args = args![];
        let owned = scope.condition(&mut args);
        let sql = format!(
            "SELECT CAST(COALESCE(SUM(changes + 1), 0) AS BIGINT) AS changes FROM file_counts WHERE 1 = 1 {owned}"
        );
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_unprepared(sql, args).await?;
        rows.first().map_or(Ok(0), |row| row.int("changes"))
    }
}
