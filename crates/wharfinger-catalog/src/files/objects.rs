//! Objects and their multipart uploads. The row of an object is written before the object can exist, and its upload id
//! before a part can arrive.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::{Cleanup, File};
use wharfinger_lifecycle::key::ObjectKey;

use crate::Catalog;
use crate::RowSettings;
use crate::cleanups::pending;
use crate::database::sql::{Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;

/// Stores the upload id of an object, if its file is still registered and the stored id is still `before`.
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

/// Writes a cleanup for the object of a deleted file, or makes the existing one due again.
struct RepeatCleanup {
    file: File,
    rows: RowSettings,
    cleanup: Cleanup,
    now: UnixMs,
}

impl Write for RepeatCleanup {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        // A finished cleanup does not cover bytes that came later. The number of changed rows decides, not an earlier read:
        // the cleanup may have finished in between.
        let changed = tx
            .run(
                "UPDATE pending_cleanups SET lease_token = lease_token + 1, lease_until = 0, rank = NULL, \
                 next_attempt_at = $3 WHERE document_id = $1 AND file_path = $2",
                args![self.file.id.to_string(), self.file.key.as_str(), self.now],
            )
            .await?;
        if changed == 0 {
            let Cleanup { reason, finish_at } = &self.cleanup;
            let new = pending::NewCleanup::of(self.file.clone(), None, &self.rows, self.now);
            pending::insert_all(tx, &[(new, reason.as_str(), *finish_at)], self.now).await?;
        }
        Ok(TxOutcome::Commit(()))
    }
}

impl Catalog {
    /// Whether an object has a row; its file may be deleted.
    pub async fn has_object(&self, key: &ObjectKey) -> Result<bool, CatalogError> {
        let mut reader = self.reader().await?;
        let sql = "SELECT file_id FROM objects WHERE key = $1";
        Ok(reader.tx(&self.faults).row(sql, args![key.as_str()]).await?.is_some())
    }

    /// The multipart upload of an object, if one was started.
    pub async fn upload_id(&self, key: &ObjectKey) -> Result<Option<String>, CatalogError> {
        let mut reader = self.reader().await?;
        let sql = "SELECT upload_id FROM objects WHERE key = $1";
        let row = reader.tx(&self.faults).row(sql, args![key.as_str()]).await?;
        row.map_or(Ok(None), |row| row.maybe_text("upload_id"))
    }

    /// False if the file is no longer registered or another upload was stored first.
    pub async fn set_upload_id(
        &self,
        key: &ObjectKey,
        before: Option<String>,
        upload_id: String,
    ) -> Result<bool, CatalogError> {
        self.write(SetUpload { key: key.as_str().to_owned(), before, upload_id }).await
    }

    /// For bytes that arrived after their file was deleted.
    pub async fn repeat_cleanup(
        &self,
        file: File,
        cleanup: Cleanup,
        now: UnixMs,
    ) -> Result<(), CatalogError> {
        self.write(RepeatCleanup { file, rows: self.rows, cleanup, now }).await
    }
}
