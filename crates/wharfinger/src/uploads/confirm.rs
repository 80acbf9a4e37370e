//! Makes an uploaded file real: the object is found, measured, pinned, and only then does the row say so. Of a
//! confirm and a cleaner that race, the row's version lets exactly one win.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::StreamExt as _;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use wharfinger_lifecycle::checksum::{is_sha256, to_hex};
use wharfinger_lifecycle::file::{self, Change, File, Pin};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::limits::MIB;
use wharfinger_lifecycle::retry::Backoff;
use wharfinger_lifecycle::state::Status;
use wharfinger_stores::{BlobError, BlobStore};

use super::{STALE_TRIES_MAX, check_batch, commit, find, parts};
use crate::core::Core;
use crate::core::{Caller, VerbError};
use crate::telemetry::traces::Done;
use crate::uploads::Uploads;

pub async fn confirm(
    uploads: &Uploads,
    caller: &Caller,
    id: FileId,
    checksum_sha256: Option<String>,
) -> Result<Status, VerbError> {
    let core = &uploads.core;
    if checksum_sha256.as_deref().is_some_and(|checksum| !is_sha256(checksum)) {
        return Err(VerbError::invalid("checksumSha256", "must be 64 lower-case hex digits"));
    }
    let from = core.clock.now();
    for _ in 0..STALE_TRIES_MAX {
        let read = find::find(core, caller, id).await?;
        if read.status != Status::Registered {
            return Ok(read.status);
        }
        check_batch(core, &read).await?;
        if let Some(later) = put_off_cleaner(core, &read, checksum_sha256.as_deref()) {
            // Committed or not, the next round finds what holds.
            commit(uploads, later, &caller.actor()).await?;
            continue;
        }
        let change = examine(uploads, &read, checksum_sha256.clone(), "confirmed", Reading::Awaited).await?;
        let file = change.after.clone();
        if commit(uploads, change, &caller.actor()).await? {
            let to = core.clock.now();
            core.traces.went_on(&Done { name: "confirm", from, to, error: None, file: &file, attempt: None });
            return Ok(file.status);
        }
    }
    Err(VerbError::busy())
}

/// Whether the object has to be read to the end to know its checksum.
fn is_read(core: &Core, file: &File, given_sha256: Option<&str>) -> bool {
    let store_checked = core.blobs.caps().binds_checksum && file.part_size.is_none();
    match (&file.checksum_sha256, given_sha256) {
        (Some(_), _) => !store_checked,
        (None, given) => given.is_some(),
    }
}

/// Reading may take longer than the window has left: a cleaner must not take what is being confirmed.
fn put_off_cleaner(core: &Core, file: &File, given_sha256: Option<&str>) -> Option<Change> {
    let now = core.clock.now();
    let needed_until = now.saturating_add(core.policy.grace_for(file.size));
    let is_short = file.next_check_at.is_some_and(|at| at < needed_until);
    (is_short && is_read(core, file, given_sha256)).then(|| {
        let until = needed_until.saturating_add(MARGIN_MS);
        file::defer(file, until, now)
    })
}

/// Who waits for a large object to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The caller, who asked for it.
    Awaited,
    /// Nobody: others would wait behind it. It is asked for again later.
    InBackground,
}

/// Looks at the object of a registered file and decides its confirmation.
pub(super) async fn examine(
    uploads: &Uploads,
    file: &File,
    given_sha256: Option<String>,
    reason: &str,
    reading: Reading,
) -> Result<Change, VerbError> {
    let core = &uploads.core;
    if let Some(cut) = file.cut() {
        parts::join(core, file, cut).await?;
    }
    let meta = match core.blobs.head(&file.key, None).await {
        Ok(meta) => meta,
        Err(BlobError::NotFound) => return Err(VerbError::ObjectMissing),
        Err(error) => return Err(error.into()),
    };
    if meta.size != file.size {
        return Err(VerbError::SizeMismatch { expected: file.size, actual: meta.size });
    }
    // Clients would unpack it when they download it: other bytes than were scanned, and more than were charged.
    if let Some(encoding) = meta.content_encoding {
        return Err(VerbError::EncodingMismatch(encoding));
    }
    let declared = file.checksum_sha256.clone();
    if let (Some(declared), Some(given)) = (&declared, &given_sha256)
        && declared != given
    {
        return Err(VerbError::ChecksumMismatch);
    }
    let pin = Pin { etag: meta.etag, version_id: meta.version_id };
    if let (true, Some(expected)) =
        (is_read(core, file, given_sha256.as_deref()), declared.or(given_sha256.clone()))
    {
        check_bytes(uploads, file, &pin, &expected, reading).await?;
    }
    core.blobs.make_durable(&file.key).await?;
    file::confirm(file, pin, given_sha256, reason, &core.plan, core.clock.now())
        .map_err(|refusal| VerbError::Internal(refusal.to_string()))
}

/// Reads the very object that is about to be pinned.
async fn check_bytes(
    uploads: &Uploads,
    file: &File,
    pin: &Pin,
    expected: &str,
    reading: Reading,
) -> Result<(), VerbError> {
    let core = &uploads.core;
    let sum = match reading {
        Reading::Awaited => uploads.examinations.sha256(core, file, pin).await,
        Reading::InBackground => uploads.examinations.sha256_or_begin(core, file, pin).await,
    };
    let found = match sum {
        Err(VerbError::NotFound) => return Err(VerbError::ObjectMissing),
        found => found?,
    };
    if found == expected { Ok(()) } else { Err(VerbError::ChecksumMismatch) }
}

