//! Makes an uploaded file real: the object is found, measured, pinned, and only then does the row say so. Of a
//! confirm and a cleaner that race, the row's version lets exactly one win.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard};

use futures::StreamExt as _;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use wharfinger_backends::blobs::BlobError;
use wharfinger_lifecycle::checksum::{is_sha256, to_hex};
use wharfinger_lifecycle::file::{self, Change, File, Pin};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::state::Status;

use super::{Caller, STALE_TRIES_MAX, VerbError, commit, find, parts};
use crate::app::App;

pub async fn confirm(
    app: &App,
    caller: &Caller,
    id: FileId,
    checksum_sha256: Option<String>,
) -> Result<Status, VerbError> {
    if checksum_sha256.as_deref().is_some_and(|checksum| !is_sha256(checksum)) {
        return Err(VerbError::invalid("checksumSha256", "must be 64 lower-case hex digits"));
    }
    for _ in 0..STALE_TRIES_MAX {
        let read = find::find(app, caller, id).await?;
        if read.status != Status::Registered {
            return Ok(read.status);
        }
        let change = examine(app, &read, checksum_sha256.clone(), "confirmed").await?;
        let status = change.after.status;
        if commit(app, change, &caller.actor()).await? {
            return Ok(status);
        }
    }
    Err(VerbError::busy())
}

/// Looks at the object of a registered file and decides its confirmation.
pub(super) async fn examine(
    app: &App,
    file: &File,
    given_sha256: Option<String>,
    reason: &str,
) -> Result<Change, VerbError> {
    if let Some(cut) = file.cut() {
        parts::join(app, file, cut).await?;
    }
    let meta = match app.blobs.head(&file.key, None).await {
        Ok(meta) => meta,
        Err(BlobError::NotFound) => return Err(VerbError::ObjectMissing),
        Err(error) => return Err(error.into()),
    };
    if meta.size != file.size {
        return Err(VerbError::SizeMismatch { expected: file.size, actual: meta.size });
    }
    let declared = file.checksum_sha256.clone();
    if let (Some(declared), Some(given)) = (&declared, &given_sha256)
        && declared != given
    {
        return Err(VerbError::ChecksumMismatch);
    }
    let store_checked = declared.is_some() && app.blobs.caps().binds_checksum && file.part_size.is_none();
    let pin = Pin { etag: meta.etag, version_id: meta.version_id };
    if let (Some(expected), false) = (declared.or(given_sha256.clone()), store_checked) {
        check_bytes(app, file, &pin, &expected).await?;
    }
    app.blobs.make_durable(&file.key).await?;
    file::confirm(file, pin, given_sha256, reason, app.clock.now())
        .map_err(|refusal| VerbError::Internal(refusal.to_string()))
}

/// Reads the very object that is about to be pinned.
async fn check_bytes(app: &App, file: &File, pin: &Pin, expected: &str) -> Result<(), VerbError> {
    let found = match app.examinations.sha256(app, file, pin).await {
        Err(VerbError::NotFound) => return Err(VerbError::ObjectMissing),
        found => found?,
    };
    if found == expected { Ok(()) } else { Err(VerbError::ChecksumMismatch) }
}

/// Objects that are read whole for their checksum: each once at a time, a few at once, and the last few results
/// are kept, so that asking again is cheap.
pub struct Examinations {
    places: Semaphore,
    under_way: Mutex<BTreeSet<FileId>>,
    known: Mutex<VecDeque<(FileId, Pin, String)>>,
}

const EXAMINATIONS_MAX: usize = 4;
const KNOWN_MAX: usize = 256;

impl Default for Examinations {
    fn default() -> Self {
        Examinations {
            places: Semaphore::new(EXAMINATIONS_MAX),
            under_way: Mutex::default(),
            known: Mutex::default(),
        }
    }
}

/// Takes a file off the list of those under way, however its reading ends.
struct UnderWay<'e>(&'e Mutex<BTreeSet<FileId>>, FileId);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        lock(self.0).remove(&self.1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Examinations {
    /// The SHA-256 of the very object that a pin names.
    pub(super) async fn sha256(&self, app: &App, file: &File, pin: &Pin) -> Result<String, VerbError> {
        let known = lock(&self.known).iter().find(|(id, of, _)| (*id, of) == (file.id, pin)).cloned();
        if let Some((_, _, sum)) = known {
            return Ok(sum);
        }
        if !lock(&self.under_way).insert(file.id) {
            return Err(VerbError::Unavailable("the object is being read for an earlier call".into()));
        }
        let _under_way = UnderWay(&self.under_way, file.id);
        let _place =
            self.places.acquire().await.map_err(|closed| VerbError::Unavailable(closed.to_string()))?;
        let mut bytes = match app.blobs.get(&file.key, pin, 0, None).await {
            Err(BlobError::NotFound) => return Err(VerbError::NotFound),
            bytes => bytes?,
        };
        let mut hasher = Sha256::new();
        while let Some(chunk) = bytes.next().await {
            hasher.update(&chunk?);
        }
        let sum = to_hex(&hasher.finalize());
        let mut known = lock(&self.known);
        known.push_back((file.id, pin.clone(), sum.clone()));
        if known.len() > KNOWN_MAX {
            known.pop_front();
        }
        Ok(sum)
    }
}
