//! A new URL for an unconfirmed upload. The row stores the later deadline before the URL is signed.

use wharfinger_lifecycle::file;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::transition::TransitionError;

use super::init::{Grant, grant};
use super::{STALE_TRIES_MAX, check_batch, commit, find};
use crate::core::{Caller, VerbError};
use crate::uploads::Uploads;

pub async fn reissue(uploads: &Uploads, caller: &Caller, id: FileId) -> Result<Grant, VerbError> {
    let core = &uploads.core;
    let mut first_deadline = None;
    for _ in 0..STALE_TRIES_MAX {
        let read = find::find(core, caller, id).await?;
        let change =
            file::reissue(&read, &core.policy, core.clock.now()).map_err(|refusal| match refusal {
                TransitionError::Deleted => VerbError::Gone,
                TransitionError::NotAllowed { from, .. } => VerbError::AlreadyConfirmed(from),
            })?;
        check_batch(core, &read).await?;
        // A concurrent call for the same file has already stored a later deadline, so this URL can be signed.
        let late_enough = |first| read.url_dead_at > first || read.url_dead_at == change.after.url_dead_at;
        if first_deadline.is_some_and(late_enough) {
            return grant(core, read).await;
        }
        first_deadline.get_or_insert(read.url_dead_at);
        let after = change.after.clone();
        if commit(uploads, change, &caller.actor()).await? {
            return grant(core, after).await;
        }
    }
    Err(VerbError::busy())
}
