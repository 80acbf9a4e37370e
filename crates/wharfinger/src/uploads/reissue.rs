//! A fresh URL for an upload that is still waited for. The row learns of the later deadline first.

use wharfinger_lifecycle::file;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::transition::Refusal;

use super::init::{Grant, grant};
use super::{STALE_TRIES_MAX, check_batch, commit, find};
use crate::app::App;
use crate::core::{Caller, VerbError};

pub async fn reissue(app: &App, caller: &Caller, id: FileId) -> Result<Grant, VerbError> {
    let mut first_deadline = None;
    for _ in 0..STALE_TRIES_MAX {
        let read = find::find(app, caller, id).await?;
        let change = file::reissue(&read, &app.policy, app.clock.now()).map_err(|refusal| match refusal {
            Refusal::Dead => VerbError::Gone,
            Refusal::NotFrom { from, .. } => VerbError::AlreadyConfirmed(from),
        })?;
        check_batch(app, &read).await?;
        // Who was faster wanted the same, as when many repeat one key at once: the row knows of the deadline.
        let late_enough = |first| read.url_dead_at > first || read.url_dead_at == change.after.url_dead_at;
        if first_deadline.is_some_and(late_enough) {
            return grant(app, read).await;
        }
        first_deadline.get_or_insert(read.url_dead_at);
        let after = change.after.clone();
        if commit(app, change, &caller.actor()).await? {
            return grant(app, after).await;
        }
    }
    Err(VerbError::busy())
}
