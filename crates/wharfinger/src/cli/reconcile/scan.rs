//! The comparison, page by page. Findings are written to disk on the way.

use std::io;

use tokio_util::sync::CancellationToken;
use wharfinger_reconcile::{Comparison, Entries, Entry, Finding, Verdict};

use super::super::{Failure, failed};
use super::bucket::Bucket;
use super::check_not_stopped;
use super::progress::Progress;
use super::state::State;

pub(super) async fn run(
    bucket: &Bucket,
    state: &mut State,
    progress: &mut Progress,
    stop: &CancellationToken,
    objects_per_checkpoint: u64,
) -> Result<(), Failure> {
    if state.checkpoint.is_compared {
        return Ok(());
    }
    progress.phase("comparing", "objects");
    let keys = Entries::open(&state.keys()).map_err(failed)?;
    let mut comparison = Comparison::resume_after(keys, state.checkpoint.after.as_deref()).map_err(failed)?;
    let mut pages = state.checkpoint.listing.pages(bucket, state, state.checkpoint.after.clone());
    let keys_max = state.checkpoint.list.entries.max(1) as f64;
    let mut unsaved = 0;
    while let Some(page) = pages.recv().await {
        let page = page?;
        unsaved += page.len() as u64;
        let last = page.last().map(|object| object.key.clone());
        for object in page {
            compare(&mut comparison, object, state)?;
        }
        state.checkpoint.after = last.or(state.checkpoint.after.take());
        progress
            .update(state.checkpoint.totals.listed.objects, Some(comparison.keys_done() as f64 / keys_max));
        if stop.is_cancelled() {
            state.save()?;
            return check_not_stopped(stop);
        }
        if unsaved >= objects_per_checkpoint {
            state.save()?;
            unsaved = 0;
        }
    }
    let mut written = Ok(());
    comparison.finish(|finding| record(state, finding, &mut written)).map_err(failed)?;
    written.map_err(failed)?;
    state.checkpoint.is_compared = true;
    state.save()
}

fn compare(comparison: &mut Comparison<Entries>, object: Entry, state: &mut State) -> Result<(), Failure> {
    if Bucket::is_marker(&object.key) {
        state.checkpoint.marker.get_or_insert_with(|| object.key.clone());
    }
    let mut written = Ok(());
    comparison.object(object, |finding| record(state, finding, &mut written)).map_err(failed)?;
    written.map_err(failed)
}

fn record(state: &mut State, finding: Finding, written: &mut io::Result<()>) {
    if let Finding::Orphan(object) = &finding {
        state.remember_unmatched(&object.key);
    }
    let result = match state.checkpoint.totals.add(finding) {
        Verdict::Ok => Ok(()),
        Verdict::Orphan(orphan) => state.add_orphan(&orphan),
        Verdict::Missing(key) => state.add_missing(&key),
    };
    if written.is_ok() {
        *written = result;
    }
}
