//! Objects that only look like orphans: what no key answers for and what has no object, compared by what is left of their
//! names when case, accents, percent signs and leading slashes are taken away. One such pair says that the list spells
//! keys in another way than the bucket, at least some of them.

use std::io;
use std::path::Path;

use wharfinger_reconcile::{Entries, Entry, Sorter, bare};

use super::state::State;

/// An orphan and a missing key that differ only in how they are written.
pub(super) fn find(state: &State) -> io::Result<Option<(String, String)>> {
    if state.at.tally.orphans.objects == 0 || state.at.tally.missing == 0 {
        return Ok(None);
    }
    let [orphans, missing] = state.bare();
    bare_all(&state.orphans(), &orphans, &state.sorting())?;
    bare_all(&state.missing(), &missing, &state.sorting())?;
    let Some(common) = first_common(&orphans, &missing)? else { return Ok(None) };
    let named = |path: &Path| -> io::Result<String> {
        for entry in Entries::open(path)? {
            let key = entry?.key;
            if bare(&key) == common {
                return Ok(key);
            }
        }
        Ok(common.clone())
    };
    Ok(Some((named(&state.orphans())?, named(&state.missing())?)))
}

fn bare_all(from: &Path, to: &Path, folder: &Path) -> io::Result<()> {
    let mut sorter = Sorter::new(folder)?;
    for entry in Entries::open(from)? {
        sorter.push(Entry::key(bare(&entry?.key)))?;
    }
    sorter.finish(to)?;
    Ok(())
}

fn first_common(one: &Path, other: &Path) -> io::Result<Option<String>> {
    let (mut ones, mut others) = (Entries::open(one)?, Entries::open(other)?);
    let (mut a, mut b) = (ones.next().transpose()?, others.next().transpose()?);
    while let (Some(left), Some(right)) = (&a, &b) {
        match left.key.cmp(&right.key) {
            std::cmp::Ordering::Equal => return Ok(Some(left.key.clone())),
            std::cmp::Ordering::Less => a = ones.next().transpose()?,
            std::cmp::Ordering::Greater => b = others.next().transpose()?,
        }
    }
    Ok(None)
}
