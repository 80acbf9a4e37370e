//! Multipart uploads on local disk. The program receives each part into a temporary file and copies it to its place. To
//! complete an upload, a hard link puts the bytes in place as the object, so it takes no time.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use tokio::sync::{Mutex, MutexGuard};
use uuid::Uuid;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::limits::MIB;

use super::super::{BlobError, MultipartStore, Part, PartGrant, PartLimits, SignedRequest, UnfinishedUpload};
use super::incoming::{CompleteBytes, Incoming, IncomingError};
use super::upload_folder::{Lock, Marker, PART_TEMP, UploadFolder};
use super::{DiskStore, blocking, upload_folders};

/// Those of S3, except that a whole object can have any size.
const LIMITS: PartLimits = PartLimits {
    part_bytes_min: 5 * MIB,
    part_bytes_max: 5 * 1_024 * MIB,
    parts_max: 10_000,
    single_put_bytes_max: u64::MAX,
};
/// How many uploads this process changes at the same time. Each takes a thread and two open files.
const TURNS: usize = 16;
/// How often and how long a lock is waited for that another process holds: 30 s.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
const LOCK_TRIES_MAX: u32 = 1_500;

/// Where a part belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartPlace {
    pub upload_id: String,
    pub number: u32,
    /// Where it starts in the object.
    pub offset: u64,
}

/// A part that is being received. If it is dropped before it is placed, its temporary file is removed.
pub struct IncomingPart {
    pub bytes: Incoming,
    folder: UploadFolder,
    part: Marker,
}

/// Calls of this process that change the same upload wait for each other here, in their order and without a thread.
pub(super) struct Turns([Mutex<()>; TURNS]);

