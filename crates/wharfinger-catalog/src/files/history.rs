//! The history of files: one line for each entry of each change. Its length is bounded, because some files change forever.

use std::sync::atomic::{AtomicU64, Ordering};

use wharfinger_lifecycle::file::Change;
use wharfinger_lifecycle::id::FileId;

use crate::database::sql::{Tx, args, places, tuples};
use crate::error::CatalogError;
use crate::registrations::NewFile;

/// The reason in the first line.
pub(crate) const REGISTERED: &str = "registered";
/// The first and the last lines of a file's history are kept.
const FIRST_KEPT: i64 = 20;
const LAST_KEPT: i64 = 200;
/// A history is cut once per so many versions.
const CUT_EVERY: i64 = 50;

/// Of this process. Lines are counted even if their transaction fails later.
static LINES_CUT: AtomicU64 = AtomicU64::new(0);

/// How many lines this process has deleted from histories, for its metrics.
pub fn history_lines_cut() -> u64 {
    LINES_CUT.load(Ordering::Relaxed)
}

/// The first line of each file, with the actor that registered it.
pub(crate) async fn insert_first(tx: &mut Tx<'_>, files: &[(&NewFile, &str)]) -> Result<(), CatalogError> {
    let rows = files.iter().map(|(new, actor)| (&new.file, *actor)).flat_map(|(file, actor)| {
        let (id, status) = (file.id.to_string(), file.status.as_str());
        args![id, file.version, file.updated_at, status, REGISTERED, actor]
    });
    let sql = format!(
        "INSERT INTO file_history (file_id, version, at, to_status, reason, actor) VALUES {}",
        tuples(1, files.len(), 6)
    );
    tx.run_built(sql, rows.collect()).await?;
    Ok(())
}

/// The history entries of all changes. The last entry of each has the file's new version.
pub(crate) async fn extend(tx: &mut Tx<'_>, changes: &[&Change], actor: &str) -> Result<(), CatalogError> {
    let mut args = args![actor];
    let mut rows = Vec::new();
    for change in changes {
        for (n, entry) in change.history.iter().enumerate() {
            rows.push(format!("({}, $1)", places(args.len() + 1, 6)));
            args.extend(args![
                change.after.id.to_string(),
                change.version_of_entry(n),
                change.after.updated_at,
                entry.from.map(|status| status.as_str()),
                entry.to.as_str(),
                entry.reason.as_str(),
            ]);
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "INSERT INTO file_history (file_id, version, at, from_status, to_status, reason, actor) VALUES {}",
        rows.join(", ")
    );
    tx.run_built(sql, args).await?;
    for change in changes {
        cut(tx, change.after.id, change.before.version, change.after.version).await?;
    }
    Ok(())
}

async fn cut(tx: &mut Tx<'_>, file: FileId, before: i64, after: i64) -> Result<(), CatalogError> {
    let is_due = before / CUT_EVERY != after / CUT_EVERY;
    if is_due && after > FIRST_KEPT + LAST_KEPT {
        let sql = "DELETE FROM file_history WHERE file_id = $1 AND version > $2 AND version <= $3";
        let cut = tx.run(sql, args![file.to_string(), FIRST_KEPT, after - LAST_KEPT]).await?;
        LINES_CUT.fetch_add(cut, Ordering::Relaxed);
    }
    Ok(())
}
