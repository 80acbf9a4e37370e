//! Files in the pipeline without progress for too long. SQL preselects them, and `lifecycle::diagnosis` checks their
//! jobs. A file with a valid job only waits: it is listed, but not recovered.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::diagnosis::{Fault, Job, JobState};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::recovery::{self, JobRecord};
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;

use crate::Catalog;
use crate::Scope;
use crate::database::sql::{Row, Tx, args, places};
use crate::error::CatalogError;
use crate::figures::dashboard::COUNTED_MAX;
use crate::unreadable::{SPARE_ROWS, Table, cursor_of, next_cursor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckFile {
    pub cursor: StuckCursor,
    pub file_name: String,
    pub status: Status,
    pub retry_count: u32,
    pub batch: Option<String>,
    /// The time of its last progress.
    pub updated_at: UnixMs,
    /// What is wrong with its job. None: the job is valid.
    pub fault: Option<Fault>,
}

/// The position of a file in the list of stuck files, which starts with the longest overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StuckCursor {
    pub check_at: UnixMs,
    pub file: FileId,
}

impl fmt::Display for StuckCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.check_at, self.file)
    }
}

impl FromStr for StuckCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<StuckCursor, ()> {
        let (check_at, file) = text.split_once('.').ok_or(())?;
        Ok(StuckCursor { check_at: check_at.parse().map_err(|_| ())?, file: file.parse().map_err(|_| ())? })
    }
}

/// The queues of stages, as a list in SQL.
pub(crate) static STAGE_QUEUES: LazyLock<String> = LazyLock::new(|| {
    let queues: Vec<String> = Stage::ALL.iter().map(|stage| format!("'{}'", stage.queue())).collect();
    queues.join(", ")
});

/// The stage jobs of these files. Unreadable jobs are left out: they count as missing.
pub(crate) async fn jobs_of_files(
    tx: &mut Tx<'_>,
    files: &[FileId],
    lock: &str,
) -> Result<BTreeMap<FileId, Vec<JobRecord>>, CatalogError> {
    let mut jobs: BTreeMap<FileId, Vec<JobRecord>> = BTreeMap::new();
    if files.is_empty() {
        return Ok(jobs);
    }
    let sql = format!(
        "SELECT file_id, queue, state, file_version, lease_until, deadline_at, attempts, lost_leases FROM jobs \
         WHERE file_id IN ({}) AND queue IN ({}) ORDER BY id {lock}",
        places(1, files.len()),
        *STAGE_QUEUES
    );
    for row in tx.rows_built(sql, files.iter().flat_map(|id| args![id.to_string()]).collect()).await? {
        if let (Ok(file), Ok(job)) = (row.parsed("file_id"), known_job(&row)) {
            jobs.entry(file).or_default().push(job);
        }
    }
    Ok(jobs)
}

fn known_job(row: &Row) -> Result<JobRecord, CatalogError> {
    let (queue, state) = (row.text("queue")?, row.text("state")?);
    let state = match state.as_str() {
        "waiting" => JobState::Waiting,
        "dead" => JobState::Dead,
        // A lease without an end counts as expired.
        "leased" => JobState::Leased {
            version: row.maybe_int("file_version")?.unwrap_or(0),
            until: row.maybe_int("lease_until")?.unwrap_or(i64::MIN),
            deadline_at: row.maybe_int("deadline_at")?.unwrap_or(i64::MAX),
        },
        other => return Err(CatalogError::Corrupt(format!("unknown job state {other:?}"))),
    };
    let stage = Stage::of_queue(&queue).ok_or_else(|| CatalogError::Corrupt(format!("a job of {queue}")))?;
    Ok(JobRecord {
        job: Job { stage, state },
        attempts: row.int("attempts")?,
        lost_leases: row.int("lost_leases")?,
    })
}

fn working() -> impl Iterator<Item = Status> {
    Status::ALL.into_iter().filter(|status| status.is_working())
}

/// The statuses of files in the pipeline, as a list in SQL.
pub(crate) static WORKING: LazyLock<String> =
    LazyLock::new(|| working().map(|status| format!("'{status}'")).collect::<Vec<_>>().join(", "));

/// Decodes a file with its stage and its version.
fn decode(row: &Row) -> Result<(StuckFile, Option<Stage>, i64), CatalogError> {
    let status = row.text("pipeline_status")?;
    let stage = row.maybe_text("stage")?.and_then(|stage| Stage::parse(&stage));
    let file = StuckFile {
        cursor: StuckCursor { check_at: row.int("next_check_at")?, file: row.parsed("id")? },
        file_name: row.text("file_name")?,
        status: Status::parse(&status)
            .ok_or_else(|| CatalogError::Corrupt(format!("pipeline_status holds {status:?}")))?,
        retry_count: u32::try_from(row.int("retry_count")?).unwrap_or(u32::MAX),
        batch: row.maybe_text("batch_id")?,
        updated_at: row.int("updated_at")?,
        fault: None,
    };
    Ok((file, stage, row.int("version")?))
}

