//! Reads of files: one, a page, their history, and those that are due for a sweep.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::{EndReason, File, Pin};
use wharfinger_lifecycle::id::{FileId, TenantId, UserId};
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::quarantine::QuarantineCause;
use wharfinger_lifecycle::stage::{self, Stage};
use wharfinger_lifecycle::state::Status;
use wharfinger_lifecycle::text_status::TextStatus;

use crate::Catalog;
use crate::Scope;
use crate::database::sql::{Row, args, places};
use crate::error::CatalogError;
use crate::unreadable::{SPARE_ROWS, Table, cursor_of, next_cursor};

/// A query for whole files; the text is fixed at compile time.
macro_rules! select_files {
    ($rest:literal) => {
        concat!(
            "SELECT id, tenant_id, user_id, batch_id, file_name, size, content_type, checksum_sha256, metadata, ",
            "blob_path, pipeline_status, version, charged_bytes, retry_count, error, etag, object_version, ",
            "end_reason, url_dead_at, next_check_at, created_at, updated_at, confirmed_at, ready_at, part_size, ",
            "stages, stage, text_status, quarantine, failed_at, warned_at FROM files ",
            $rest
        )
    };
}

pub(crate) use select_files;

pub(crate) fn user_of(row: &Row) -> Result<UserId, CatalogError> {
    named("user_id", UserId::new(&row.text("user_id")?))
}

fn named<T, E>(column: &str, name: Result<T, E>) -> Result<T, CatalogError> {
    name.map_err(|_| CatalogError::Corrupt(format!("{column} holds an invalid value")))
}

pub(crate) fn decode(row: &Row) -> Result<File, CatalogError> {
    let status = row.text("pipeline_status")?;
    let etag = row.maybe_text("etag")?;
    let version_id = row.maybe_text("object_version")?;
    let batch = row.maybe_text("batch_id")?;
    let (stages, stage) = (row.maybe_text("stages")?, row.maybe_text("stage")?);
    let (text_status, quarantine) = (row.maybe_text("text_status")?, row.maybe_text("quarantine")?);
    Ok(File {
        id: row.parsed("id")?,
        tenant: named("tenant_id", TenantId::new(&row.text("tenant_id")?))?,
        user: user_of(row)?,
        batch: batch.map(|id| named("batch_id", id.parse())).transpose()?,
        name: row.text("file_name")?,
        size: row.bytes("size")?,
        part_size: row.maybe_int("part_size")?.and_then(|size| u64::try_from(size).ok()),
        content_type: row.maybe_text("content_type")?,
        checksum_sha256: row.maybe_text("checksum_sha256")?,
        metadata: row.maybe_text("metadata")?,
        key: named("blob_path", ObjectKey::parse(&row.text("blob_path")?))?,
        status: Status::parse(&status)
            .ok_or_else(|| CatalogError::Corrupt(format!("pipeline_status holds {status:?}")))?,
        version: row.int("version")?,
        charged_bytes: row.bytes("charged_bytes")?,
        retry_count: u32::try_from(row.int("retry_count")?).unwrap_or(u32::MAX),
        error: row.maybe_text("error")?,
        stages: stages.map(|list| named("stages", stage::parse_list(&list))).transpose()?,
        stage: stage.map(|word| named("stage", Stage::parse(&word).ok_or(()))).transpose()?,
        text_status: text_status
            .map(|word| named("text_status", TextStatus::parse(&word).ok_or(())))
            .transpose()?,
        pin: etag.map(|etag| Pin { etag, version_id }),
        ended: row.maybe_text("end_reason")?.as_deref().and_then(EndReason::parse),
        url_dead_at: row.int("url_dead_at")?,
        next_check_at: row.maybe_int("next_check_at")?,
        created_at: row.int("created_at")?,
        updated_at: row.int("updated_at")?,
        confirmed_at: row.maybe_int("confirmed_at")?,
        ready_at: row.maybe_int("ready_at")?,
        quarantine: quarantine
            .map(|word| named("quarantine", QuarantineCause::parse(&word).ok_or(())))
            .transpose()?,
        failed_at: row.maybe_int("failed_at")?,
        warned_at: row.maybe_int("warned_at")?,
    })
}

