//! Deletes a file: the row dies at once, its bytes follow through `pending_cleanups`.

use wharfinger_lifecycle::file;
use wharfinger_lifecycle::id::FileId;

use super::{STALE_TRIES_MAX, commit, find};
use crate::app::App;
use crate::core::{Caller, VerbError};

pub async fn delete(app: &App, caller: &Caller, id: FileId) -> Result<(), VerbError> {
    for _ in 0..STALE_TRIES_MAX {
        let read = find::find(app, caller, id).await?;
        let change = file::delete(&read, &app.policy, app.clock.now()).map_err(|_| VerbError::NotFound)?;
        if commit(app, change, &caller.actor()).await? {
            return Ok(());
        }
    }
    Err(VerbError::busy())
}
