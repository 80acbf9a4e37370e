//! Deletes a file. The row ends at once. The bytes are deleted later through `pending_cleanups`.

use wharfinger_lifecycle::file;
use wharfinger_lifecycle::id::FileId;

use super::{STALE_TRIES_MAX, commit, find};
use crate::core::{Caller, VerbError};
use crate::uploads::Uploads;

pub async fn delete(uploads: &Uploads, caller: &Caller, id: FileId) -> Result<(), VerbError> {
    let core = &uploads.core;
    for _ in 0..STALE_TRIES_MAX {
        let read = find::find(core, caller, id).await?;
        let change = file::delete(&read, &core.policy, core.clock.now()).map_err(|_| VerbError::NotFound)?;
        if commit(uploads, change, &caller.actor()).await? {
            return Ok(());
        }
    }
    Err(VerbError::busy())
}