impl Default for Turns {
    fn default() -> Self {
        Turns(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Turns {
    /// Uploads with the same turn wait for each other, too. That is rare and short.
    async fn of(&self, upload_id: &str) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        upload_id.hash(&mut hasher);
        let at = usize::try_from(hasher.finish() % TURNS as u64).unwrap_or(0);
        self.0[at].lock().await
    }
}

impl DiskStore {
    fn upload(&self, key: &ObjectKey, upload_id: &str) -> Result<UploadFolder, BlobError> {
        UploadFolder::of(&self.root, &self.mounted, key, upload_id)
    }

    /// Starts to receive a part. `NotFound`: the upload does not exist any more.
    pub async fn receive_part(
        &self,
        key: &ObjectKey,
        place: &PartPlace,
        size: u64,
    ) -> Result<IncomingPart, IncomingError> {
        let folder = self.upload(key, &place.upload_id)?;
        let checked = folder.clone();
        blocking(move || checked.check()).await?;
        let path = folder.path().join(format!("{PART_TEMP}{}", Uuid::new_v4()));
        let bytes = self.create_incoming(path, key, size, None).await?;
        let part = Marker { number: place.number, offset: place.offset, size };
        Ok(IncomingPart { bytes, folder, part })
    }

    /// Copies the part to its place and makes it durable. It replaces an earlier part with its number. `NotFound`: the
    /// upload does not exist any more. `Exists`: the upload is complete.
    ///
    /// The temporary file is not synced: after a crash nothing reads it.
    pub async fn place_part(&self, incoming: IncomingPart) -> Result<Part, IncomingError> {
        let IncomingPart { bytes, folder, part } = incoming;
        let CompleteBytes { temp, target, file } = bytes.complete().await?;
        let mut file = file.into_std().await;
        let (lock, _turn) = self.lock(&folder).await?;
        // Each step holds the lock until it has ended, also if nothing waits for it any more.
        let (here, held) = (folder.clone(), lock.clone());
        let unmarked = blocking(move || here.unmark(&held, part.number, &target));
        match self.faults.around("unmark part", unmarked).await {
            Err(BlobError::Changed) => return Err(IncomingError::Exists),
            unmarked => unmarked?,
        }
        let (here, held) = (folder.clone(), lock.clone());
        let copied = blocking(move || here.copy(&held, &mut file, part));
        self.faults.around("copy part", copied).await?;
        let marked = blocking(move || folder.mark(&lock, part));
        let marked = self.faults.around("mark part", marked).await?;
        drop(temp);
        Ok(marked)
    }

    /// `NotFound`: the upload does not exist any more.
    async fn lock(&self, folder: &UploadFolder) -> Result<(Lock, MutexGuard<'_, ()>), BlobError> {
        for _ in 0..LOCK_TRIES_MAX {
            let turn = self.turns.of(folder.upload_id()).await;
            let tried = folder.clone();
            if let Some(lock) = blocking(move || tried.try_lock()).await? {
                return Ok((lock, turn));
            }
            // Other uploads have the same turn, and the other process may be slow.
            drop(turn);
            tokio::time::sleep(LOCK_PAUSE).await;
        }
        Err(BlobError::Unavailable("another process is changing this upload".into()))
    }

    async fn end_upload(&self, folder: UploadFolder) -> Result<(), BlobError> {
        match self.lock(&folder).await {
            Ok((lock, _turn)) => blocking(move || folder.end(&lock)).await,
            // It has ended. A crash may have left its files.
            Err(BlobError::NotFound) => blocking(move || folder.remove_ended()).await,
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl MultipartStore for DiskStore {
    fn limits(&self) -> PartLimits {
        LIMITS
    }

    async fn start(&self, key: &ObjectKey, _content_type: Option<&str>) -> Result<String, BlobError> {
        let (root, mounted, key) = (self.root.clone(), self.mounted.clone(), key.clone());
        let started = blocking(move || UploadFolder::start(&root, &mounted, &key)).await?;
        Ok(started.upload_id().to_owned())
    }

    async fn sign_part(&self, grant: &PartGrant) -> Result<SignedRequest, BlobError> {
        let query = self.signing_key.sign_part(grant);
        Ok(SignedRequest { method: "PUT", url: self.url(&grant.key, &query), headers: Vec::new() })
    }

    async fn list_parts(&self, key: &ObjectKey, upload_id: &str) -> Result<Vec<Part>, BlobError> {
        let folder = self.upload(key, upload_id)?;
        blocking(move || folder.parts()).await
    }

    /// `Changed`: another object has this key.
    async fn complete(
        &self,
        key: &ObjectKey,
        upload_id: &str,
        _content_type: Option<&str>,
        parts: &[Part],
    ) -> Result<(), BlobError> {
        let folder = self.upload(key, upload_id)?;
        let (lock, _turn) = self.lock(&folder).await?;
        let (here, held, target, parts) = (folder.clone(), lock.clone(), self.path(key), parts.to_vec());
        let linked = blocking(move || here.link(&held, &target, &parts));
        self.faults.around("link parts", linked).await?;
        let upload_id = folder.upload_id().to_owned();
        let ended = blocking(move || folder.end(&lock));
        if let Err(error) = self.faults.around("remove parts", ended).await {
            tracing::warn!(upload = %upload_id, error = %error, "cannot remove a completed multipart upload, a sweep will do it");
        }
        Ok(())
    }

    async fn abort_all(&self, key: &ObjectKey) -> Result<(), BlobError> {
        let (root, mounted, of) = (self.root.clone(), self.mounted.clone(), key.clone());
        let uploads = blocking(move || upload_folders::uploads_of(&root, &mounted, &of)).await?;
        for upload_id in uploads {
            self.abort(key, &upload_id).await?;
        }
        Ok(())
    }

    async fn abort(&self, key: &ObjectKey, upload_id: &str) -> Result<(), BlobError> {
        match self.upload(key, upload_id) {
            Ok(folder) => self.end_upload(folder).await,
            Err(BlobError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn list_unfinished(&self, prefix: &str) -> BoxStream<'static, Result<UnfinishedUpload, BlobError>> {
        let (root, mounted, prefix) = (self.root.clone(), self.mounted.clone(), prefix.to_owned());
        let listed = blocking(move || upload_folders::unfinished(&root, &mounted, &prefix));
        stream::once(listed).map_ok(|found| stream::iter(found.into_iter().map(Ok))).try_flatten().boxed()
    }
}
