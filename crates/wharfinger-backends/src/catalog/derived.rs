//! What stages make of a file beside its state: parts of its text in the store, chunks and vectors in the catalog.
//! It goes with the file, and what an attempt made that did not end well goes too.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::{Cleanup, EndReason, File};
use wharfinger_lifecycle::id::CleanupId;
use wharfinger_lifecycle::key::ObjectKey;

use super::error::CatalogError;
use super::sql::{Row, Tx, args};
use super::{cleanups, fresh_id};

/// Longer than a worker that lost its lease goes on putting objects.
const STRAGGLER_MS_MAX: i64 = 15 * 60_000;

/// All that hangs on a file that has ended.
pub(super) async fn end_for_file(
    tx: &mut Tx<'_>,
    order: &cleanups::Order,
    cleanup: &Cleanup,
    now: UnixMs,
) -> Result<(), CatalogError> {
    let id = order.file.id.to_string();
    for sql in [
        "DELETE FROM chunks WHERE file_id = $1",
        "DELETE FROM text_parts WHERE file_id = $1",
        "DELETE FROM stage_outputs WHERE file_id = $1",
    ] {
        tx.run(sql, args![id.as_str()]).await?;
    }
    let sql = "DELETE FROM objects WHERE file_id = $1 AND kind = 'derived' RETURNING key";
    let rows = tx.rows(sql, args![id]).await?;
    order_deletion(tx, &rows, order, cleanup.reason, cleanup.finish_at, now).await
}

/// Objects whose rows are gone: the orders for their bytes are what is left of them.
async fn order_deletion(
    tx: &mut Tx<'_>,
    rows: &[Row],
    order: &cleanups::Order,
    reason: EndReason,
    finish_at: UnixMs,
    now: UnixMs,
) -> Result<(), CatalogError> {
    let finish_at = finish_at.max(now.saturating_add(STRAGGLER_MS_MAX));
    for row in rows {
        let key = ObjectKey::parse(&row.text("key")?)
            .map_err(|_| CatalogError::Corrupt("objects holds a key that is none".into()))?;
        let file = File { key, size: 0, part_size: None, ..order.file.clone() };
        let order = cleanups::Order { id: CleanupId(fresh_id(now)), file, ..*order };
        cleanups::insert(tx, &order, &Cleanup { reason, finish_at }, now).await?;
    }
    Ok(())
}
