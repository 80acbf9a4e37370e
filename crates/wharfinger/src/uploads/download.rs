//! Checks that the object is still the confirmed one, and signs a short-lived URL for it. If the object has changed,
//! the file is quarantined.

use wharfinger_lifecycle::file::{self, File, Pin};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::state::Status;
use wharfinger_stores::{BlobError, GetGrant, ObjectMeta, SignedRequest, UrlLifetime};

use super::{STALE_TRIES_MAX, commit, find};
use crate::core::Core;
use crate::core::{Caller, VerbError};
use crate::uploads::Uploads;

const URL_LIFE_MS: i64 = 5 * 60_000;

pub async fn download(uploads: &Uploads, caller: &Caller, id: FileId) -> Result<SignedRequest, VerbError> {
    let core = &uploads.core;
    for _ in 0..STALE_TRIES_MAX {
        let read = find::find(core, caller, id).await?;
        let (Status::Ready, Some(pin)) = (read.status, &read.pin) else {
            return Err(VerbError::NotReady(read.status));
        };
        match core.blobs.head(&read.key, pin.version_id.as_deref()).await {
            Ok(meta) if meta.etag == pin.etag && meta.content_encoding.is_none() => {
                let pin = pin.clone();
                return sign(core, read, pin).await;
            }
            Ok(meta) if is_same_by_checksum(uploads, &read, &meta).await? => {
                let pin = pin_of(meta);
                // If the commit fails, the next round reads the row again.
                commit(uploads, file::repin(&read, pin, core.clock.now()), "download").await?;
                tracing::info!(fileId = %read.id, tenant = %read.tenant, action = "repinned",
                    "object has another ETag and the same bytes, pin updated");
            }
            Ok(_) => {
                let change =
                    file::quarantine(&read, "object changed after it was confirmed", core.clock.now())
                        .map_err(|refusal| VerbError::Internal(refusal.to_string()))?;
                if commit(uploads, change, "download").await? {
                    tracing::error!(fileId = %read.id, tenant = %read.tenant, action = "quarantined",
                        "object was changed by another program, file quarantined");
                    return Err(VerbError::NotReady(Status::Quarantined));
                }
            }
            Err(BlobError::NotFound) => {
                tracing::error!(fileId = %read.id, tenant = %read.tenant, action = "missing",
                    "object of a ready file is missing");
                return Err(VerbError::ObjectMissing);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(VerbError::busy())
}

/// Whether the object still has the confirmed bytes. After a restore of the store, the same bytes have another ETag.
async fn is_same_by_checksum(uploads: &Uploads, file: &File, meta: &ObjectMeta) -> Result<bool, VerbError> {
    match &file.checksum_sha256 {
        Some(checksum) if meta.size == file.size && meta.content_encoding.is_none() => {
            Ok(uploads.checksums.sha256(&uploads.core, file, &pin_of(meta.clone())).await? == *checksum)
        }
        _ => Ok(false),
    }
}

fn pin_of(meta: ObjectMeta) -> Pin {
    Pin { etag: meta.etag, version_id: meta.version_id }
}

async fn sign(core: &Core, file: File, pin: Pin) -> Result<SignedRequest, VerbError> {
    let now = core.clock.now();
    let grant = GetGrant {
        key: file.key,
        pin,
        content_type: file.content_type,
        file_name: file.name,
        lifetime: UrlLifetime { signed_at: now, expires_at: now.saturating_add(URL_LIFE_MS) },
    };
    Ok(core.blobs.sign_get(&grant).await?)
}
