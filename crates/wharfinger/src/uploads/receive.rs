//! Receives the bytes of an upload to local disk: a whole object, or one part of a large one. The row is read before the
//! first byte and again after the last one. Bytes that arrived too late are deleted.

use std::collections::BTreeMap;
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
use wharfinger_stores::disk::{DiskStore, Incoming, IncomingError, LeftoverUpload, PartPlace, SignedQuery};
use wharfinger_stores::{BlobError, BlobStore as _, MultipartStore as _};

use crate::core::Core;
use crate::core::VerbError;
use crate::uploads::Uploads;
use crate::uploads::transfers::Transfer;

#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    #[error("The signature of this URL is wrong. Use the URL exactly as the server returned it.")]
    Signature,
    #[error("This URL has expired. Request a new one with POST /api/v2/files/{{id}}/url.")]
    Expired,
    #[error("This URL accepts exactly {0} bytes.")]
    Length(u64),
    #[error("This URL accepts only `Content-Type: {0}`.")]
    ContentType(String),
    #[error("The SHA-256 of the bytes differs from the announced one.")]
    Checksum,
    #[error("The bytes of this file were already uploaded.")]
    Exists,
    #[error("This upload has ended: its file was deleted or was not confirmed in time.")]
    Ended,
    #[error("A later upload to the same URL has replaced this one.")]
    Superseded,
    #[error("The client disconnected or sent too slowly.")]
    Interrupted,
    #[error("Too many files are being sent or received. Try again in a moment.")]
    Busy,
    #[error("{0}")]
    Verb(#[from] VerbError),
}

impl From<IncomingError> for ReceiveError {
    fn from(error: IncomingError) -> Self {
        match error {
            IncomingError::TooLong | IncomingError::TooShort(_) => ReceiveError::Interrupted,
            IncomingError::Checksum => ReceiveError::Checksum,
            IncomingError::Exists => ReceiveError::Exists,
            IncomingError::Store(error) => ReceiveError::Verb(error.into()),
        }
    }
}

/// The headers of the client's request that matter here.
pub struct RequestHeaders {
    pub content_type: Option<String>,
    pub content_length: Option<u64>,
}

/// A client that sends nothing for this long is disconnected.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// The minimum rate is not checked during this time.
const SLOW_START: Duration = Duration::from_secs(60);
/// After that the average rate must be at least `UPLOAD_MIN_RATE_BYTES` divided by this. Slow clients are far faster, and
/// clients that only hold a connection are far slower.
const RATE_DIVISOR: u64 = 64;
/// The highest minimum rate. The setting also defines the grace of large uploads, so it can be high for that reason.
const RATE_MAX: u64 = 4_096;
/// How often a long upload checks whether its file still exists.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// A temporary file without a write for this long belongs to no upload.
const TEMPORARY_AFTER: Duration = Duration::from_secs(30 * 60);
const LEFT_BEHIND_AFTER: Duration = Duration::from_secs(600);

/// An upload whose request was checked and whose bytes may be read.
pub struct CheckedUpload {
    pub file: FileId,
    /// The exact number of bytes to receive.
    pub size: u64,
    /// None: a whole object.
    pub part: Option<PartPlace>,
    pub transfer: Transfer,
}

/// Checks everything that can be checked before the body is read.
pub async fn check_request(
    uploads: &Uploads,
    disk: &DiskStore,
    key: &ObjectKey,
    query: &SignedQuery,
    sent: &RequestHeaders,
) -> Result<CheckedUpload, ReceiveError> {
    let core = &uploads.core;
    let size = match query.size {
        Some(size) if disk.signing_key().verify("PUT", key, query) => size,
        _ => return Err(ReceiveError::Signature),
    };
    if core.clock.now() >= query.expires {
        return Err(ReceiveError::Expired);
    }
    if sent.content_length.is_some_and(|length| length != size) {
        return Err(ReceiveError::Length(size));
    }
    if let Some(bound) = &query.content_type
        && sent.content_type.as_ref() != Some(bound)
    {
        return Err(ReceiveError::ContentType(bound.clone()));
    }
    let file = row_of(core, key).await?;
    match file {
        Some(file) if file.status == Status::Registered => match disk.head(key, None).await {
            Err(BlobError::NotFound) => {
                let transfer = uploads.transfers.begin(&file.tenant).ok_or(ReceiveError::Busy)?;
                Ok(CheckedUpload { file: file.id, size, part: query.part(), transfer })
            }
            Ok(_) => Err(ReceiveError::Exists),
            Err(error) => Err(VerbError::from(error).into()),
        },
        Some(file) if file.ended.is_none() => Err(ReceiveError::Exists),
        _ => Err(ReceiveError::Ended),
    }
}