pub(crate) async fn count_stuck(tx: &mut Tx<'_>, scope: &Scope, now: UnixMs) -> Result<u64, CatalogError> {
    let mut args = args![now, COUNTED_MAX as i64];
    let owned = scope.condition(&mut args);
    let sql = format!(
        "SELECT COUNT(*) AS files FROM (SELECT 1 FROM files WHERE pipeline_status IN ({}) \
         AND next_check_at <= $1 {owned} LIMIT $2) AS overdue",
        *WORKING
    );
    let rows = tx.rows_unprepared(sql, args).await?;
    rows.first().map_or(Ok(0), |row| row.bytes("files"))
}

impl Catalog {
    /// A page of files of a scope whose check was due at `overdue_at` because they made no progress, the longest overdue
    /// first. Each has what is wrong with its job now.
    pub async fn stuck_files(
        &self,
        scope: &Scope,
        (overdue_at, now): (UnixMs, UnixMs),
        after: Option<StuckCursor>,
        limit: usize,
    ) -> Result<Vec<StuckFile>, CatalogError> {
        let (at, id) =
            after.map_or((i64::MIN, String::new()), |cursor| (cursor.check_at, cursor.file.to_string()));
        let read = limit + SPARE_ROWS;
        let mut args = args![overdue_at, at, id, read as i64];
        let owned = scope.condition(&mut args);
        // One query per status reads in the order of the index. One query for all statuses would have to sort.
        let overdue: Vec<String> = working()
            .map(|status| {
                format!(
                    "SELECT * FROM (SELECT next_check_at, id FROM files WHERE pipeline_status = '{status}' \
                     AND next_check_at <= $1 AND (next_check_at, id) > ($2, $3) {owned} \
                     ORDER BY next_check_at, id LIMIT $4) AS of_{status}"
                )
            })
            .collect();
        let sql = format!(
            "WITH page AS MATERIALIZED (SELECT next_check_at, id FROM ({overdue}) AS overdue \
             ORDER BY next_check_at, id LIMIT $4) \
             SELECT f.next_check_at, f.id, f.file_name, f.pipeline_status, f.retry_count, f.batch_id, f.updated_at, \
             f.stage, f.version FROM page JOIN files f ON f.id = page.id ORDER BY f.next_check_at, f.id",
            overdue = overdue.join(" UNION ALL "),
        );
        loop {
            let mut reader = self.reader().await?;
            let rows = reader.tx(&self.faults).rows_unprepared(sql.clone(), args.clone()).await?;
            drop(reader);
            let page = self.readable_page(Table::Files, &rows, limit, decode).await;
            match next_cursor(&page, &rows, read, |row| cursor_of(row, "next_check_at")) {
                Some((at, id)) => (args[1], args[2]) = (at.into(), id.into()),
                None => return self.with_faults(page, now).await,
            }
        }
    }

    async fn with_faults(
        &self,
        page: Vec<(StuckFile, Option<Stage>, i64)>,
        now: UnixMs,
    ) -> Result<Vec<StuckFile>, CatalogError> {
        let ids: Vec<FileId> = page.iter().map(|(file, ..)| file.cursor.file).collect();
        let mut reader = self.reader().await?;
        let jobs = jobs_of_files(&mut reader.tx(&self.faults), &ids, "").await?;
        let diagnosed = page.into_iter().map(|(file, stage, version)| {
            let jobs = jobs.get(&file.cursor.file).map_or(&[][..], Vec::as_slice);
            StuckFile { fault: recovery::fault_of(file.status, stage, version, jobs, now), ..file }
        });
        Ok(diagnosed.collect())
    }

    /// How many files of a scope made no progress for too long, waiting ones included, counted up to [`COUNTED_MAX`].
    pub async fn count_stuck(&self, scope: &Scope, now: UnixMs) -> Result<u64, CatalogError> {
        let mut reader = self.reader().await?;
        count_stuck(&mut reader.tx(&self.faults), scope, now).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_formatting_and_parsing() {
        let file: FileId = "018f4e6e-7f3a-7000-8000-000000000001".parse().expect("an id");
        for check_at in [i64::MIN, -1, 0, 1_800_000_000_000] {
            let cursor = StuckCursor { check_at, file };
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for wrong in ["", ".", "1", "1.x", "x.018f4e6e-7f3a-7000-8000-000000000001"] {
            assert_eq!(wrong.parse::<StuckCursor>(), Err(()));
        }
    }
}
