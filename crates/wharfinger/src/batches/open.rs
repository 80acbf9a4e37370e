//! Opens a batch: all of its files are registered and charged in one transaction, or none.

use wharfinger_catalog::{BatchUse, NewFile, Registration, fresh_id};
use wharfinger_lifecycle::batch;
use wharfinger_lifecycle::file::UploadRequest;
use wharfinger_lifecycle::id::{BatchId, FileId};
use wharfinger_lifecycle::limits::BATCH_FILES_MAX;

use super::{BatchGrant, cancel, find, sign};
use crate::core::Core;
use crate::core::{Caller, VerbError};
use crate::uploads::Uploads;
use crate::uploads::init::{idempotency_key, new_file, register, registration};
use crate::uploads::validate::{Problems, check_rules, fingerprint};

pub async fn open(
    uploads: &Uploads,
    caller: &Caller,
    mut announced: Vec<UploadRequest>,
    key: Option<String>,
) -> Result<BatchGrant, VerbError> {
    let core = &uploads.core;
    check(core, &mut announced, key.as_deref())?;
    let policy = uploads.rules.of_tenant(&caller.tenant).await?;
    for (n, one) in announced.iter().enumerate() {
        check_rules(core, &policy, one, &format!("files[{n}]."))?;
    }
    let now = core.clock.now();
    let fingerprint = fingerprint(&announced);
    let id = BatchId(fresh_id(now));
    let (tenant, user) = (caller.tenant.clone(), caller.user.clone());
    let batch = batch::open(id, tenant, user, core.settings.batch_timeout_ms, now);
    // Sorted, because files of a batch are listed by id and must keep the order of the request.
    let mut ids: Vec<FileId> = announced.iter().map(|_| FileId(fresh_id(now))).collect();
    ids.sort();
    let files: Vec<NewFile> = ids
        .into_iter()
        .zip(announced)
        .map(|(id, announced)| new_file(core, caller, id, announced, Some(&batch), now))
        .collect();
    let made = files.iter().map(|new| new.file.clone()).collect();
    let has_key = key.is_some();
    let wanted = Registration {
        batch: BatchUse::New(batch.clone()),
        idempotency_key: key.map(|key| idempotency_key(core, "batches", key, fingerprint, now)),
        ..registration(core, caller, files, now)
    };
    match register(uploads, wanted).await? {
        None => match sign(core, made).await {
            Ok(files) => Ok(BatchGrant { batch, files }),
            // No client has its id, and without a key no client can request it again.
            Err(error) if !has_key => {
                if let Err(left) = cancel::cancel(core, caller, id).await {
                    tracing::warn!(batchId = %id, error = %left.with_cause(), "cannot cancel a batch without URLs, it ends when it expires");
                }
                Err(error)
            }
            Err(error) => Err(error),
        },
        Some(before) => repeat(core, caller, BatchId(before)).await,
    }
}

/// Answers a repeated call, with new URLs.
async fn repeat(core: &Core, caller: &Caller, id: BatchId) -> Result<BatchGrant, VerbError> {
    match find::find(core, caller, id).await {
        Ok(found) if found.batch.status.drops_unconfirmed() => Err(VerbError::BatchGone(found.batch.status)),
        Err(VerbError::NotFound) => Err(VerbError::Gone),
        found => found,
    }
}

fn check(core: &Core, announced: &mut [UploadRequest], key: Option<&str>) -> Result<(), VerbError> {
    if announced.len() > BATCH_FILES_MAX {
        return Err(VerbError::invalid(
            "files",
            format!("must be at most {BATCH_FILES_MAX}; more can be added by init with `batchId`"),
        ));
    }
    let mut problems = Problems::default();
    problems.check_key(key);
    for (n, announced) in announced.iter_mut().enumerate() {
        problems.check(core, announced, &format!("files[{n}]."));
    }
    problems.into_result()
}
