//! A fresh URL for an upload that is still waited for. The row learns of the later deadline first.

use wharfinger_lifecycle::file;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::transition::Refusal;

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
                Refusal::Dead => VerbError::Gone,
                Refusal::NotFrom { from, .. } => VerbError::AlreadyConfirmed(from),
            })?;
        check_batch(core, &read).await?;
        // Who was faster wanted the same, as when many repeat one key at once: the row knows of the deadline.
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