/// The uploads that this process is receiving, at most one per file, or per part of a large file. Unfinished bytes are
/// charged to no tenant, so a later PUT stops the earlier one, and the end of the file stops it too.
#[derive(Default)]
pub struct IncomingUploads(Mutex<BTreeMap<(FileId, PartNumber), CancellationToken>>);

/// Parts are numbered from 1.
type PartNumber = u32;
const WHOLE_OBJECT: PartNumber = 0;

/// An entry of the list. It is removed when its upload ends, unless a later upload has replaced it.
struct IncomingUpload<'l> {
    all: &'l IncomingUploads,
    of: (FileId, PartNumber),
    stop: CancellationToken,
}

impl IncomingUploads {
    fn begin(&self, file: FileId, part: Option<&PartPlace>) -> IncomingUpload<'_> {
        let of = (file, part.map_or(WHOLE_OBJECT, |part| part.number));
        let stop = CancellationToken::new();
        if let Some(earlier) = self.list().insert(of, stop.clone()) {
            earlier.cancel();
        }
        IncomingUpload { all: self, of, stop }
    }

    /// Stops the uploads of a file that has ended.
    pub fn stop(&self, file: FileId) {
        let mut list = self.list();
        let of_file = list.range((file, WHOLE_OBJECT)..=(file, PartNumber::MAX));
        let stopped: Vec<(FileId, PartNumber)> = of_file.map(|(of, _)| *of).collect();
        for upload in stopped.iter().filter_map(|of| list.remove(of)) {
            upload.cancel();
        }
    }

    fn list(&self) -> MutexGuard<'_, BTreeMap<(FileId, PartNumber), CancellationToken>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for IncomingUpload<'_> {
    fn drop(&mut self) {
        if !self.stop.is_cancelled() {
            self.all.list().remove(&self.of);
        }
    }
}

