//! Large files: the store's own upload in parts, begun after the row and before its first URL, joined by us when
//! the client confirms. The client sends nothing but bytes; which parts have come the store itself tells.

use std::collections::BTreeMap;

use futures::StreamExt as _;
use wharfinger_lifecycle::file::{File, late_write_cleanup};
use wharfinger_lifecycle::parts::PartLayout;
use wharfinger_stores::{BlobError, Part, PartGrant, MultipartStore, UrlLifetime};

use super::STALE_TRIES_MAX;
use super::init::{GrantedPart, UploadMethod};
use crate::core::Core;
use crate::core::VerbError;

/// How many missing parts an error names.
const MISSING_SHOWN_MAX: usize = 20;
/// Signing is work without a wait: others get their turn in between.
const SIGNED_AT_ONCE: u32 = 64;

fn store(core: &Core) -> Result<&dyn MultipartStore, VerbError> {
    core.blobs.in_parts().ok_or_else(|| {
        VerbError::Unavailable(
            "the file was begun in parts, which the store of these settings does not take".into(),
        )
    })
}

/// Signs every part; says which of them the store has already.
pub(super) async fn grant(core: &Core, file: &File, layout: PartLayout) -> Result<UploadMethod, VerbError> {
    let store = store(core)?;
    let (upload_id, have) = upload(core, store, file).await?;
    let have: BTreeMap<u32, u64> = have.into_iter().map(|part| (part.number, part.size)).collect();
    let life = UrlLifetime { signed_at: core.clock.now(), expires_at: file.url_dead_at };
    let mut parts = Vec::with_capacity(layout.count() as usize);
    for number in layout.part_numbers() {
        let size = layout.part_bytes(number).unwrap_or(0);
        let grant = PartGrant { key: file.key.clone(), upload_id: upload_id.clone(), number, size, life };
        let url = store.sign_part(&grant).await?.url;
        if number % SIGNED_AT_ONCE == 0 {
            tokio::task::yield_now().await;
        }
        parts.push(GrantedPart { number, size, url, uploaded: have.get(&number) == Some(&size) });
    }
    Ok(UploadMethod::Multipart { part_size: layout.part_size, parts })
}

/// The upload that fills this file's object, with what has come of it; begun if there is none, or none any more.
async fn upload(core: &Core, store: &dyn MultipartStore, file: &File) -> Result<(String, Vec<Part>), VerbError> {
    for _ in 0..STALE_TRIES_MAX {
        let known = core.catalog.upload_id(&file.key).await?;
        if let Some(upload_id) = &known {
            match store.parts(&file.key, upload_id).await {
                Ok(parts) => return Ok((upload_id.clone(), parts)),
                Err(BlobError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
            // Joined by a confirm that did not come to its end: all that is left is to confirm again.
            match core.blobs.head(&file.key, None).await {
                Ok(meta) if meta.size == file.size => return Ok((upload_id.clone(), all_of(file))),
                Ok(_) => {
                    return Err(VerbError::Unavailable(
                        "another object is in the place of this file's".into(),
                    ));
                }
                Err(BlobError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let begun = store.begin(&file.key, file.content_type.as_deref()).await?;
        if core.catalog.set_upload_id(&file.key, known.clone(), begun.clone()).await? {
            return Ok((begun, Vec::new()));
        }
        // Nobody knows of this one. Where that fails, the sweep finds it, or the file's end does.
        if let Err(error) = store.abandon_one(&file.key, &begun).await {
            tracing::warn!(fileId = %file.id, error = %error, "an upload that is not needed could not be ended");
        }
        if core.catalog.upload_id(&file.key).await? == known {
            return Err(VerbError::Gone);
        }
    }
    Err(VerbError::busy())
}

fn all_of(file: &File) -> Vec<Part> {
    let layout = file.part_layout();
    let numbers = layout.into_iter().flat_map(|layout| layout.part_numbers().map(move |number| (number, layout)));
    numbers
        .map(|(number, layout)| Part { number, size: layout.part_bytes(number).unwrap_or(0), etag: String::new() })
        .collect()
}

/// Makes the object of its parts, if that has not happened yet. Whether it is right the caller finds out.
pub(super) async fn join(core: &Core, file: &File, layout: PartLayout) -> Result<(), VerbError> {
    let store = store(core)?;
    match core.blobs.head(&file.key, None).await {
        Ok(_) => return Ok(()),
        Err(BlobError::NotFound) => {}
        Err(error) => return Err(error.into()),
    }
    let Some(upload_id) = core.catalog.upload_id(&file.key).await? else {
        return Err(VerbError::ObjectMissing);
    };
    let have = match store.parts(&file.key, &upload_id).await {
        Ok(have) => have,
        // Somebody else joined or ended it just now; the object says which.
        Err(BlobError::NotFound) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let wanted = select_parts(layout, have)?;
    let joined = store.join(&file.key, &upload_id, file.content_type.as_deref(), &wanted).await;
    // Also where the answer was lost: it may have happened.
    delete_if_ended(core, file).await?;
    match joined {
        Ok(()) => abort_other_uploads(store, file).await,
        // Joined by somebody else, or a part was sent anew at this moment: the object says which.
        Err(BlobError::NotFound) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// An upload whose id was never written down, by a crash, is of no use to anybody now.
async fn abort_other_uploads(store: &dyn MultipartStore, file: &File) {
    let mut uploads = store.unfinished(file.key.as_str());
    loop {
        let ended = match uploads.next().await {
            None => return,
            Some(Ok(upload)) if upload.key != file.key.as_str() => continue,
            Some(Ok(upload)) => store.abandon_one(&file.key, &upload.upload_id).await,
            Some(Err(error)) => Err(error),
        };
        if let Err(error) = ended {
            tracing::warn!(fileId = %file.id, error = %error, "unfinished uploads are left to the sweep");
            return;
        }
    }
}

/// The file may have ended while its parts were joined, and its bytes been deleted before they were there.
async fn delete_if_ended(core: &Core, file: &File) -> Result<(), VerbError> {
    let now = core.clock.now();
    let Some(read) = core.catalog.file(file.id).await? else { return Ok(()) };
    if let Some(cleanup) = late_write_cleanup(&read, &core.policy, now) {
        core.catalog.repeat_cleanup(read, cleanup, now).await?;
        core.wakeups.cleanup.notify_one();
    }
    Ok(())
}

/// Exactly the parts of the layout, each of its right size.
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
