//! Confirms an upload: finds the object, checks its size and checksum, pins its version, and then changes the row. If a
//! confirm and a cleanup race, the row's version lets the first of them commit.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::StreamExt as _;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use wharfinger_lifecycle::checksum::{is_sha256, to_hex};
use wharfinger_lifecycle::file::{self, Change, File, Pin};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::limits::MIB;
use wharfinger_lifecycle::retry::Backoff;
use wharfinger_lifecycle::state::Status;
use wharfinger_stores::{BlobError, BlobStore};

use super::{STALE_TRIES_MAX, check_batch, commit, content, find, parts};
use crate::core::Core;
use crate::core::{Caller, VerbError};
use crate::telemetry::traces::FileSpan;
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
        if let Some(later) = postpone_expiry(core, &read, checksum_sha256.as_deref()) {
            // If the commit fails, the next round reads the row again.
            commit(uploads, later, &caller.actor()).await?;
            continue;
        }
        let change =
            verify_object(uploads, &read, checksum_sha256.clone(), "confirmed", ReadMode::Wait).await?;
        let file = change.after.clone();
        if commit(uploads, change, &caller.actor()).await? {
            let to = core.clock.now();
            core.traces.child(&FileSpan {
                name: "confirm",
                from,
                to,
                error: None,
                file: &file,
                attempt: None,
            });
            return Ok(file.status);
        }
    }
    Err(VerbError::busy())
}

/// The outcome of a confirm that the store has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedOutcome {
    Confirmed,
    /// The file was confirmed before.
    Repeated,
    /// The file or its batch has ended, or the object is missing or not what was announced.
    Refused,
    /// No file has this key.
    Unknown,
}

const REPORTED: &str = "confirmed: the store reported the object";

/// Confirms the upload of an object that the store has reported. `is_key` compares the key of the file with the reported one.
pub async fn confirm_reported(
    uploads: &Uploads,
    id: FileId,
    is_key: impl Fn(&ObjectKey) -> bool,
    actor: &str,
) -> Result<ReportedOutcome, VerbError> {
    let core = &uploads.core;
    for _ in 0..STALE_TRIES_MAX {
        let read = match core.catalog.file(id).await? {
            Some(file) if is_key(&file.key) => file,
            _ => return Ok(ReportedOutcome::Unknown),
        };
        if read.status != Status::Registered {
            return Ok(match read.ended {
                None => ReportedOutcome::Repeated,
                Some(_) => ReportedOutcome::Refused,
            });
        }
        let checked = async {
            check_batch(core, &read).await?;
            match postpone_expiry(core, &read, None) {
                Some(later) => Ok::<_, VerbError>((later, false)),
                None => {
                    let change = verify_object(uploads, &read, None, REPORTED, ReadMode::Background).await?;
                    Ok((change, true))
                }
            }
        };
        let (change, confirms) = match checked.await {
            Ok(decided) => decided,
            Err(error) if error.is_about_object() => {
                tracing::info!(fileId = %id, tenant = %read.tenant, action = "refused", error = %error,
                    "reported object not confirmed");
                return Ok(ReportedOutcome::Refused);
            }
            Err(error) => return Err(error),
        };
        if commit(uploads, change, actor).await? && confirms {
            return Ok(ReportedOutcome::Confirmed);
        }
    }
    Err(VerbError::busy())
}

/// Whether the whole object has to be read to check its checksum.
fn is_read(core: &Core, file: &File, given_sha256: Option<&str>) -> bool {
    let store_checked = core.blobs.capabilities().enforces_checksum && file.part_size.is_none();
    match (&file.checksum_sha256, given_sha256) {
        (Some(_), _) => !store_checked,
        (None, given) => given.is_some(),
    }
}

/// Moves the next check of the file to a later time if reading the object could take longer than that. Otherwise the file
/// could be reclaimed during its confirm.
fn postpone_expiry(core: &Core, file: &File, given_sha256: Option<&str>) -> Option<Change> {
    let now = core.clock.now();
    let needed_until = now.saturating_add(core.policy.grace_for(file.size));
    let is_short = file.next_check_at.is_some_and(|at| at < needed_until);
    (is_short && is_read(core, file, given_sha256)).then(|| {
        let until = needed_until.saturating_add(MARGIN_MS);
        file::defer(file, until, now)
    })
}

/// Whether the caller waits while a large object is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadMode {
    /// The caller waits.
    Wait,
    /// The object is read in the background and the caller tries again later, so that one large file does not delay others.
    Background,
}

/// Checks the object of a registered file and returns the change that confirms the file.
pub(super) async fn verify_object(
    uploads: &Uploads,
    file: &File,
    given_sha256: Option<String>,
    reason: &str,
    mode: ReadMode,
) -> Result<Change, VerbError> {
    let core = &uploads.core;
    if let Some(layout) = file.part_layout() {
        parts::complete(core, file, layout).await?;
    }
    let meta = match core.blobs.head(&file.key, None).await {
        Ok(meta) => meta,
        Err(BlobError::NotFound) => return Err(VerbError::ObjectMissing),
        Err(error) => return Err(error.into()),
    };
    if meta.size != file.size {
        return Err(VerbError::SizeMismatch { expected: file.size, actual: meta.size });
    }
    // Clients would decompress it after a download and get other bytes than were scanned, and more than were charged.
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
    content::check_type(uploads, file, &pin).await?;
    if let (true, Some(expected)) =
        (is_read(core, file, given_sha256.as_deref()), declared.or(given_sha256.clone()))
    {
        check_bytes(uploads, file, &pin, &expected, mode).await?;
    }
    core.blobs.make_durable(&file.key).await?;
    file::confirm(file, pin, given_sha256, reason, &core.plan, core.clock.now())
        .map_err(|refusal| VerbError::Internal(refusal.to_string()))
}

