//! Locked files: a decision about them is still valid when it is written.

use std::collections::{BTreeMap, BTreeSet};

use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::FileId;

use crate::database::sql::{Tx, args, places};
use crate::error::CatalogError;
use crate::files::rows::{decode, select_files};
use crate::unreadable::{self, Table};

#[derive(Default)]
pub(crate) struct LockedFiles {
    pub(crate) readable: BTreeMap<FileId, File>,
    /// Rows that exist and cannot be read. They are not changed.
    pub(crate) unreadable: BTreeSet<FileId>,
}

/// Reads these files and locks them until the end of the transaction. Locks are taken in the order of ids, so that two
/// transactions do not deadlock.
pub(crate) async fn lock_files(tx: &mut Tx<'_>, ids: &[FileId]) -> Result<LockedFiles, CatalogError> {
    if ids.is_empty() {
        return Ok(LockedFiles::default());
    }
    let lock = tx.dialect().pick("", "FOR UPDATE");
    let sql = format!("{} WHERE id IN ({}) ORDER BY id {lock}", select_files!(""), places(1, ids.len()));
    let rows = tx.rows_built(sql, ids.iter().flat_map(|id| args![id.to_string()]).collect()).await?;
    let (files, others) = unreadable::split(&rows, "id", decode);
    unreadable::record(tx, Table::Files, &others).await?;
    Ok(LockedFiles {
        readable: files.into_iter().map(|file| (file.id, file)).collect(),
        unreadable: others.iter().filter_map(|(id, _)| id.parse().ok()).collect(),
    })
}