/// Streams the body to the store and returns the ETag of the object, or of the part.
pub async fn receive<E>(
    uploads: &Uploads,
    disk: &DiskStore,
    checked: CheckedUpload,
    key: &ObjectKey,
    sha256: Option<String>,
    body: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<String, ReceiveError> {
    let core = &uploads.core;
    let CheckedUpload { file, size, part, transfer: _transfer } = checked;
    let upload = uploads.incoming.begin(file, part.as_ref());
    if let Some(place) = part {
        return receive_part(core, disk, &upload, key, (&place, size), body).await;
    }
    let mut incoming = disk.receive(file, key, size, sha256).await?;
    receive_bytes(core, &upload, key, size, &mut incoming, body).await?;
    let placed = match disk.place(incoming).await {
        Err(IncomingError::TooShort(_)) => return Err(ReceiveError::Length(size)),
        outcome => outcome?,
    };
    // If the row cannot be read, the note beside the object stays and the upload-window sweep decides later.
    if is_live(core, key).await? {
        let etag = placed.meta.etag.clone();
        placed.keep();
        return Ok(etag);
    }
    placed.withdraw().await.map_err(VerbError::from)?;
    Err(ReceiveError::Ended)
}

/// The cleanup of an ended file aborts its upload, and after that the store accepts no part. So a part that arrives between
/// the end and the cleanup does not stay, even if this process crashes before it reads the row again.
async fn receive_part<E>(
    core: &Core,
    disk: &DiskStore,
    upload: &IncomingUpload<'_>,
    key: &ObjectKey,
    (place, size): (&PartPlace, u64),
    body: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<String, ReceiveError> {
    let mut part = match disk.receive_part(key, place, size).await {
        Err(error) => return Err(part_error(core, key, size, error).await?),
        Ok(part) => part,
    };
    receive_bytes(core, upload, key, size, &mut part.bytes, body).await?;
    let placed = match disk.place_part(part).await {
        Err(error) => return Err(part_error(core, key, size, error).await?),
        Ok(placed) => placed,
    };
    if is_live(core, key).await? {
        return Ok(placed.etag);
    }
    disk.abort(key, &place.upload_id).await.map_err(VerbError::from)?;
    Err(ReceiveError::Ended)
}

async fn part_error(
    core: &Core,
    key: &ObjectKey,
    size: u64,
    error: IncomingError,
) -> Result<ReceiveError, VerbError> {
    Ok(match error {
        IncomingError::TooShort(_) => ReceiveError::Length(size),
        // The multipart upload of the URL does not exist any more.
        IncomingError::Store(BlobError::NotFound) => match row_of(core, key).await? {
            // The store has lost it. A fresh URL belongs to a new one.
            Some(file) if file.status == Status::Registered => ReceiveError::Expired,
            Some(file) if file.ended.is_none() => ReceiveError::Exists,
            _ => ReceiveError::Ended,
        },
        other => other.into(),
    })
}

async fn is_live(core: &Core, key: &ObjectKey) -> Result<bool, VerbError> {
    Ok(row_of(core, key).await?.is_some_and(|file| file.ended.is_none()))
}

/// Writes the body until its end, unless a later upload or the end of the file stops it.
async fn receive_bytes<E>(
    core: &Core,
    upload: &IncomingUpload<'_>,
    key: &ObjectKey,
    size: u64,
    incoming: &mut Incoming,
    body: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<(), ReceiveError> {
    tokio::select! {
        received = write_body(core, key, size, incoming, body) => received,
        () = upload.stop.cancelled() => {
            Err(if is_live(core, key).await? { ReceiveError::Superseded } else { ReceiveError::Ended })
        }
    }
}

/// Writes the body and reads the row every few seconds: another process may have ended the file, or its time is over.
async fn write_body<E>(
    core: &Core,
    key: &ObjectKey,
    size: u64,
    incoming: &mut Incoming,
    mut body: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<(), ReceiveError> {
    let started = Instant::now();
    let (mut checked_at, mut received_bytes) = (started, 0);
    loop {
        match tokio::time::timeout(IDLE_MAX, body.next()).await {
            Ok(Some(Ok(bytes))) => {
                received_bytes += bytes.len() as u64;
                match incoming.write(&bytes).await {
                    Err(IncomingError::TooLong) => return Err(ReceiveError::Length(size)),
                    outcome => outcome?,
                }
            }
            Ok(None) => return Ok(()),
            Ok(Some(Err(_))) | Err(_) => return Err(ReceiveError::Interrupted),
        }
        if received_bytes < least_bytes(core.policy.min_rate_bytes, started.elapsed()) {
            return Err(ReceiveError::Interrupted);
        }
        if checked_at.elapsed() >= CHECK_EVERY {
            checked_at = Instant::now();
            match row_of(core, key).await? {
                Some(file) if file.ended.is_none() && core.clock.now() < core.policy.last_write_at(&file) => {
                }
                _ => return Err(ReceiveError::Ended),
            }
        }
    }
}

/// The number of bytes that must have arrived after this time.
fn least_bytes(min_rate_bytes: u64, elapsed: Duration) -> u64 {
    elapsed.saturating_sub(SLOW_START).as_secs().saturating_mul((min_rate_bytes / RATE_DIVISOR).min(RATE_MAX))
}

/// Removes temporary files of uploads that crashed, and decides about objects whose upload crashed before the row was read
/// again.
pub async fn clean_up_crashed_uploads(core: &Core) -> Result<u64, VerbError> {
    let mut cleared = 0;
    let Some(disk) = &core.disk else { return Ok(cleared) };
    cleared += disk.remove_temporary_files(TEMPORARY_AFTER).await?;
    for left in disk.leftover_uploads(LEFT_BEHIND_AFTER).await? {
        let id = left.file;
        match clear_one(core, disk, left).await {
            Ok(()) => cleared += 1,
            Err(error) => {
                tracing::warn!(fileId = %id, error = %error.with_cause(), "cannot remove leftovers of interrupted uploads, the next sweep tries again")
            }
        }
    }
    Ok(cleared)
}

async fn clear_one(core: &Core, disk: &DiskStore, left: LeftoverUpload) -> Result<(), VerbError> {
    let file = core.catalog.file(left.file).await?;
    if file.is_none() && left.placed {
        // The note stays: without the row it is the only record of the object.
        return Err(VerbError::Internal("an uploaded object has no row in the catalog".into()));
    }
    let keep = file.as_ref().is_some_and(|file| file.ended.is_none());
    Ok(disk.clean_up(left, file.as_ref().map(|file| &file.key), keep).await?)
}

async fn row_of(core: &Core, key: &ObjectKey) -> Result<Option<File>, VerbError> {
    let Some(id) = key.as_str().rsplit('/').next().and_then(|part| part.parse().ok()) else {
        return Ok(None);
    };
    Ok(core.catalog.file(id).await?.filter(|file| file.key == *key))
}