/// Objects that are read whole for their checksum: each once at a time, a few at once, and the last few results
/// are kept, so that asking again is cheap.
pub struct Examinations {
    places: Semaphore,
    /// For small ones, which do not wait for those that take hours.
    small_places: Semaphore,
    under_way: Mutex<BTreeSet<FileId>>,
    known: Mutex<VecDeque<(FileId, Pin, String)>>,
}

const EXAMINATIONS_MAX: usize = 4;
const SMALL_BYTES_MAX: u64 = 64 * MIB;
const KNOWN_MAX: usize = 256;
/// So that a file is not put off again at once.
const MARGIN_MS: i64 = 60_000;
/// Without a byte in between.
const READ_TRIES_MAX: u32 = 5;
const READ_PAUSE: Backoff = Backoff { base_ms: 200, cap_ms: 5_000 };

impl Default for Examinations {
    fn default() -> Self {
        Examinations {
            places: Semaphore::new(EXAMINATIONS_MAX),
            small_places: Semaphore::new(EXAMINATIONS_MAX),
            under_way: Mutex::default(),
            known: Mutex::default(),
        }
    }
}

/// Reads the object to its end. A connection that breaks after a terabyte does not begin again: what is pinned goes
/// on where it stopped.
async fn read(blobs: &dyn BlobStore, file: &File, pin: &Pin) -> Result<String, VerbError> {
    let mut hasher = Sha256::new();
    let (mut offset, mut attempt) = (0, 1);
    loop {
        let mut bytes = match blobs.get(&file.key, pin, offset, None).await {
            Err(BlobError::NotFound) => return Err(VerbError::NotFound),
            bytes => bytes?,
        };
        let broke = loop {
            match bytes.next().await {
                Some(Ok(chunk)) => {
                    hasher.update(&chunk);
                    offset += chunk.len() as u64;
                    attempt = 1;
                }
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        match broke {
            None if offset == file.size => return Ok(to_hex(&hasher.finalize())),
            None => return Err(VerbError::Unavailable(format!("the object ended after {offset} bytes"))),
            Some(error) if !error.is_retryable() || attempt >= READ_TRIES_MAX => return Err(error.into()),
            Some(_) => {
                let pause = READ_PAUSE.delay_ms(attempt, rand::random());
                tokio::time::sleep(Duration::from_millis(pause)).await;
                attempt += 1;
            }
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
    pub(super) async fn sha256(&self, core: &Core, file: &File, pin: &Pin) -> Result<String, VerbError> {
        let known = lock(&self.known).iter().find(|(id, of, _)| (*id, of) == (file.id, pin)).cloned();
        if let Some((_, _, sum)) = known {
            return Ok(sum);
        }
        if !lock(&self.under_way).insert(file.id) {
            return Err(VerbError::Unavailable("the object is being read for an earlier call".into()));
        }
        let _under_way = UnderWay(&self.under_way, file.id);
        let places = if file.size <= SMALL_BYTES_MAX { &self.small_places } else { &self.places };
        let _place = places.acquire().await.map_err(|closed| VerbError::Unavailable(closed.to_string()))?;
        let sum = read(&*core.blobs, file, pin).await?;
        self.remember(file, pin, &sum);
        Ok(sum)
    }

    /// The same, except that a large object is read in the background: until then the answer is not there.
    pub(super) async fn sha256_or_begin(
        self: &Arc<Self>,
        core: &Core,
        file: &File,
        pin: &Pin,
    ) -> Result<String, VerbError> {
        let is_known = lock(&self.known).iter().any(|(id, of, _)| (*id, of) == (file.id, pin));
        if is_known || file.size <= SMALL_BYTES_MAX {
            return self.sha256(core, file, pin).await;
        }
        if lock(&self.under_way).insert(file.id) {
            let (me, blobs, stop) = (self.clone(), core.blobs.clone(), core.draining.clone());
            let (file, pin) = (file.clone(), pin.clone());
            core.verbs.spawn(async move {
                let _under_way = UnderWay(&me.under_way, file.id);
                let Ok(_place) = me.places.acquire().await else { return };
                match stop.run_until_cancelled(read(&*blobs, &file, &pin)).await {
                    Some(Ok(sum)) => me.remember(&file, &pin, &sum),
                    Some(Err(error)) => {
                        tracing::warn!(fileId = %file.id, error = ?error, "cannot read an object for its checksum");
                    }
                    None => {}
                }
            });
        }
        Err(VerbError::Unavailable("a large object is being read for its checksum".into()))
    }

    fn remember(&self, file: &File, pin: &Pin, sum: &str) {
        let mut known = lock(&self.known);
        known.push_back((file.id, pin.clone(), sum.to_owned()));
        if known.len() > KNOWN_MAX {
            known.pop_front();
        }
    }

    /// How many objects are being read.
    pub fn under_way(&self) -> usize {
        lock(&self.under_way).len()
    }
}
