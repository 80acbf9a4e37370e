//! Objects and the uploads in parts that fill them. The row is there before the object can be; which upload
//! fills it is written before any of its parts can come.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::{Cleanup, File};
use wharfinger_lifecycle::key::ObjectKey;

use crate::Catalog;
use crate::RowSettings;
use crate::cleanups::pending;
use crate::database::sql::{Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;

/// Makes an upload the one that fills an object, if the file still waits and nobody was faster.
struct SetUpload {
    key: String,
    before: Option<String>,
    upload_id: String,
}

impl Write for SetUpload {
    type Answer = bool;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<bool>, CatalogError> {
        let changed = tx
            .run(
                "UPDATE objects SET upload_id = $3 WHERE key = $1 AND upload_id IS NOT DISTINCT FROM $2 \
                 AND EXISTS (SELECT 1 FROM files WHERE id = objects.file_id AND pipeline_status = 'registered')",
                args![self.key.as_str(), self.before.as_deref(), self.upload_id.as_str()],
            )
            .await?;
        Ok(TxOutcome::Commit(changed == 1))
    }
}

/// Writes a cleanup for the bytes of an ended file, or makes the one that is there due once more.
struct CleanAgain {
    file: File,
    rows: RowSettings,
    cleanup: Cleanup,
    now: UnixMs,
}

impl Write for CleanAgain {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        // What is done already is not done for what came since. By the number of rows that were changed, not by an
        // earlier look: the cleanup may have been settled in between.
        let changed = tx
            .run(
                "UPDATE pending_cleanups SET lease_token = lease_token + 1, lease_until = 0, rank = NULL, \
                 next_attempt_at = $3 WHERE document_id = $1 AND file_path = $2",
                args![self.file.id.to_string(), self.file.key.as_str(), self.now],
            )
            .await?;
        if changed == 0 {
            let Cleanup { reason, finish_at } = &self.cleanup;
            let new = pending::NewCleanup::of(self.file.clone(), &self.rows, self.now);
            pending::insert_all(tx, &[(new, reason.as_str(), *finish_at)], self.now).await?;
        }
        Ok(TxOutcome::Commit(()))
    }
}

impl Catalog {
    /// Whether there is a row for an object, of a live file or not.
    pub async fn has_object(&self, key: &ObjectKey) -> Result<bool, CatalogError> {
        let mut reader = self.reader().await?;
        let sql = "SELECT file_id FROM objects WHERE key = $1";
        Ok(reader.tx(&self.faults).row(sql, args![key.as_str()]).await?.is_some())
    }

    /// The upload in parts that fills an object, if one was begun.
    pub async fn upload_id(&self, key: &ObjectKey) -> Result<Option<String>, CatalogError> {
        let mut reader = self.reader().await?;
        let sql = "SELECT upload_id FROM objects WHERE key = $1";
        let row = reader.tx(&self.faults).row(sql, args![key.as_str()]).await?;
        row.map_or(Ok(None), |row| row.maybe_text("upload_id"))
    }

    /// False if the file has ended or another upload took the place first.
    pub async fn set_upload_id(
        &self,
        key: &ObjectKey,
        before: Option<String>,
        upload_id: String,
    ) -> Result<bool, CatalogError> {
        self.write(SetUpload { key: key.as_str().to_owned(), before, upload_id }).await
    }

    /// Bytes came to be after their file had ended, perhaps after they had been deleted.
    pub async fn repeat_cleanup(&self, file: File, cleanup: Cleanup, now: UnixMs) -> Result<(), CatalogError> {
        self.write(CleanAgain { file, rows: self.rows, cleanup, now }).await
    }
}