/// When an unconfirmed upload is abandoned: it is in no active batch, it has not changed since `unchanged_since`, and a transfer
/// of its size at `min_rate_bytes` per second would be over.
#[derive(Clone, Copy, Debug)]
pub struct AbandonedRule {
    pub unchanged_since: UnixMs,
    pub now: UnixMs,
    pub min_rate_bytes: i64,
}

/// The same as an SQL condition, with `$1` to `$3`.
macro_rules! is_abandoned {
    () => {
        "files.pipeline_status = 'registered' AND files.next_check_at IS NOT NULL AND files.updated_at <= $1 \
         AND files.updated_at + files.size * 1000 / $3 <= $2 AND NOT EXISTS (SELECT 1 FROM upload_batches \
         WHERE upload_batches.id = files.batch_id AND upload_batches.status = 'active')"
    };
}

pub(crate) use is_abandoned;

/// The statuses of files that are deleted at the end of a retention, after a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedStatus {
    Failed,
    Quarantined,
}

macro_rules! failed_by {
    ($status:literal) => {
        concat!(
            "SELECT failed_at, id FROM files WHERE pipeline_status = '",
            $status,
            "' AND failed_at <= $1 AND (failed_at, id) > ($2, $3) ORDER BY failed_at, id LIMIT $4"
        )
    };
}

/// One line of a file's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryLine {
    pub at: UnixMs,
    pub from: Option<Status>,
    pub to: Status,
    pub reason: String,
    pub actor: String,
}

impl Catalog {
    /// Those of these files that exist and can be read.
    pub async fn files_by_id(&self, ids: &[FileId]) -> Result<Vec<File>, CatalogError> {
        let mut files = Vec::with_capacity(ids.len());
        let mut reader = self.reader().await?;
        let mut tx = reader.tx(&self.faults);
        for some in ids.chunks(tx.dialect().rows_max()) {
            let sql = format!("{} WHERE id IN ({})", select_files!(""), places(1, some.len()));
            let rows = tx.rows_built(sql, some.iter().flat_map(|id| args![id.to_string()]).collect()).await?;
            files.extend(rows.iter().filter_map(|row| decode(row).ok()));
        }
        Ok(files)
    }

    pub async fn file(&self, id: FileId) -> Result<Option<File>, CatalogError> {
        let mut reader = self.reader().await?;
        let sql = select_files!("WHERE id = $1");
        let rows = reader.tx(&self.faults).rows(sql, args![id.to_string()]).await?;
        drop(reader);
        Ok(self.all_readable(Table::Files, "id", &rows, decode).await?.pop())
    }

    /// Newest first, without deleted ones, older than `before`.
    pub async fn files(
        &self,
        scope: &Scope,
        before: Option<FileId>,
        limit: usize,
    ) -> Result<Vec<File>, CatalogError> {
        let before = before.map_or_else(|| "~".to_owned(), |id| id.to_string());
        let read = (limit + SPARE_ROWS) as i64;
        let (sql, args) = match scope {
            Scope::User(tenant, user) => (
                select_files!(
                    "WHERE tenant_id = $3 AND user_id = $4 AND id < $1 AND pipeline_status <> 'deleted' \
                     ORDER BY id DESC LIMIT $2"
                ),
                args![before, read, tenant.as_str(), user.as_str()],
            ),
            Scope::Tenant(tenant) => (
                select_files!(
                    "WHERE tenant_id = $3 AND id < $1 AND pipeline_status <> 'deleted' \
                     ORDER BY id DESC LIMIT $2"
                ),
                args![before, read, tenant.as_str()],
            ),
            Scope::All => (
                select_files!("WHERE id < $1 AND pipeline_status <> 'deleted' ORDER BY id DESC LIMIT $2"),
                args![before, read],
            ),
        };
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows(sql, args).await?;
        Ok(self.readable_page(Table::Files, &rows, limit, decode).await)
    }

