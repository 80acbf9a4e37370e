//! Checks that the object is still the confirmed one, and signs a short-lived URL for it. If the object has changed,
//! the file is quarantined.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::download::{DownloadRefusal, downloadable};
use wharfinger_lifecycle::download_type::{attachment_type, inline_type};
use wharfinger_lifecycle::file::{self, File, Pin};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::quarantine::{QuarantineCause, quarantine};
use wharfinger_stores::{BlobError, Disposition, GetGrant, ObjectMeta, UrlLifetime};

use super::{STALE_TRIES_MAX, commit, find};
use crate::core::Core;
use crate::core::{Caller, VerbError};
use crate::uploads::Uploads;

pub const URL_LIFE_MS: i64 = 5 * 60_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownloadRequest {
    pub disposition: Disposition,
    /// Shortened to what the store can sign.
    pub life_ms: i64,
}

/// A URL that anyone who has it can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DownloadLink {
    pub url: String,
    pub expires_at: UnixMs,
}

pub async fn download(
    uploads: &Uploads,
    caller: &Caller,
    id: FileId,
    request: DownloadRequest,
) -> Result<DownloadLink, VerbError> {
    let core = &uploads.core;
    for _ in 0..STALE_TRIES_MAX {
        let read = find::find(core, caller, id).await?;
        let pin = downloadable(&read).map_err(|refusal| match refusal {
            DownloadRefusal::NotReady => VerbError::NotReady(read.status),
            DownloadRefusal::Quarantined => VerbError::Quarantined,
        })?;
        // Checked before the call to the store.
        let content_type = content_type(&read, request.disposition)?;
        match confirmed_bytes(uploads, &read, pin).await {
            Ok(Some(found)) if found == *pin => {
                return sign(core, read, found, content_type, request).await;
            }
            Ok(Some(found)) => {
                // If the commit fails, the next round reads the row again.
                commit(uploads, file::repin(&read, found, core.clock.now()), "download").await?;
                tracing::info!(fileId = %read.id, tenant = %read.tenant, action = "repinned",
                    "object has another ETag and the same bytes, pin updated");
            }
            Ok(None) => {
                let why = "object changed after it was confirmed";
                let change = quarantine(&read, QuarantineCause::Changed, why, &core.plan, core.clock.now())
                    .map_err(|refusal| VerbError::Internal(refusal.to_string()))?;
                if commit(uploads, change, "download").await? {
                    tracing::error!(fileId = %read.id, tenant = %read.tenant, action = "quarantined",
                        "object was changed by another program, file quarantined");
                    return Err(VerbError::Quarantined);
                }
            }
            Err(VerbError::ObjectMissing) => {
                tracing::error!(fileId = %read.id, tenant = %read.tenant, action = "missing",
                    "object of a confirmed file is missing");
                return Err(VerbError::ObjectMissing);
            }
            Err(error) => return Err(error),
        }
    }
    Err(VerbError::busy())
}

/// The pin of the confirmed bytes in the store: the pin of the row, or another one of the same bytes. `None`: the object has
/// other bytes.
pub(super) async fn confirmed_bytes(
    uploads: &Uploads,
    file: &File,
    pin: &Pin,
) -> Result<Option<Pin>, VerbError> {
    match uploads.core.blobs.head(&file.key, pin.version_id.as_deref()).await {
        Ok(meta) if meta.etag == pin.etag && meta.content_encoding.is_none() => Ok(Some(pin.clone())),
        Ok(meta) if is_same_by_checksum(uploads, file, &meta).await? => Ok(Some(pin_of(meta))),
        Ok(_) => Ok(None),
        Err(BlobError::NotFound) => Err(VerbError::ObjectMissing),
        Err(error) => Err(error.into()),
    }
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

/// The type that the store sends. A browser shows a file only if the type is one that it cannot run.
fn content_type(file: &File, disposition: Disposition) -> Result<String, VerbError> {
    let declared = file.content_type.as_deref();
    match disposition {
        Disposition::Attachment => Ok(attachment_type(declared)),
        Disposition::Inline => {
            declared.and_then(inline_type).ok_or_else(|| VerbError::NotInline(file.content_type.clone()))
        }
    }
}

async fn sign(
    core: &Core,
    file: File,
    pin: Pin,
    content_type: String,
    request: DownloadRequest,
) -> Result<DownloadLink, VerbError> {
    let now = core.clock.now();
    let life_ms_max = i64::try_from(core.blobs.url_life_max().as_millis()).unwrap_or(i64::MAX);
    let expires_at = now.saturating_add(request.life_ms.min(life_ms_max));
    let grant = GetGrant {
        key: file.key,
        pin,
        content_type: Some(content_type),
        file_name: file.name,
        disposition: request.disposition,
        lifetime: UrlLifetime { signed_at: now, expires_at },
    };
    let url = core.blobs.sign_get(&grant).await?.url;
    Ok(DownloadLink { url, expires_at })
}
