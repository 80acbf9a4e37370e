//! Announces an upload: charges the quota, registers the file and its delayed check in one transaction, then
//! signs a URL.

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use wharfinger_backends::blobs::{PutGrant, SignedRequest, UrlLife};
use wharfinger_backends::catalog::{Admission, KeyUse, NewJob, Registered, Registration, fresh_id};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::checksum::{is_sha256, to_hex};
use wharfinger_lifecycle::file::{Announcement, EndReason, File, UploadPolicy, delete, register};
use wharfinger_lifecycle::id::{FileId, JobId};
use wharfinger_lifecycle::limits;
use wharfinger_lifecycle::name::check_file_name;
use wharfinger_lifecycle::parts::part_size;
use wharfinger_lifecycle::state::Status;

use super::{Caller, FieldProblem, VerbError, commit, parts, reissue};
use crate::app::App;
use crate::quota;

/// The queue of delayed checks for uploads that nobody confirmed.
pub const CHECK_QUEUE: &str = "upload-check";

/// A file and, while it waits for its bytes, the request that brings them.
#[derive(Clone, Debug)]
pub struct Grant {
    pub file: File,
    pub upload: Option<Upload>,
}

#[derive(Clone, Debug)]
pub struct Upload {
    pub how: How,
    pub expires_at: UnixMs,
}

#[derive(Clone, Debug)]
pub enum How {
    Whole(SignedRequest),
    Parts { part_size: u64, parts: Vec<GrantedPart> },
}

/// One part, with the request that brings it.
#[derive(Clone, Debug)]
pub struct GrantedPart {
    pub number: u32,
    pub size: u64,
    pub url: String,
    /// The store has it already.
    pub uploaded: bool,
}

pub async fn init(
    app: &App,
    caller: &Caller,
    announced: Announcement,
    key: Option<String>,
) -> Result<Grant, VerbError> {
    check(app, &announced, key.as_deref())?;
    let now = app.clock.now();
    let has_key = key.is_some();
    let fingerprint = fingerprint(&announced);
    let id = FileId(fresh_id(now));
    let part_size = app
        .blobs
        .in_parts()
        .and_then(|parts| part_size(announced.size, app.settings.multipart_threshold_bytes, &parts.limits()));
    let file = register(id, caller.tenant.clone(), caller.user.clone(), announced, &app.policy, now);
    let file = File { part_size, ..file };
    let registration = Registration {
        check: NewJob {
            queue: CHECK_QUEUE,
            tenant: file.tenant.clone(),
            file: Some(id),
            payload: None,
            run_at: file.next_look_at.unwrap_or(now),
            max_attempts: app.settings.job_max_attempts,
        },
        check_id: JobId(fresh_id(now)),
        file: file.clone(),
        actor: caller.actor(),
        default_limit_bytes: app.settings.default_quota_bytes,
        unconfirmed_limit_percent: app.settings.unconfirmed_limit_percent,
        key_use: key.map(|key| KeyUse {
            route: "files/init",
            key,
            fingerprint,
            expires_at: now.saturating_add(app.settings.idempotency_ttl_ms),
        }),
        admission: Admission::Database,
        by_broker: app.broker.is_some(),
    };
    let registered = quota::register(app, registration).await?;
    let requested_bytes = file.size;
    match registered {
        Registered::Made => {
            app.check_bell.ring_for(file.next_look_at.unwrap_or(now));
            app.broker_bell.notify_one();
            match grant(app, file.clone()).await {
                // Nobody has an id or a URL of it, and nobody can ask for it again: its charge need not wait.
                Err(error) if !has_key => {
                    withdraw(app, caller, &file).await;
                    Err(error)
                }
                granted => granted,
            }
        }
        Registered::Repeated(made) => repeat(app, caller, made).await,
        Registered::KeyMismatch => Err(VerbError::KeyMismatch),
        Registered::GateMoved(_) => Err(VerbError::busy()),
        Registered::QuotaExceeded { used_bytes, limit_bytes } => {
            Err(VerbError::QuotaExceeded { used_bytes, limit_bytes, requested_bytes })
        }
        Registered::UnconfirmedLimit { held_bytes, limit_bytes } => {
            Err(VerbError::UnconfirmedLimit { held_bytes, limit_bytes, requested_bytes })
        }
    }
}

/// Ends a file that was never granted. Where that fails, the window ends it.
async fn withdraw(app: &App, caller: &Caller, file: &File) {
    let unseen = UploadPolicy { store_refuses_ended: true, ..app.policy };
    let Ok(change) = delete(file, &unseen, app.clock.now()) else { return };
    if let Err(error) = commit(app, change, &caller.actor()).await {
        tracing::warn!(fileId = %file.id, error = ?error, "a file that was never granted is left to its window");
    }
}

/// The same answer as the first time, made anew: its URL may have died since.
async fn repeat(app: &App, caller: &Caller, made: FileId) -> Result<Grant, VerbError> {
    match app.catalog.file(made).await? {
        Some(file) if file.status == Status::Registered => match reissue::reissue(app, caller, made).await {
            Err(VerbError::AlreadyConfirmed(_)) => confirmed(app, made).await,
            outcome => outcome,
        },
        Some(file) if file.ended == Some(EndReason::Deleted) => Err(VerbError::Gone),
        None => Err(VerbError::Gone),
        Some(file) if file.status == Status::Deleted => Err(VerbError::Gone),
        Some(file) => Ok(Grant { file, upload: None }),
    }
}

