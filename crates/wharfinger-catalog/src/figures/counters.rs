//! Counters that change in the transaction of the files they count: how many files are in each status, and how many reached
//! which outcome when. Both are derived from the file before and after a change.

use std::collections::BTreeMap;

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::{Change, File};
use wharfinger_lifecycle::id::{TenantId, UserId};
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;

use crate::Catalog;
use crate::database::sql::signed;
use crate::database::sql::{Tx, args, typed_rows};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;

/// Outcomes are counted per quarter of an hour.
pub const OUTCOME_SPAN_MS: i64 = 900_000;
/// Older outcomes are not counted any more. The dashboard shows half of this time.
const OUTCOMES_COUNTED_MS: i64 = 2 * 86_400_000;
const OUTCOMES_KEPT_MS: i64 = 3 * 86_400_000;

/// The stage by which a file is counted: the one that it waits for, or that of its dead letter.
pub(crate) fn counted_stage(file: &File) -> &'static str {
    match file.status {
        Status::Queued | Status::Failed => file.stage.map_or("", Stage::as_str),
        _ => "",
    }
}

/// The outcome of a file, and its time.
fn outcome(file: &File) -> Option<(&'static str, UnixMs)> {
    let at = match file.status {
        Status::Ready => file.ready_at,
        Status::Failed | Status::Quarantined => file.failed_at,
        _ => return None,
    };
    Some((file.status.as_str(), at.unwrap_or(file.updated_at)))
}

/// Counts changed files.
pub(crate) async fn changed(tx: &mut Tx<'_>, changes: &[&Change]) -> Result<(), CatalogError> {
    let both = || changes.iter().flat_map(|change| [(&change.before, -1), (&change.after, 1)]);
    count_statuses(tx, both()).await?;
    let now = changes.iter().map(|change| change.after.updated_at).max().unwrap_or_default();
    count_outcomes(tx, both(), now).await
}

/// Counts new files.
pub(crate) async fn added(tx: &mut Tx<'_>, files: impl Iterator<Item = &File>) -> Result<(), CatalogError> {
    count_statuses(tx, files.map(|file| (file, 1))).await
}

/// Raises `changes` for a change that is no change of a file, such as the end of a batch.
pub(crate) async fn record_other_change(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    user: &UserId,
) -> Result<(), CatalogError> {
    tx.run(
        "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) \
         VALUES ($1, $2, 'registered', '', 0, 0) \
         ON CONFLICT (tenant_id, user_id, status, stage) DO UPDATE SET changes = file_counts.changes + 1",
        args![tenant.as_str(), user.as_str()],
    )
    .await?;
    Ok(())
}

/// Counts removed rows.
pub(crate) async fn removed(tx: &mut Tx<'_>, files: &[&File]) -> Result<(), CatalogError> {
    count_statuses(tx, files.iter().map(|file| (*file, -1))).await
}

/// Updates each counter once and in a fixed order, so that two transactions of one user do not deadlock.
async fn count_statuses(
    tx: &mut Tx<'_>,
    files: impl Iterator<Item = (&File, i64)>,
) -> Result<(), CatalogError> {
    let mut changed_by: BTreeMap<(&str, &str, &str, &str), (i64, i64)> = BTreeMap::new();
    for (file, sign) in files {
        let counter = (file.tenant.as_str(), file.user.as_str(), file.status.as_str(), counted_stage(file));
        let (files, bytes) = changed_by.entry(counter).or_default();
        *files += sign;
        *bytes += sign * signed(file.charged_bytes);
    }
    // A counter with a change of 0 is written, too: it raises `changes`, so that readers notice the changed file.
    let changed_by: Vec<_> = changed_by.into_iter().collect();
    for some in changed_by.chunks(tx.dialect().rows_max()) {
        let sql = format!(
            "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) VALUES {} \
             ON CONFLICT (tenant_id, user_id, status, stage) DO UPDATE SET \
             files = file_counts.files + excluded.files, \
             charged_bytes = file_counts.charged_bytes + excluded.charged_bytes, \
             changes = file_counts.changes + 1",
            typed_rows(1, &["TEXT", "TEXT", "TEXT", "TEXT", "BIGINT", "BIGINT"], some.len())
        );
        let rows = some.iter().flat_map(|((tenant, user, status, stage), (files, bytes))| {
            args![*tenant, *user, *status, *stage, *files, *bytes]
        });
        tx.run_built(sql, rows.collect()).await?;
    }
    Ok(())
}

/// Outcomes that are too old to be shown are not updated.
async fn count_outcomes(
    tx: &mut Tx<'_>,
    files: impl Iterator<Item = (&File, i64)>,
    now: UnixMs,
) -> Result<(), CatalogError> {
    let mut changed_by: BTreeMap<(&str, &str, i64, &str), i64> = BTreeMap::new();
    for (file, sign) in files {
        let Some((outcome, at)) = outcome(file).filter(|(_, at)| *at > now - OUTCOMES_COUNTED_MS) else {
            continue;
        };
        let span = at.div_euclid(OUTCOME_SPAN_MS) * OUTCOME_SPAN_MS;
        *changed_by.entry((file.tenant.as_str(), file.user.as_str(), span, outcome)).or_default() += sign;
    }
    changed_by.retain(|_, files| *files != 0);
    let changed_by: Vec<_> = changed_by.into_iter().collect();
    for some in changed_by.chunks(tx.dialect().rows_max()) {
        let sql = format!(
            "INSERT INTO file_outcomes (tenant_id, user_id, at, outcome, files) VALUES {} \
             ON CONFLICT (tenant_id, user_id, at, outcome) DO UPDATE SET \
             files = file_outcomes.files + excluded.files",
            typed_rows(1, &["TEXT", "TEXT", "BIGINT", "TEXT", "BIGINT"], some.len())
        );
        let rows = some
            .iter()
            .flat_map(|((tenant, user, at, outcome), files)| args![*tenant, *user, *at, *outcome, *files]);
        tx.run_built(sql, rows.collect()).await?;
    }
    Ok(())
}

struct PurgeOutcomes {
    before: UnixMs,
}

impl Write for PurgeOutcomes {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<u64>, CatalogError> {
        Ok(match tx.run("DELETE FROM file_outcomes WHERE at < $1", args![self.before]).await? {
            0 => TxOutcome::Rollback(0),
            deleted => TxOutcome::Commit(deleted),
        })
    }
}

impl Catalog {
    /// Deletes outcomes that are too old to be shown; returns how many.
    pub async fn purge_outcomes(&self, now: UnixMs) -> Result<u64, CatalogError> {
        self.write(PurgeOutcomes { before: now - OUTCOMES_KEPT_MS }).await
    }
}