/// Compares the checksum of exactly the object version that will be pinned.
async fn check_bytes(
    uploads: &Uploads,
    file: &File,
    pin: &Pin,
    expected: &str,
    mode: ReadMode,
) -> Result<(), VerbError> {
    let core = &uploads.core;
    let sum = match mode {
        ReadMode::Wait => uploads.checksums.sha256(core, file, pin).await,
        ReadMode::Background => uploads.checksums.sha256_or_start(core, file, pin).await,
    };
    let found = match sum {
        Err(VerbError::NotFound) => return Err(VerbError::ObjectMissing),
        found => found?,
    };
    if found == expected { Ok(()) } else { Err(VerbError::ChecksumMismatch) }
}

/// Reads objects to compute their checksums: each object once at a time, and only a few at once. The last results are
/// kept, so that a repeated call is cheap.
pub struct ChecksumReader {
    large_slots: Semaphore,
    /// Small objects have their own slots, because reading a large one can take hours.
    small_slots: Semaphore,
    reading: Mutex<BTreeSet<FileId>>,
    known: Mutex<VecDeque<(FileId, Pin, String)>>,
}

const SLOTS: usize = 4;
const SMALL_BYTES_MAX: u64 = 64 * MIB;
const KNOWN_MAX: usize = 256;
/// Added to the later check, so that the file is not deferred again at once.
const MARGIN_MS: i64 = 60_000;
/// Tries in a row without reading a byte.
const READ_TRIES_MAX: u32 = 5;
const READ_PAUSE: Backoff = Backoff { base_ms: 200, cap_ms: 5_000 };

impl Default for ChecksumReader {
    fn default() -> Self {
        ChecksumReader {
            large_slots: Semaphore::new(SLOTS),
            small_slots: Semaphore::new(SLOTS),
            reading: Mutex::default(),
            known: Mutex::default(),
        }
    }
}

/// Reads the object to its end. After a broken connection it continues at the same offset, because the version is pinned.
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
            None => {
                return Err(VerbError::Unavailable(format!(
                    "the store returned only {offset} bytes of the object"
                )));
            }
            Some(error) if !error.is_retryable() || attempt >= READ_TRIES_MAX => return Err(error.into()),
            Some(_) => {
                let pause = READ_PAUSE.delay_ms(attempt, rand::random());
                tokio::time::sleep(Duration::from_millis(pause)).await;
                attempt += 1;
            }
        }
    }
}

/// Removes a file from the set of objects being read when it is dropped.
struct ReadingGuard<'e>(&'e Mutex<BTreeSet<FileId>>, FileId);

impl Drop for ReadingGuard<'_> {
    fn drop(&mut self) {
        lock(self.0).remove(&self.1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl ChecksumReader {
    /// The SHA-256 of the pinned object version.
    pub(super) async fn sha256(&self, core: &Core, file: &File, pin: &Pin) -> Result<String, VerbError> {
        let known = lock(&self.known).iter().find(|(id, of, _)| (*id, of) == (file.id, pin)).cloned();
        if let Some((_, _, sum)) = known {
            return Ok(sum);
        }
        if !lock(&self.reading).insert(file.id) {
            return Err(VerbError::Unavailable(
                "an earlier call is still reading the object for its checksum".into(),
            ));
        }
        let _guard = ReadingGuard(&self.reading, file.id);
        let slots = if file.size <= SMALL_BYTES_MAX { &self.small_slots } else { &self.large_slots };
        let _slot = slots.acquire().await.map_err(|closed| VerbError::Unavailable(closed.to_string()))?;
        let sum = read(&*core.blobs, file, pin).await?;
        self.remember(file, pin, &sum);
        Ok(sum)
    }

    /// The same, except that a large object is read in the background. The call fails until the result is known.
    pub(super) async fn sha256_or_start(
        self: &Arc<Self>,
        core: &Core,
        file: &File,
        pin: &Pin,
    ) -> Result<String, VerbError> {
        let is_known = lock(&self.known).iter().any(|(id, of, _)| (*id, of) == (file.id, pin));
        if is_known || file.size <= SMALL_BYTES_MAX {
            return self.sha256(core, file, pin).await;
        }
        if lock(&self.reading).insert(file.id) {
            let (me, blobs, stop) = (self.clone(), core.blobs.clone(), core.draining.clone());
            let (file, pin) = (file.clone(), pin.clone());
            core.verbs.spawn(async move {
                let _guard = ReadingGuard(&me.reading, file.id);
                let Ok(_slot) = me.large_slots.acquire().await else { return };
                match stop.run_until_cancelled(read(&*blobs, &file, &pin)).await {
                    Some(Ok(sum)) => me.remember(&file, &pin, &sum),
                    Some(Err(error)) => {
                        tracing::warn!(fileId = %file.id, error = %error.with_cause(), "cannot read an object for its checksum");
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

    /// How many objects are being read or wait for it.
    pub fn reading(&self) -> usize {
        lock(&self.reading).len()
    }
}
