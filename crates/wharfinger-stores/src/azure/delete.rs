//! Deletes with one outcome per key. On an account with versions, a key is deleted when all its versions are.

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use reqwest::Method;
use wharfinger_lifecycle::key::ObjectKey;

use super::AzureStore;
use super::call::Call;
use super::list::Listing;
use crate::http::object;
use crate::{BlobError, ObjectMeta};

/// How many deletes run concurrently. The service's own bulk delete would save connections, but no time.
const CONCURRENCY: usize = 16;

impl AzureStore {
    pub(super) async fn delete_keys(&self, keys: &[ObjectKey]) -> Vec<Result<(), BlobError>> {
        let blobs: Vec<String> = keys.iter().map(|key| self.client.full(key)).collect();
        stream::iter(blobs).map(|blob| self.delete_blob(blob)).buffered(CONCURRENCY).collect().await
    }

    async fn delete_blob(&self, blob: String) -> Result<(), BlobError> {
        // Azure refuses to delete a blob without its snapshots.
        let delete = Call::of(Method::DELETE, &blob).header("x-ms-delete-snapshots", "include");
        self.client.delete(delete).await?;
        if self.client.features.get().versioned {
            self.delete_versions(&blob).await?;
        }
        Ok(())
    }

    /// Azure refuses the delete of a blob with snapshots, unless `with_snapshots`.
    pub(super) async fn delete_as_seen(
        &self,
        seen: &[(ObjectKey, ObjectMeta)],
        with_snapshots: bool,
    ) -> Vec<Result<(), BlobError>> {
        let delete = async |(key, meta): (ObjectKey, ObjectMeta)| {
            let blob = self.client.full(&key);
            let delete = Call::of(Method::DELETE, &blob)
                .header("if-match", format!("\"{}\"", meta.etag))
                .header_some("x-ms-delete-snapshots", with_snapshots.then_some("include"));
            object::delete_if_unchanged(self, &self.client, &key, delete).await
        };
        stream::iter(seen.to_vec()).map(delete).buffered(CONCURRENCY).collect().await
    }

    async fn delete_versions(&self, blob: &str) -> Result<(), BlobError> {
        let mut listing = Listing::under(&self.client, "");
        listing.prefix = blob.to_owned();
        listing.include = Some("versions");
        let mut entries = listing.entries();
        while let Some(entry) = entries.try_next().await? {
            let key = entry.key();
            // Longer keys with this prefix sort after it.
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
        self.client.delete(Call::of(Method::DELETE, blob).with("versionid", version_id)).await
    }
}
