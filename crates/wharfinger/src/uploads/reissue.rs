//! A fresh URL for an upload that is still waited for. The row learns of the later deadline first.

use wharfinger_lifecycle::file;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::transition::Refusal;

use super::init::{Grant, grant};
use super::{Caller, STALE_TRIES_MAX, VerbError, commit, find};
use crate::app::App;

pub async fn reissue(app: &App, caller: &Caller, id: FileId) -> Result<Grant, VerbError> {
    for _ in 0..STALE_TRIES_MAX {
        let read = find::find(app, caller, id).await?;
        let change = file::reissue(&read, &app.policy, app.clock.now()).map_err(|refusal| match refusal {
            Refusal::Dead => VerbError::Gone,
            Refusal::NotFrom { from, .. } => VerbError::AlreadyConfirmed(from),
        })?;
        let after = change.after.clone();
        if commit(app, change, &caller.actor()).await? {
            return grant(app, after).await;
        }
    }
    Err(VerbError::busy())
}
