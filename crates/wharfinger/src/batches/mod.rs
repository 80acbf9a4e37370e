//! The operations on batches, one per file. The files of a batch are announced, completed or cancelled together.

pub mod cancel;
pub mod complete;
pub mod find;
pub mod open;

use futures::{StreamExt as _, TryStreamExt as _};
use wharfinger_lifecycle::batch::Batch;
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::BatchId;
use wharfinger_lifecycle::state::Status;

use crate::core::Core;
use crate::core::{Caller, VerbError};
use crate::uploads::init::{Grant, grant};

/// A batch with its files, in the order of their ids. Files that were announced together have the order of the request.
#[derive(Clone, Debug)]
pub struct BatchGrant {
    pub batch: Batch,
    pub files: Vec<Grant>,
}

/// Files read by one query.
const PAGE_FILES: usize = 1_000;
/// Concurrency of signing. Each multipart file needs calls to the store.
const SIGNED_AT_ONCE: usize = 16;

/// A batch that the caller may see. A batch of another user is "not found", not "forbidden".
async fn visible(core: &Core, caller: &Caller, id: BatchId) -> Result<Batch, VerbError> {
    let batch = core.catalog.batch(id).await?;
    batch.filter(|batch| caller.scope().covers(&batch.tenant, &batch.user)).ok_or(VerbError::NotFound)
}

pub(crate) async fn files_of(core: &Core, id: BatchId) -> Result<Vec<File>, VerbError> {
    let mut files: Vec<File> = Vec::new();
    loop {
        let after = files.last().map(|file| file.id);
        let page = core.catalog.batch_files(id, after, PAGE_FILES).await?;
        let is_last = page.len() < PAGE_FILES;
        files.extend(page);
        if is_last {
            return Ok(files);
        }
    }
}

/// Signs a URL for each unconfirmed file. It expires at the row's `url_dead_at`.
async fn sign(core: &Core, files: Vec<File>) -> Result<Vec<Grant>, VerbError> {
    futures::stream::iter(files)
        .map(async |file| match file.status {
            Status::Registered => grant(core, file).await,
            _ => Ok(unsigned(file)),
        })
        .buffered(SIGNED_AT_ONCE)
        .try_collect()
        .await
}

fn unsigned(file: File) -> Grant {
    Grant { file, upload: None }
}
