//! Objects that only look like orphans: what no key answers for and what has no object, compared by what is left of their
//! names when case, accents, percent signs and leading slashes are taken away. One such pair says that the list spells
//! keys in another way than the bucket, at least some of them.

use std::io;
use std::path::Path;

use wharfinger_reconcile::{Entries, Entry, Sorter, bare};

use super::bucket::without_address;
use super::state::State;

/// An orphan and a missing key that differ only in how they are written.
///
/// Keys that were found when they were looked for again are among them: a folder that does not tell `A` from `a` finds both.
pub(super) fn find(state: &State, addresses: &[String]) -> io::Result<Option<(String, String)>> {
    let Some(listed_missing) = state.missing_at_first().filter(|_| state.at.totals.orphans.objects > 0)
    else {
        return Ok(None);
    };
    let bare = |key: &str| bare(without_address(key, addresses));
    let [orphans, missing] = state.bare();
    bare_all(&state.orphans(), &orphans, &state.sorting(), bare)?;
    bare_all(&listed_missing, &missing, &state.sorting(), bare)?;
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
    Ok(Some((named(&state.orphans())?, named(&listed_missing)?)))
}

fn bare_all(from: &Path, to: &Path, folder: &Path, bare: impl Fn(&str) -> String) -> io::Result<()> {
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
