//! Takes the bytes of an upload to local disk. The row is looked up before the first byte is taken and again
//! when the last one is in place: what came too late is withdrawn.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::state::Status;
use wharfinger_stores::disk::{DiskStore, Incoming, IncomingError, LeftBehind, SignedQuery};
use wharfinger_stores::{BlobError, BlobStore as _};

use crate::core::Core;
use crate::core::VerbError;
use crate::uploads::Uploads;
use crate::uploads::transfers::Transfer;

#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("the signature of this URL is not ours, or the URL was changed")]
    Signature,
    #[error("this URL has expired")]
    Expired,
    #[error("the URL is for exactly {0} bytes")]
    Length(u64),
    #[error("the URL is for Content-Type {0}")]
    ContentType(String),
    #[error("the SHA-256 of the bytes is not the one this URL is for")]
    Checksum,
    #[error("there is an object under this key already")]
    Exists,
    #[error("the upload has ended")]
    Ended,
    #[error("a later upload to the same URL has taken the place of this one")]
    Superseded,
    #[error("the client hung up, or sent nothing or very little for too long")]
    Interrupted,
    #[error("too many files are sent or received at once; try again in a moment")]
    Busy,
    #[error("{0}")]
    Verb(#[from] VerbError),
}

impl From<IncomingError> for Refused {
    fn from(error: IncomingError) -> Self {
        match error {
            IncomingError::TooLong | IncomingError::TooShort(_) => Refused::Interrupted,
            IncomingError::Checksum => Refused::Checksum,
            IncomingError::Exists => Refused::Exists,
            IncomingError::Store(error) => Refused::Verb(error.into()),
        }
    }
}

/// What the client's request said besides its URL.
pub struct Sent {
    pub content_type: Option<String>,
    pub content_length: Option<u64>,
}

/// A client that sends nothing for this long is gone.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// An upload may begin slowly.
const SLOW_START: Duration = Duration::from_secs(60);
/// After that its average rate must be at least this part of `UPLOAD_MIN_RATE_BYTES`: far below that of a client which needs
/// its time, and far above that of one which only holds a place.
const RATE_PART: u64 = 64;
/// However high that setting is: it is there for the time that large uploads get.
const RATE_MAX: u64 = 4_096;
/// How often a long upload checks whether it is still wanted.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// A temporary file that was not written to for this long has no upload behind it.
/// No small write takes nearly as long.
const TEMPORARY_AFTER: Duration = Duration::from_secs(30 * 60);
const LEFT_BEHIND_AFTER: Duration = Duration::from_secs(600);

/// What may be sent.
pub struct Admitted {
    pub file: FileId,
    /// Exactly so many bytes.
    pub size: u64,
    pub transfer: Transfer,
}

/// Checks everything that can be known before a byte is read.
pub async fn admit(
    uploads: &Uploads,
    disk: &DiskStore,
    key: &ObjectKey,
    query: &SignedQuery,
    sent: &Sent,
) -> Result<Admitted, Refused> {
    let core = &uploads.core;
    let size = match query.size {
        Some(size) if disk.signing_key().verify("PUT", key, query) => size,
        _ => return Err(Refused::Signature),
    };
    if core.clock.now() >= query.expires {
        return Err(Refused::Expired);
    }
    if sent.content_length.is_some_and(|length| length != size) {
        return Err(Refused::Length(size));
    }
    if let Some(bound) = &query.content_type
        && sent.content_type.as_ref() != Some(bound)
    {
        return Err(Refused::ContentType(bound.clone()));
    }
    let file = row_of(core, key).await?;
    match file {
        Some(file) if file.status == Status::Registered => match disk.head(key, None).await {
            Err(BlobError::NotFound) => {
                let transfer = uploads.transfers.begin(&file.tenant).ok_or(Refused::Busy)?;
                Ok(Admitted { file: file.id, size, transfer })
            }
            Ok(_) => Err(Refused::Exists),
            Err(error) => Err(VerbError::from(error).into()),
        },
        Some(file) if file.ended.is_none() => Err(Refused::Exists),
        _ => Err(Refused::Ended),
    }
}

/// Uploads under way in this process, one for each file: bytes that are not in place yet are nobody's charge, so
/// a later PUT ends the earlier, and so does the end of the file.
#[derive(Default)]
pub struct IncomingUploads(Mutex<HashMap<FileId, CancellationToken>>);

/// Leaves the list when its upload ends, unless a later one has taken the place.
struct IncomingUpload<'l> {
    all: &'l IncomingUploads,
    file: FileId,
    stop: CancellationToken,
}

