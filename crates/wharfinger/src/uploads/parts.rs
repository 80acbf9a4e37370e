//! Multipart uploads of large files. The store's upload is started after the row is written and before the first URL is
//! signed. Confirm completes it. The client only sends bytes; the store lists the uploaded parts.

use std::collections::BTreeMap;

use wharfinger_lifecycle::file::{File, late_write_cleanup};
use wharfinger_lifecycle::parts::PartLayout;
use wharfinger_stores::{BlobError, MultipartStore, Part, PartGrant, UrlLifetime};

use super::STALE_TRIES_MAX;
use super::init::{GrantedPart, UploadMethod};
use crate::core::Core;
use crate::core::VerbError;

/// How many missing parts an error names.
const MISSING_SHOWN_MAX: usize = 20;
/// Signing uses the CPU without waiting, so the task yields after this many signatures.
const SIGNATURES_PER_YIELD: u32 = 64;

fn store<'c>(core: &'c Core, file: &File) -> Result<&'c dyn MultipartStore, VerbError> {
    core.blobs.multipart().ok_or_else(|| {
        VerbError::Unavailable(format!(
            "file {} was started as a multipart upload, but this store has none: was WHARFINGER_BLOB_URL changed?",
            file.id
        ))
    })
}

/// Signs a URL for every part, and marks the parts that the store already has.
pub(super) async fn grant(core: &Core, file: &File, layout: PartLayout) -> Result<UploadMethod, VerbError> {
    let store = store(core, file)?;
    let (upload_id, have) = upload(core, store, file).await?;
    let have: BTreeMap<u32, u64> = have.into_iter().map(|part| (part.number, part.size)).collect();
    let lifetime = UrlLifetime { signed_at: core.clock.now(), expires_at: file.url_dead_at };
    let mut parts = Vec::with_capacity(layout.count() as usize);
    for number in layout.part_numbers() {
        let (offset, size) =
            (layout.part_offset(number).unwrap_or(0), layout.part_bytes(number).unwrap_or(0));
        let (key, upload_id) = (file.key.clone(), upload_id.clone());
        let grant = PartGrant { key, upload_id, number, offset, size, lifetime };
        let url = store.sign_part(&grant).await?.url;
        if number % SIGNATURES_PER_YIELD == 0 {
            tokio::task::yield_now().await;
        }
        parts.push(GrantedPart { number, size, url, uploaded: have.get(&number) == Some(&size) });
    }
    Ok(UploadMethod::Multipart { part_size: layout.part_size, parts })
}

/// The store's upload id for this file and the parts it has. Starts an upload if there is none.
async fn upload(
    core: &Core,
    store: &dyn MultipartStore,
    file: &File,
) -> Result<(String, Vec<Part>), VerbError> {
    for _ in 0..STALE_TRIES_MAX {
        let known = core.catalog.upload_id(&file.key).await?;
        if let Some(upload_id) = &known {
            match store.list_parts(&file.key, upload_id).await {
                Ok(parts) => return Ok((upload_id.clone(), parts)),
                Err(BlobError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
            // An interrupted confirm has completed the upload. All parts count as uploaded, and the client confirms again.
            match core.blobs.head(&file.key, None).await {
                Ok(meta) if meta.size == file.size => return Ok((upload_id.clone(), all_of(file))),
                Ok(meta) => {
                    return Err(VerbError::Unavailable(format!(
                        "file {}: the store has {} bytes under its key, expected {}; delete the file and upload again",
                        file.id, meta.size, file.size
                    )));
                }
                Err(BlobError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let started = store.start(&file.key, file.content_type.as_deref()).await?;
        if core.catalog.set_upload_id(&file.key, known.clone(), started.clone()).await? {
            return Ok((started, Vec::new()));
        }
        // A concurrent call has stored another upload id. If this abort fails, a sweep or the end of the file does it.
        if let Err(error) = store.abort(&file.key, &started).await {
            tracing::warn!(fileId = %file.id, error = %error, "cannot abort an unneeded multipart upload, a sweep will do it");
        }
        if core.catalog.upload_id(&file.key).await? == known {
            return Err(VerbError::Gone);
        }
    }
    Err(VerbError::busy())
}

fn all_of(file: &File) -> Vec<Part> {
    let layout = file.part_layout();
    let numbers =
        layout.into_iter().flat_map(|layout| layout.part_numbers().map(move |number| (number, layout)));
    numbers
        .map(|(number, layout)| Part {
            number,
            size: layout.part_bytes(number).unwrap_or(0),
            etag: String::new(),
        })
        .collect()
}

/// Completes the store's upload if there is no object yet. The caller checks the object.
pub(super) async fn complete(core: &Core, file: &File, layout: PartLayout) -> Result<(), VerbError> {
    let store = store(core, file)?;
    match core.blobs.head(&file.key, None).await {
        Ok(_) => return Ok(()),
        Err(BlobError::NotFound) => {}
        Err(error) => return Err(error.into()),
    }
    let Some(upload_id) = core.catalog.upload_id(&file.key).await? else {
        return Err(VerbError::ObjectMissing);
    };
    let have = match store.list_parts(&file.key, &upload_id).await {
        Ok(have) => have,
        // A concurrent call has completed or aborted it. The caller sees which when it reads the object.
        Err(BlobError::NotFound) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let wanted = select_parts(layout, have)?;
    let completed = store.complete(&file.key, &upload_id, file.content_type.as_deref(), &wanted).await;
    // Also after an error: the store may have completed the upload although its answer was lost.
    delete_if_ended(core, file).await?;
    match completed {
        // Other uploads under this key exist if a crash happened before their id was stored.
        Ok(()) => {
            if let Err(error) = store.abort_all(&file.key).await {
                tracing::warn!(fileId = %file.id, error = %error, "cannot abort unfinished multipart uploads, a sweep will do it");
            }
        }
        // A concurrent call has completed it, or a part was just uploaded again. The caller reads the object.
        Err(BlobError::NotFound | BlobError::Changed) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Writes another cleanup if the file ended while its upload was completed. The first cleanup may have run too early.
async fn delete_if_ended(core: &Core, file: &File) -> Result<(), VerbError> {
    let now = core.clock.now();
    let Some(read) = core.catalog.file(file.id).await? else { return Ok(()) };
    if let Some(cleanup) = late_write_cleanup(&read, &core.policy, now) {
        core.catalog.repeat_cleanup(read, cleanup, now).await?;
        core.wakeups.cleanup.notify_one();
    }
    Ok(())
}

/// Selects exactly the parts of the layout. Fails if one is missing or has the wrong size.
fn select_parts(layout: PartLayout, have: Vec<Part>) -> Result<Vec<Part>, VerbError> {
    let mut by_number: BTreeMap<u32, Part> = have.into_iter().map(|part| (part.number, part)).collect();
    let mut chosen = Vec::with_capacity(layout.count() as usize);
    let mut missing = Vec::new();
    let mut actual = 0;
    for number in layout.part_numbers() {
        match by_number.remove(&number) {
            Some(part) => {
                actual += part.size;
                chosen.push(part);
            }
            None => missing.push(number),
        }
    }
    if !missing.is_empty() {
        let count = u32::try_from(missing.len()).unwrap_or(u32::MAX);
        missing.truncate(MISSING_SHOWN_MAX);
        return Err(VerbError::PartsMissing { of: layout.count(), missing: count, first: missing });
    }
    if chosen.iter().any(|part| layout.part_bytes(part.number) != Some(part.size)) {
        return Err(VerbError::SizeMismatch { expected: layout.size, actual });
    }
    Ok(chosen)
}
