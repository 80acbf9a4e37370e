//! Deletes, each with its outcome. Where versions are kept, a key is gone when all of them are.

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use reqwest::Method;
use wharfinger_lifecycle::key::ObjectKey;

use super::AzureStore;
use super::call::Call;
use super::list::Listing;
use crate::http::object;
use crate::{BlobError, ObjectMeta};

/// How many are under way at once. The service's own bulk delete spares connections, and no time.
const AT_ONCE: usize = 16;

impl AzureStore {
    pub(super) async fn delete_keys(&self, keys: &[ObjectKey]) -> Vec<Result<(), BlobError>> {
        let blobs: Vec<String> = keys.iter().map(|key| self.client.full(key)).collect();
        stream::iter(blobs).map(|blob| self.delete_blob(blob)).buffered(AT_ONCE).collect().await
    }

    async fn delete_blob(&self, blob: String) -> Result<(), BlobError> {
        // A blob with snapshots would not go without them.
        let delete = Call::of(Method::DELETE, &blob).header("x-ms-delete-snapshots", "include");
        self.client.delete(delete).await?;
        if self.client.learned.get().versioned {
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
            let blob = self.client.full(&key);
            let delete = Call::of(Method::DELETE, &blob)
                .header("if-match", format!("\"{}\"", meta.etag))
                .header_some("x-ms-delete-snapshots", with_snapshots.then_some("include"));
            object::delete_seen(self, &self.client, &key, delete).await
        };
        stream::iter(seen.to_vec()).map(delete).buffered(AT_ONCE).collect().await
    }

    async fn delete_versions(&self, blob: &str) -> Result<(), BlobError> {
        let mut listing = Listing::under(&self.client, "");
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
        self.client.delete(Call::of(Method::DELETE, blob).with("versionid", version_id)).await
    }
}
