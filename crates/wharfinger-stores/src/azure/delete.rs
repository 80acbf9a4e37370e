//! Deletes, each with its outcome. Where versions are kept, a key is gone when all of them are.

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use wharfinger_lifecycle::key::ObjectKey;

use super::super::{BlobError, BlobStore as _, ObjectMeta};
use super::AzureStore;
use super::call::Call;
use super::list::Listing;

/// How many are under way at once. The service's own bulk delete spares connections, and no time.
const AT_ONCE: usize = 16;

impl AzureStore {
    pub(super) async fn delete_keys(&self, keys: &[ObjectKey]) -> Vec<Result<(), BlobError>> {
        let blobs: Vec<String> = keys.iter().map(|key| self.full(key)).collect();
        stream::iter(blobs).map(|blob| self.delete_blob(blob)).buffered(AT_ONCE).collect().await
    }

    async fn delete_blob(&self, blob: String) -> Result<(), BlobError> {
        // A blob with snapshots would not go without them.
        absent_is_gone(
            self.client.send(Call::delete(&blob).header("x-ms-delete-snapshots", "include")).await,
        )?;
        if self.learned().versioned {
            self.delete_versions(&blob).await?;
        }
        Ok(())
    }

    /// One with snapshots is refused, unless they may go with it.
    pub(super) async fn delete_as_seen(
        &self,
        seen: &[(ObjectKey, ObjectMeta)],
        with_snapshots: bool,
    ) -> Vec<Result<(), BlobError>> {
        let delete = async |(key, meta): (ObjectKey, ObjectMeta)| {
            let blob = self.full(&key);
            let mut delete = Call::delete(&blob).header("if-match", format!("\"{}\"", meta.etag));
            if with_snapshots {
                delete = delete.header("x-ms-delete-snapshots", "include");
            }
            match absent_is_gone(self.client.send(delete).await) {
                // What is absent does not meet the condition either.
                Err(BlobError::Changed)
                    if matches!(self.head(&key, None).await, Err(BlobError::NotFound)) =>
                {
                    Ok(())
                }
                outcome => outcome,
            }
        };
        stream::iter(seen.to_vec()).map(delete).buffered(AT_ONCE).collect().await
    }

    async fn delete_versions(&self, blob: &str) -> Result<(), BlobError> {
        let mut listing = Listing::under(self, "");
        listing.under = blob.to_owned();
        listing.include = Some("versions");
        let mut entries = listing.entries();
        while let Some(entry) = entries.try_next().await? {
            let key = entry.key();
            // Keys that begin with this one sort behind it.
            if key.as_str() > blob {
                break;
            }
            if let Some(version_id) = entry.version_id.as_deref().filter(|_| key == blob) {
                self.delete_version(blob, version_id).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn delete_version(&self, blob: &str, version_id: &str) -> Result<(), BlobError> {
        absent_is_gone(self.client.send(Call::delete(blob).with("versionid", version_id)).await)
    }
}

fn absent_is_gone(answer: Result<reqwest::Response, super::error::Failure>) -> Result<(), BlobError> {
    match answer.map_err(BlobError::from) {
        Ok(_) | Err(BlobError::NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}