    pub async fn history(&self, id: FileId) -> Result<Vec<HistoryLine>, CatalogError> {
        let mut reader = self.reader().await?;
        let rows = reader
            .tx(&self.faults)
            .rows(
                "SELECT at, from_status, to_status, reason, actor FROM file_history \
                 WHERE file_id = $1 ORDER BY version",
                args![id.to_string()],
            )
            .await?;
        let status = |word: String| {
            Status::parse(&word).ok_or_else(|| CatalogError::Corrupt(format!("history holds {word:?}")))
        };
        rows.iter()
            .map(|row| {
                Ok(HistoryLine {
                    at: row.int("at")?,
                    from: row.maybe_text("from_status")?.map(status).transpose()?,
                    to: status(row.text("to_status")?)?,
                    reason: row.text("reason")?,
                    actor: row.text("actor")?,
                })
            })
            .collect()
    }

    /// A page of files of a status whose check is due, with the time of the check, oldest first. The cursor lets a sweep
    /// get past files that it cannot read or repair.
    pub async fn files_to_check(
        &self,
        status: Status,
        now: UnixMs,
        after: Option<(UnixMs, FileId)>,
        limit: usize,
    ) -> Result<Vec<(UnixMs, FileId)>, CatalogError> {
        let (mut at, mut id) = after.map_or((i64::MIN, String::new()), |(at, id)| (at, id.to_string()));
        let decode = |row: &Row| Ok((row.int("next_check_at")?, row.parsed("id")?));
        loop {
            let mut reader = self.reader().await?;
            let rows = reader
                .tx(&self.faults)
                .rows(
                    "SELECT next_check_at, id FROM files WHERE pipeline_status = $5 \
                     AND next_check_at <= $1 AND (next_check_at, id) > ($2, $3) ORDER BY next_check_at, id LIMIT $4",
                    args![now, at, id.as_str(), limit as i64, status.as_str()],
                )
                .await?;
            drop(reader);
            let page = self.readable(Table::Files, "id", &rows, decode).await;
            match next_cursor(&page, &rows, limit, |row| cursor_of(row, "next_check_at")) {
                Some(next) => (at, id) = next,
                None => return Ok(page),
            }
        }
    }

    /// A page of abandoned uploads, in the order of their next checks.
    pub async fn abandoned_uploads(
        &self,
        by: AbandonedRule,
        after: Option<(UnixMs, FileId)>,
        limit: usize,
    ) -> Result<Vec<(UnixMs, FileId)>, CatalogError> {
        let (mut at, mut id) = after.map_or((i64::MIN, String::new()), |(at, id)| (at, id.to_string()));
        let decode = |row: &Row| Ok((row.int("next_check_at")?, row.parsed("id")?));
        loop {
            let mut reader = self.reader().await?;
            let rows = reader
                .tx(&self.faults)
                .rows(
                    concat!(
                        "SELECT next_check_at, id FROM files WHERE ",
                        is_abandoned!(),
                        " AND (next_check_at, id) > ($4, $5) ORDER BY next_check_at, id LIMIT $6"
                    ),
                    args![by.unchanged_since, by.now, by.min_rate_bytes, at, id.as_str(), limit as i64],
                )
                .await?;
            drop(reader);
            let page = self.readable(Table::Files, "id", &rows, decode).await;
            match next_cursor(&page, &rows, limit, |row| cursor_of(row, "next_check_at")) {
                Some(next) => (at, id) = next,
                None => return Ok(page),
            }
        }
    }

    /// A page of failed or of quarantined files that got this status until `by`, with the time, oldest first.
    pub async fn files_failed_by(
        &self,
        status: FailedStatus,
        by: UnixMs,
        after: Option<(UnixMs, FileId)>,
        limit: usize,
    ) -> Result<Vec<(UnixMs, FileId)>, CatalogError> {
        let (mut at, mut id) = after.map_or((i64::MIN, String::new()), |(at, id)| (at, id.to_string()));
        let decode = |row: &Row| Ok((row.int("failed_at")?, row.parsed("id")?));
        // The status is part of the text, so that the partial index can be used.
        let sql = match status {
            FailedStatus::Failed => failed_by!("failed"),
            FailedStatus::Quarantined => failed_by!("quarantined"),
        };
        loop {
            let mut reader = self.reader().await?;
            let rows = reader.tx(&self.faults).rows(sql, args![by, at, id.as_str(), limit as i64]).await?;
            drop(reader);
            let page = self.readable(Table::Files, "id", &rows, decode).await;
            match next_cursor(&page, &rows, limit, |row| cursor_of(row, "failed_at")) {
                Some(next) => (at, id) = next,
                None => return Ok(page),
            }
        }
    }
}