impl IncomingUploads {
    fn begin(&self, file: FileId) -> IncomingUpload<'_> {
        let stop = CancellationToken::new();
        if let Some(earlier) = self.list().insert(file, stop.clone()) {
            earlier.cancel();
        }
        IncomingUpload { all: self, file, stop }
    }

    /// The file has ended: what is on its way is not wanted any more.
    pub fn stop(&self, file: FileId) {
        if let Some(under_way) = self.list().remove(&file) {
            under_way.cancel();
        }
    }

    fn list(&self) -> MutexGuard<'_, HashMap<FileId, CancellationToken>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for IncomingUpload<'_> {
    fn drop(&mut self) {
        if !self.stop.is_cancelled() {
            self.all.list().remove(&self.file);
        }
    }
}

/// Streams the body to its place; answers the ETag.
pub async fn receive<E>(
    uploads: &Uploads,
    disk: &DiskStore,
    admitted: Admitted,
    key: &ObjectKey,
    sha256: Option<String>,
    body: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<String, Refused> {
    let core = &uploads.core;
    let Admitted { file, size, transfer: _transfer } = admitted;
    let upload = uploads.incoming.begin(file);
    let mut incoming = disk.receive(file, key, size, sha256).await?;
    tokio::select! {
        received = write_body(core, key, size, &mut incoming, body) => received?,
        () = upload.stop.cancelled() => {
            let wanted = row_of(core, key).await?.is_some_and(|file| file.ended.is_none());
            return Err(if wanted { Refused::Superseded } else { Refused::Ended });
        }
    }
    let placed = match disk.place(incoming).await {
        Err(IncomingError::TooShort(_)) => return Err(Refused::Length(size)),
        outcome => outcome?,
    };
    // Not known is not "gone": the note beside the object stays, and the next look decides.
    match row_of(core, key).await? {
        Some(file) if file.ended.is_none() => {
            let etag = placed.meta.etag.clone();
            placed.keep();
            Ok(etag)
        }
        _ => {
            placed.withdraw().await.map_err(VerbError::from)?;
            Err(Refused::Ended)
        }
    }
}

/// Looks at the row now and then: another process may have ended the file, or its time may be over.
async fn write_body<E>(
    core: &Core,
    key: &ObjectKey,
    size: u64,
    incoming: &mut Incoming,
    mut body: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<(), Refused> {
    let began = Instant::now();
    let (mut checked_at, mut received_bytes) = (began, 0);
    loop {
        match tokio::time::timeout(IDLE_MAX, body.next()).await {
            Ok(Some(Ok(bytes))) => {
                received_bytes += bytes.len() as u64;
                match incoming.write(&bytes).await {
                    Err(IncomingError::TooLong) => return Err(Refused::Length(size)),
                    outcome => outcome?,
                }
            }
            Ok(None) => return Ok(()),
            Ok(Some(Err(_))) | Err(_) => return Err(Refused::Interrupted),
        }
        if received_bytes < least_bytes(core.policy.min_rate_bytes, began.elapsed()) {
            return Err(Refused::Interrupted);
        }
        if checked_at.elapsed() >= CHECK_EVERY {
            checked_at = Instant::now();
            match row_of(core, key).await? {
                Some(file) if file.ended.is_none() && core.clock.now() < core.policy.silent_at(&file) => {}
                _ => return Err(Refused::Ended),
            }
        }
    }
}

/// What must have come by then.
fn least_bytes(min_rate_bytes: u64, elapsed: Duration) -> u64 {
    elapsed.saturating_sub(SLOW_START).as_secs().saturating_mul((min_rate_bytes / RATE_PART).min(RATE_MAX))
}

/// Makes up for the second look of uploads that crashed before it.
pub async fn clear_left_behind(core: &Core) -> Result<u64, VerbError> {
    let mut cleared = 0;
    let Some(disk) = &core.disk else { return Ok(cleared) };
    cleared += disk.clear_temporary(TEMPORARY_AFTER).await?;
    for left in disk.left_behind(LEFT_BEHIND_AFTER).await? {
        let id = left.file;
        match clear_one(core, disk, left).await {
            Ok(()) => cleared += 1,
            Err(error) => {
                tracing::warn!(fileId = %id, error = ?error, "cannot clear a crashed upload")
            }
        }
    }
    Ok(cleared)
}

async fn clear_one(core: &Core, disk: &DiskStore, left: LeftBehind) -> Result<(), VerbError> {
    let file = core.catalog.file(left.file).await?;
    if file.is_none() && left.placed {
        // Without its row nobody knows where the object is: the note is all that says that there is one.
        return Err(VerbError::Internal("an object is in place whose row has been forgotten".into()));
    }
    let keep = file.as_ref().is_some_and(|file| file.ended.is_none());
    Ok(disk.clear(left, file.as_ref().map(|file| &file.key), keep).await?)
}

async fn row_of(core: &Core, key: &ObjectKey) -> Result<Option<File>, VerbError> {
    let Some(id) = key.as_str().rsplit('/').next().and_then(|part| part.parse().ok()) else {
        return Ok(None);
    };
    Ok(core.catalog.file(id).await?.filter(|file| file.key == *key))
}
