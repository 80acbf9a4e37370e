//! Checks missing keys once more, because an object may appear behind the listing. At most the first thousand keys are
//! checked. A key whose object is found is no longer missing.

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
const HEADS_AT_ONCE: usize = 16;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Rechecked {
    pub(super) checked: u64,
    pub(super) found: u64,
    /// The store did not answer.
    pub(super) unknown: u64,
}

enum Answer {
    Found,
    Missing,
    Unknown,
}

pub(super) async fn run(bucket: &Bucket, state: &mut State, progress: &mut Progress) -> Result<(), Failure> {
    if state.checkpoint.rechecked.is_some() || state.checkpoint.totals.missing == 0 {
        return Ok(());
    }
    progress.phase("checking missing keys again", "keys");
    let mut missing = Entries::open(&state.missing()).map_err(failed)?;
    let first: std::io::Result<Vec<Entry>> = missing.by_ref().take(KEYS_MAX).collect();
    let first = first.map_err(failed)?;
    let mut out = BufWriter::new(File::create(state.still_missing()).map_err(failed)?);
    let mut rechecked = Rechecked { checked: first.len() as u64, ..Rechecked::default() };
    let mut answers = stream::iter(first)
        .map(async |entry| {
            let answer = check(bucket, &entry.key).await;
            (entry, answer)
        })
        .buffered(HEADS_AT_ONCE);
    while let Some((entry, answer)) = answers.next().await {
        match answer {
            Answer::Found => {
                rechecked.found += 1;
                state.checkpoint.totals.remove_missing(&entry.key);
                continue;
            }
            Answer::Unknown => rechecked.unknown += 1,
            Answer::Missing => {}
        }
        entry.write_to(&mut out).map_err(failed)?;
    }
    for entry in missing {
        entry.and_then(|entry| entry.write_to(&mut out)).map_err(failed)?;
    }
    out.flush().and_then(|()| out.get_ref().sync_all()).map_err(failed)?;
    state.checkpoint.rechecked = Some(rechecked);
    state.save()
}

async fn check(bucket: &Bucket, key: &str) -> Answer {
    // The store cannot have an object with an invalid name.
    let Some(key) = bucket.key(key) else { return Answer::Missing };
    match bucket.store.head(&key, None).await {
        Ok(_) => Answer::Found,
        Err(BlobError::NotFound) => Answer::Missing,
        Err(_) => Answer::Unknown,
    }
}
