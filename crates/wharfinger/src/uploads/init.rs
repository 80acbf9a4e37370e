//! Starts an upload: registers the file and its delayed check in one transaction, then signs a URL. The same
//! transaction charges the quota, unless Redis has counted it before.

use uuid::Uuid;
use wharfinger_catalog::{
    Admission, BatchUse, IdempotencyKey, NewFile, NewJob, RegisterOutcome, Registration, fresh_id,
};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::batch::Batch;
use wharfinger_lifecycle::file::{self, File, UploadPolicy, UploadRequest};
use wharfinger_lifecycle::id::{BatchId, FileId, JobId};
use wharfinger_lifecycle::parts::part_size;
use wharfinger_lifecycle::state::Status;
use wharfinger_stores::{PutGrant, SignedRequest, UrlLifetime};

use super::validate::{Problems, check_rules, fingerprint};
use super::{commit, parts, reissue};
use crate::core::Core;
use crate::core::{Caller, VerbError};
use crate::quota;
use crate::telemetry::traces::FileSpan;
use crate::uploads::Uploads;

/// The queue of delayed checks for unconfirmed uploads.
pub const CHECK_QUEUE: &str = "upload-check";

/// A file and, while it is not confirmed, the request that uploads its bytes.
#[derive(Clone, Debug)]
pub struct Grant {
    pub file: File,
    pub upload: Option<Upload>,
}

#[derive(Clone, Debug)]
pub struct Upload {
    pub method: UploadMethod,
    pub expires_at: UnixMs,
}

#[derive(Clone, Debug)]
pub enum UploadMethod {
    SinglePut(SignedRequest),
    Multipart { part_size: u64, parts: Vec<GrantedPart> },
}

/// One part, with the URL that uploads it.
#[derive(Clone, Debug)]
pub struct GrantedPart {
    pub number: u32,
    pub size: u64,
    pub url: String,
    /// The store already has this part.
    pub uploaded: bool,
}

pub async fn init(
    uploads: &Uploads,
    caller: &Caller,
    mut announced: UploadRequest,
    batch: Option<BatchId>,
    key: Option<String>,
) -> Result<Grant, VerbError> {
    let core = &uploads.core;
    let mut problems = Problems::default();
    problems.check(core, &mut announced, "");
    problems.check_key(key.as_deref());
    problems.into_result()?;
    check_rules(core, &uploads.rules.of_tenant(&caller.tenant).await?, &announced, "")?;
    let batch = match batch {
        Some(id) => Some(core.catalog.batch(id).await?.ok_or(VerbError::NotFound)?),
        None => None,
    };
    let has_key = key.is_some();
    // Without the batch: the same file announced again for another batch is still the same file.
    let fingerprint = fingerprint([&announced]);
    let now = core.clock.now();
    let new = new_file(core, caller, FileId(fresh_id(now)), announced, batch.as_ref(), now);
    let file = new.file.clone();
    let registration = Registration {
        batch: batch.map_or(BatchUse::None, |batch| BatchUse::Existing(batch.id)),
        ..registration(core, caller, vec![new], now)
    };
    let idempotency_key = key.map(|key| idempotency_key(core, "files/init", key, fingerprint, now));
    match register(uploads, Registration { idempotency_key, ..registration }).await? {
        None => match grant(core, file.clone()).await {
            // No client has its id or URL, and without a key no client can request it again. So its charge ends at once.
            Err(error) if !has_key => {
                delete_ungranted(uploads, caller, &file).await;
                Err(error)
            }
            granted => granted,
        },
        Some(made) => repeat(uploads, caller, FileId(made)).await,
    }
}

/// A file as announced, with its delayed check.
pub(crate) fn new_file(
    core: &Core,
    caller: &Caller,
    id: FileId,
    announced: UploadRequest,
    batch: Option<&Batch>,
    now: UnixMs,
) -> NewFile {
    let part_size = core.blobs.multipart().and_then(|parts| {
        part_size(announced.size, core.settings.multipart_threshold_bytes, &parts.limits())
    });
    let (tenant, user) = (caller.tenant.clone(), caller.user.clone());
    let file = file::register(id, tenant, user, announced, &core.policy, now);
    let file = match batch {
        Some(batch) => batch.add_file(file, &core.policy),
        None => file,
    };
    let check = NewJob {
        queue: CHECK_QUEUE,
        tenant: file.tenant.clone(),
        file: Some(id),
        payload: None,
        run_at: file.next_check_at.unwrap_or(now),
        max_attempts: core.settings.job_max_attempts,
    };
    NewFile { file: File { part_size, ..file }, check, check_id: JobId(fresh_id(now)) }
}

