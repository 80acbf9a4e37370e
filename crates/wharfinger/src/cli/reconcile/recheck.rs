//! Keys without an object, looked at once more: an object may have come after its place in the listing was passed. Only
//! a clear "no" leaves a key missing, and of very many only the first are asked for.

use std::fs::File;
use std::io::{BufWriter, Write as _};

use futures::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use wharfinger_reconcile::{Entries, Entry};
use wharfinger_stores::BlobError;

use super::super::{Failure, failed};
use super::bucket::Bucket;
use super::progress::Progress;
use super::state::State;

const KEYS_MAX: usize = 1_000;
const AT_ONCE: usize = 16;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Rechecked {
    pub(super) asked: u64,
    pub(super) found: u64,
    /// The store did not answer.
    pub(super) unknown: u64,
}

enum Answer {
    There,
    Missing,
    Unknown,
}

pub(super) async fn run(bucket: &Bucket, state: &mut State, progress: &mut Progress) -> Result<(), Failure> {
    if state.at.looked_again.is_some() || state.at.totals.missing == 0 {
        return Ok(());
    }
    progress.phase("looking again for what is missing", "keys");
    let mut missing = Entries::open(&state.missing()).map_err(failed)?;
    let first: std::io::Result<Vec<Entry>> = missing.by_ref().take(KEYS_MAX).collect();
    let first = first.map_err(failed)?;
    let mut out = BufWriter::new(File::create(state.still_missing()).map_err(failed)?);
    let mut looked = Rechecked { asked: first.len() as u64, ..Rechecked::default() };
    let mut answers = stream::iter(first)
        .map(async |entry| {
            let answer = ask(bucket, &entry.key).await;
            (entry, answer)
        })
        .buffered(AT_ONCE);
    while let Some((entry, answer)) = answers.next().await {
        match answer {
            Answer::There => {
                looked.found += 1;
                state.at.totals.found_after_all(&entry.key);
                continue;
            }
            Answer::Unknown => looked.unknown += 1,
            Answer::Missing => {}
        }
        entry.write_to(&mut out).map_err(failed)?;
    }
    for entry in missing {
        entry.and_then(|entry| entry.write_to(&mut out)).map_err(failed)?;
    }
    out.flush().and_then(|()| out.get_ref().sync_all()).map_err(failed)?;
    state.at.looked_again = Some(looked);
    state.save()
}

async fn ask(bucket: &Bucket, key: &str) -> Answer {
    // What has no name that a store can be asked for was not listed, and that is all there is to know.
    let Some(key) = bucket.key(key) else { return Answer::Missing };
    match bucket.store.head(&key, None).await {
        Ok(_) => Answer::There,
        Err(BlobError::NotFound) => Answer::Missing,
        Err(_) => Answer::Unknown,
    }
}
