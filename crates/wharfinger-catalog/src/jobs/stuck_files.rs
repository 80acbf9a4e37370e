//! Files in the pipeline that did not get on for too long, and what is wrong with the job of each. A file whose job is
//! sound only waits: it is listed, and left alone.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;

use crate::Catalog;
use crate::Scope;
use crate::database::sql::{Row, args};
use crate::error::CatalogError;
use crate::unreadable::{SPARE_ROWS, Table};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckFile {
    pub place: StuckPlace,
    pub file_name: String,
    pub status: Status,
    pub retry_count: u32,
    pub batch: Option<String>,
    /// When it last got on.
    pub updated_at: UnixMs,
    /// What is wrong with its job; none: it is sound.
    pub fault: Option<String>,
}

/// Where a file stands among those that are stuck, the longest overdue first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StuckPlace {
    pub look_at: UnixMs,
    pub file: FileId,
}

impl fmt::Display for StuckPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.look_at, self.file)
    }
}

impl FromStr for StuckPlace {
    type Err = ();

    fn from_str(text: &str) -> Result<StuckPlace, ()> {
        let (look_at, file) = text.split_once('.').ok_or(())?;
        Ok(StuckPlace { look_at: look_at.parse().map_err(|_| ())?, file: file.parse().map_err(|_| ())? })
    }
}

/// The queues of stages, as a list in SQL.
pub(crate) static STAGE_QUEUES: LazyLock<String> = LazyLock::new(|| {
    let queues: Vec<String> = Stage::ALL.iter().map(|stage| format!("'{}'", stage.queue())).collect();
    queues.join(", ")
});

/// What is wrong with the job of a row `f` of `files` at the time `$1`, in words; NULL where it is sound: the only one,
/// in the queue of the file's stage, and either it waits with the file or a worker holds both and is in time.
/// This is the one definition: whoever lists and whoever mends ask by it.
pub(crate) static FAULT: LazyLock<String> = LazyLock::new(|| {
    let by_stage = |word: fn(Stage) -> &'static str| {
        let cases =
            Stage::ALL.iter().map(|stage| format!("WHEN '{}' THEN '{}'", stage.as_str(), word(*stage)));
        format!("COALESCE(CASE f.stage {} END, '')", cases.collect::<Vec<_>>().join(" "))
    };
    format!(
        "(SELECT CASE COUNT(*) WHEN 0 THEN 'its job was missing' WHEN 1 THEN MAX(CASE \
         WHEN j.state = 'dead' THEN 'its job was dead' \
         WHEN j.queue <> {queue} THEN 'its job was for another stage' \
         WHEN j.state = 'waiting' AND f.pipeline_status = 'queued' THEN NULL \
         WHEN j.state = 'waiting' OR f.pipeline_status <> {status} THEN 'its job was not where the file is' \
         WHEN COALESCE(j.file_version, 0) <> f.version THEN 'its worker held an older version of it' \
         WHEN j.deadline_at <= $1 THEN 'its worker took longer than it may' \
         WHEN j.lease_until <= $1 THEN 'its worker did not come back' END) \
         ELSE 'it had several jobs' END FROM jobs j WHERE j.file_id = f.id AND j.queue IN ({queues}))",
        queue = by_stage(Stage::queue),
        status = by_stage(|stage| stage.status().as_str()),
        queues = *STAGE_QUEUES,
    )
});

fn working() -> impl Iterator<Item = Status> {
    Status::ALL.into_iter().filter(|status| status.is_working())
}

/// The statuses of files in work, as a list in SQL.
pub(crate) static WORKING: LazyLock<String> =
    LazyLock::new(|| working().map(|status| format!("'{status}'")).collect::<Vec<_>>().join(", "));

fn decode(row: &Row) -> Result<StuckFile, CatalogError> {
    let status = row.text("pipeline_status")?;
    Ok(StuckFile {
        place: StuckPlace { look_at: row.int("next_look_at")?, file: row.parsed("id")? },
        file_name: row.text("file_name")?,
        status: Status::parse(&status)
            .ok_or_else(|| CatalogError::Corrupt(format!("pipeline_status holds {status:?}")))?,
        retry_count: u32::try_from(row.int("retry_count")?).unwrap_or(u32::MAX),
        batch: row.maybe_text("batch_id")?,
        updated_at: row.int("updated_at")?,
        fault: row.maybe_text("fault")?,
    })
}

impl Catalog {
    /// Files of a scope that were to be looked at by `overdue_at` because they had not got on, the longest overdue
    /// first, after a place in that order; each with what is wrong with its job now.
    pub async fn stuck_files(
        &self,
        scope: &Scope,
        (overdue_at, now): (UnixMs, UnixMs),
        after: Option<StuckPlace>,
        limit: usize,
    ) -> Result<Vec<StuckFile>, CatalogError> {
        let (at, id) =
            after.map_or((i64::MIN, String::new()), |place| (place.look_at, place.file.to_string()));
        let mut args = args![now, at, id, (limit + SPARE_ROWS) as i64, overdue_at];
        let owned = scope.condition(&mut args);
        // Each status in the order of its index: of all at once they would have to be sorted.
        let overdue: Vec<String> = working()
            .map(|status| {
                format!(
                    "SELECT * FROM (SELECT next_look_at, id FROM files WHERE pipeline_status = '{status}' \
                     AND next_look_at <= $5 AND (next_look_at, id) > ($2, $3) {owned} \
                     ORDER BY next_look_at, id LIMIT $4) AS of_{status}"
                )
            })
            .collect();
        let sql = format!(
            "WITH page AS MATERIALIZED (SELECT next_look_at, id FROM ({overdue}) AS overdue \
             ORDER BY next_look_at, id LIMIT $4) \
             SELECT f.next_look_at, f.id, f.file_name, f.pipeline_status, f.retry_count, f.batch_id, f.updated_at, \
             {fault} AS fault FROM page JOIN files f ON f.id = page.id ORDER BY f.next_look_at, f.id",
            overdue = overdue.join(" UNION ALL "),
            fault = *FAULT,
        );
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_planned_anew(sql, args).await?;
        Ok(self.readable_page(Table::Files, &rows, limit, decode).await)
    }

    /// How many files of a scope have not got on for too long, those that only wait among them.
    pub async fn count_stuck(&self, scope: &Scope, now: UnixMs) -> Result<u64, CatalogError> {
        let mut args = args![now];
        let owned = scope.condition(&mut args);
        let sql = format!(
            "SELECT COUNT(*) AS files FROM files WHERE pipeline_status IN ({}) AND next_look_at <= $1 {owned}",
            *WORKING
        );
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_built(sql, args).await?;
        rows.first().map_or(Ok(0), |row| row.bytes("files"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_leads_back_to_itself() {
        let file: FileId = "018f4e6e-7f3a-7000-8000-000000000001".parse().expect("an id");
        for look_at in [i64::MIN, -1, 0, 1_800_000_000_000] {
            let place = StuckPlace { look_at, file };
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        for wrong in ["", ".", "1", "1.x", "x.018f4e6e-7f3a-7000-8000-000000000001"] {
            assert_eq!(wrong.parse::<StuckPlace>(), Err(()));
        }
    }
}