pub(crate) fn registration(core: &Core, caller: &Caller, files: Vec<NewFile>, now: UnixMs) -> Registration {
    Registration {
        tenant: caller.tenant.clone(),
        user: caller.user.clone(),
        files,
        batch: BatchUse::None,
        now,
        actor: caller.actor(),
        default_limit_bytes: core.settings.default_quota_bytes,
        unconfirmed_limit_percent: core.settings.unconfirmed_limit_percent,
        idempotency_key: None,
        admission: Admission::Database,
        by_broker: core.settings.broker_rabbit.is_some(),
    }
}

pub(crate) fn idempotency_key(
    core: &Core,
    route: &'static str,
    key: String,
    fingerprint: String,
    now: UnixMs,
) -> IdempotencyKey {
    IdempotencyKey {
        route,
        key,
        fingerprint,
        expires_at: now.saturating_add(core.settings.idempotency_ttl_ms),
    }
}

/// None: it was registered. Otherwise the id that was created earlier with the same key.
pub(crate) async fn register(uploads: &Uploads, wanted: Registration) -> Result<Option<Uuid>, VerbError> {
    let core = &uploads.core;
    let requested_bytes = wanted.bytes();
    let first_check_at = wanted.files.iter().filter_map(|new| new.file.next_check_at).min();
    let (from, traced) = (wanted.now, core.traces.is_enabled().then(|| wanted.files.clone()));
    match quota::register(&uploads.quota, wanted).await? {
        RegisterOutcome::Created => {
            for new in traced.iter().flatten() {
                let to = core.clock.now();
                core.traces.root(&FileSpan {
                    name: "init",
                    from,
                    to,
                    error: None,
                    file: &new.file,
                    attempt: None,
                });
            }
            core.wakeups.archive.notify_one();
            if let Some(at) = first_check_at {
                core.wakeups.check.wake_for(at);
                core.wakeups.broker.notify_one();
            }
            Ok(None)
        }
        RegisterOutcome::Repeated(made) => Ok(Some(made)),
        RegisterOutcome::KeyMismatch => Err(VerbError::KeyMismatch),
        RegisterOutcome::QuotaOwnerChanged(_) => Err(VerbError::busy()),
        RegisterOutcome::NoBatch => Err(VerbError::NotFound),
        RegisterOutcome::BatchClosed(refusal) => Err(VerbError::BatchClosed(refusal)),
        RegisterOutcome::QuotaExceeded { used_bytes, limit_bytes } => {
            Err(VerbError::QuotaExceeded { used_bytes, limit_bytes, requested_bytes })
        }
        RegisterOutcome::UnconfirmedLimit { held_bytes, limit_bytes } => {
            Err(VerbError::UnconfirmedLimit { held_bytes, limit_bytes, requested_bytes })
        }
    }
}

/// Deletes a file whose URL was never sent to a client. If that fails, the file ends with its upload window.
async fn delete_ungranted(uploads: &Uploads, caller: &Caller, file: &File) {
    let core = &uploads.core;
    // Without a URL nothing can be uploaded, and without parts no confirm can join them.
    let no_url = UploadPolicy { store_refuses_ended: true, ..core.policy };
    let Ok(change) = file::delete(file, &no_url, core.clock.now()) else { return };
    if let Err(error) = commit(uploads, change, &caller.actor()).await {
        tracing::warn!(fileId = %file.id, error = %error.with_cause(), "cannot delete a file without a URL, it ends with its upload window");
    }
}

/// Answers a repeated call. The URL is signed again, because the first one may have expired.
async fn repeat(uploads: &Uploads, caller: &Caller, made: FileId) -> Result<Grant, VerbError> {
    let core = &uploads.core;
    match core.catalog.file(made).await? {
        Some(file) if file.status == Status::Registered => {
            match reissue::reissue(uploads, caller, made).await {
                Err(VerbError::AlreadyConfirmed(_)) => {
                    let file = core.catalog.file(made).await?.ok_or(VerbError::Gone)?;
                    Ok(Grant { file, upload: None })
                }
                outcome => outcome,
            }
        }
        None => Err(VerbError::Gone),
        Some(file) if file.status == Status::Deleted => Err(VerbError::Gone),
        Some(file) => Ok(Grant { file, upload: None }),
    }
}

/// Signs the upload request of a registered file. It expires at the row's `url_dead_at`.
pub(crate) async fn grant(core: &Core, file: File) -> Result<Grant, VerbError> {
    let expires_at = file.url_dead_at;
    if let Some(layout) = file.part_layout() {
        let method = parts::grant(core, &file, layout).await?;
        return Ok(Grant { file, upload: Some(Upload { method, expires_at }) });
    }
    let request = core
        .blobs
        .sign_put(&PutGrant {
            key: file.key.clone(),
            size: file.size,
            content_type: file.content_type.clone(),
            checksum_sha256: file.checksum_sha256.clone(),
            lifetime: UrlLifetime { signed_at: core.clock.now(), expires_at: file.url_dead_at },
        })
        .await?;
    Ok(Grant { file, upload: Some(Upload { method: UploadMethod::SinglePut(request), expires_at }) })
}