async fn confirmed(app: &App, made: FileId) -> Result<Grant, VerbError> {
    let file = app.catalog.file(made).await?.ok_or(VerbError::Gone)?;
    Ok(Grant { file, upload: None })
}

/// Signs for a registered file; what is signed lives as long as its row says.
pub(super) async fn grant(app: &App, file: File) -> Result<Grant, VerbError> {
    let expires_at = file.url_dead_at;
    if let Some(cut) = file.cut() {
        let how = parts::grant(app, &file, cut).await?;
        return Ok(Grant { file, upload: Some(Upload { how, expires_at }) });
    }
    let request = app
        .blobs
        .sign_put(&PutGrant {
            key: file.key.clone(),
            size: file.size,
            content_type: file.content_type.clone(),
            checksum_sha256: file.checksum_sha256.clone(),
            life: UrlLife { signed_at: app.clock.now(), expires_at: file.url_dead_at },
        })
        .await?;
    Ok(Grant { file, upload: Some(Upload { how: How::Whole(request), expires_at }) })
}

fn check(app: &App, announced: &Announcement, key: Option<&str>) -> Result<(), VerbError> {
    let mut problems = Vec::new();
    let mut problem = |field: &str, problem: String| {
        problems.push(FieldProblem { field: field.to_owned(), problem });
    };
    if let Err(bad) = check_file_name(&announced.name) {
        problem("fileName", bad.to_string());
    }
    if let Some(content_type) = &announced.content_type
        && !is_content_type(content_type)
    {
        problem("contentType", "must be a media type like `image/png`".into());
    }
    if let Some(checksum) = &announced.checksum_sha256
        && !is_sha256(checksum)
    {
        problem("checksumSha256", "must be 64 lower-case hex digits".into());
    }
    if let Some(metadata) = &announced.metadata {
        if metadata.len() > limits::METADATA_BYTES_MAX {
            problem("metadata", format!("is longer than {} bytes", limits::METADATA_BYTES_MAX));
        } else if let Err(bad) = check_metadata(metadata) {
            problem("metadata", bad);
        }
    }
    if let Some(key) = key
        && (key.is_empty()
            || key.len() > limits::IDEMPOTENCY_KEY_BYTES_MAX
            || !key.bytes().all(|b| (0x20..0x7f).contains(&b)))
    {
        let max = limits::IDEMPOTENCY_KEY_BYTES_MAX;
        problem("Idempotency-Key", format!("must be 1 to {max} printable ASCII characters"));
    }
    if !problems.is_empty() {
        return Err(VerbError::Invalid(problems));
    }
    let of_store = app.blobs.in_parts().map_or(u64::MAX, |parts| parts.limits().object_bytes_max());
    let limit_bytes = app.settings.file_size_bytes_max.min(of_store);
    if announced.size > limit_bytes {
        return Err(VerbError::TooLarge { limit_bytes });
    }
    Ok(())
}

/// It is kept and given back as it was sent, so it has to be something that every reader can read: nested no
/// deeper than common parsers go, without half characters, out-of-range numbers and NULs.
fn check_metadata(text: &str) -> Result<(), String> {
    fn has_nul(value: &Value) -> bool {
        match value {
            Value::String(text) => text.contains('\0'),
            Value::Array(items) => items.iter().any(has_nul),
            Value::Object(members) => {
                members.iter().any(|(name, value)| name.contains('\0') || has_nul(value))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }
    match serde_json::from_str::<Value>(text) {
        Err(error) => Err(error.to_string()),
        Ok(value) if !value.is_object() => Err("must be an object".into()),
        Ok(value) if has_nul(&value) => Err("contains a NUL character".into()),
        Ok(_) => Ok(()),
    }
}

/// `type/subtype` with optional parameters, in visible ASCII.
fn is_content_type(text: &str) -> bool {
    let essence = text.split(';').next().unwrap_or_default();
    let token = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
    };
    text.len() <= limits::CONTENT_TYPE_BYTES_MAX
        && text == text.trim()
        && text.bytes().all(|b| (0x20..0x7f).contains(&b))
        && essence.trim_end().split_once('/').is_some_and(|(kind, subtype)| token(kind) && token(subtype))
}

/// A hash of everything the client asked for.
fn fingerprint(announced: &Announcement) -> String {
    let mut hasher = Sha256::new();
    let size = announced.size.to_string();
    let parts = [
        Some(announced.name.as_str()),
        Some(size.as_str()),
        announced.content_type.as_deref(),
        announced.checksum_sha256.as_deref(),
        announced.metadata.as_deref(),
    ];
    for part in parts {
        hasher.update(part.map_or(u64::MAX, |text| text.len() as u64).to_be_bytes());
        hasher.update(part.unwrap_or_default());
    }
    to_hex(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_types() {
        for good in ["image/png", "text/plain; charset=utf-8", "application/vnd.ms-excel", "image/svg+xml"] {
            assert!(is_content_type(good), "{good}");
        }
        for bad in ["", "png", "/", "a/", "a/b\r\nx: y", "a b/c", "ä/b", "text/plain "] {
            assert!(!is_content_type(bad), "{bad}");
        }
    }
}
