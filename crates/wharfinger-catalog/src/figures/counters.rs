//! Counters that change in the same commit as the files they count: how many are in each status, and how many came to
//! which end when. Both follow from the rows alone, so that whoever moves a file only says what it was and what it is.

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

/// What outcomes are counted by: a quarter of an hour.
pub const OUTCOME_SPAN_MS: i64 = 900_000;
/// An outcome is counted, or no longer counted, for so long; twice what is ever shown.
const OUTCOMES_COUNTED_MS: i64 = 2 * 86_400_000;
const OUTCOMES_KEPT_MS: i64 = 3 * 86_400_000;

/// The stage a file is counted by: the one it waits for, or the one that a dead letter stands for.
pub(crate) fn counted_stage(file: &File) -> &'static str {
    match file.status {
        Status::Queued | Status::Failed => file.stage.map_or("", Stage::as_str),
        _ => "",
    }
}

/// What a file has come to, and when.
fn outcome(file: &File) -> Option<(&'static str, UnixMs)> {
    let at = match file.status {
        Status::Ready => file.ready_at,
        Status::Failed => file.failed_at,
        Status::Quarantined => None,
        _ => return None,
    };
    Some((file.status.as_str(), at.unwrap_or(file.updated_at)))
}

/// These files were one thing and are another.
pub(crate) async fn changed(tx: &mut Tx<'_>, changes: &[&Change]) -> Result<(), CatalogError> {
    let both = || changes.iter().flat_map(|change| [(&change.before, -1), (&change.after, 1)]);
    count_statuses(tx, both()).await?;
    let now = changes.iter().map(|change| change.after.updated_at).max().unwrap_or_default();
    count_outcomes(tx, both(), now).await
}

/// These rows are new.
pub(crate) async fn added(tx: &mut Tx<'_>, files: impl Iterator<Item = &File>) -> Result<(), CatalogError> {
    count_statuses(tx, files.map(|file| (file, 1))).await
}

/// Something else than a file of this user has changed that is shown beside them.
pub(crate) async fn noticed(tx: &mut Tx<'_>, tenant: &TenantId, user: &UserId) -> Result<(), CatalogError> {
    tx.run(
        "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) \
         VALUES ($1, $2, 'registered', '', 0, 0) \
         ON CONFLICT (tenant_id, user_id, status, stage) DO UPDATE SET changes = file_counts.changes + 1",
        args![tenant.as_str(), user.as_str()],
    )
    .await?;
    Ok(())
}

/// These rows are there no more.
pub(crate) async fn gone(tx: &mut Tx<'_>, files: &[&File]) -> Result<(), CatalogError> {
    count_statuses(tx, files.iter().map(|file| (*file, -1))).await
}

/// Each counter once, in one order everywhere: two transactions of one user do not wait for each other in a ring.
async fn count_statuses(
    tx: &mut Tx<'_>,
    files: impl Iterator<Item = (&File, i64)>,
) -> Result<(), CatalogError> {
    let mut moved: BTreeMap<(&str, &str, &str, &str), (i64, i64)> = BTreeMap::new();
    for (file, sign) in files {
        let counter = (file.tenant.as_str(), file.user.as_str(), file.status.as_str(), counted_stage(file));
        let (files, bytes) = moved.entry(counter).or_default();
        *files += sign;
        *bytes += sign * signed(file.charged_bytes);
    }
    // One that comes to nothing stays: a file that waits anew, as it did before, is a change to whoever looks at it.
    let moved: Vec<_> = moved.into_iter().collect();
    for some in moved.chunks(tx.dialect().rows_max()) {
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

/// What is too long ago to be shown is left as it is.
async fn count_outcomes(
    tx: &mut Tx<'_>,
    files: impl Iterator<Item = (&File, i64)>,
    now: UnixMs,
) -> Result<(), CatalogError> {
    let mut moved: BTreeMap<(&str, &str, i64, &str), i64> = BTreeMap::new();
    for (file, sign) in files {
        let Some((outcome, at)) = outcome(file).filter(|(_, at)| *at > now - OUTCOMES_COUNTED_MS) else {
            continue;
        };
        let span = at.div_euclid(OUTCOME_SPAN_MS) * OUTCOME_SPAN_MS;
        *moved.entry((file.tenant.as_str(), file.user.as_str(), span, outcome)).or_default() += sign;
    }
    moved.retain(|_, files| *files != 0);
    let moved: Vec<_> = moved.into_iter().collect();
    for some in moved.chunks(tx.dialect().rows_max()) {
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

struct ForgetOutcomes {
    before: UnixMs,
}

impl Write for ForgetOutcomes {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<u64>, CatalogError> {
        Ok(match tx.run("DELETE FROM file_outcomes WHERE at < $1", args![self.before]).await? {
            0 => TxOutcome::Rollback(0),
            gone => TxOutcome::Commit(gone),
        })
    }
}

impl Catalog {
    /// Drops outcomes that are too long ago for anybody to ask for.
    pub async fn purge_outcomes(&self, now: UnixMs) -> Result<u64, CatalogError> {
        self.write(ForgetOutcomes { before: now - OUTCOMES_KEPT_MS }).await
    }
}
