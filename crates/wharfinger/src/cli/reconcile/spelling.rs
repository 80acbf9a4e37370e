//! Finds objects that only look like orphans: an orphan and a missing key with the same name, except for case, accents,
//! percent signs and the like. One such pair proves that the list spells at least some keys in another way.

use std::io;
use std::path::Path;

use wharfinger_reconcile::{Entries, Entry, Sorter, normalized};

use super::bucket::without_address;
use super::state::State;

/// An orphan and a missing key that differ only in spelling.
///
/// Includes missing keys that the second check has found: a folder that ignores case finds `A` and `a`.
pub(super) fn find_pair(state: &State, addresses: &[String]) -> io::Result<Option<(String, String)>> {
    let Some(listed_missing) =
        state.missing_before_recheck().filter(|_| state.checkpoint.totals.orphans.objects > 0)
    else {
        return Ok(None);
    };
    let normalize = |key: &str| normalized(without_address(key, addresses));
    let [orphans, missing] = state.normalized();
    write_normalized(&state.orphans(), &orphans, &state.sorting(), normalize)?;
    write_normalized(&listed_missing, &missing, &state.sorting(), normalize)?;
    let Some(common) = first_common(&orphans, &missing)? else { return Ok(None) };
    let original = |path: &Path| -> io::Result<String> {
        for entry in Entries::open(path)? {
            let key = entry?.key;
            if normalize(&key) == common {
                return Ok(key);
            }
        }
        Ok(common.clone())
    };
    Ok(Some((original(&state.orphans())?, original(&listed_missing)?)))
}

fn write_normalized(
    from: &Path,
    to: &Path,
    folder: &Path,
    normalize: impl Fn(&str) -> String,
) -> io::Result<()> {
    let mut sorter = Sorter::new(folder)?;
    for entry in Entries::open(from)? {
        sorter.push(Entry::key(normalize(&entry?.key)))?;
    }
    sorter.finish(to)?;
    Ok(())
}

fn first_common(left: &Path, right: &Path) -> io::Result<Option<String>> {
    let (mut left, mut right) = (Entries::open(left)?, Entries::open(right)?);
    let (mut a, mut b) = (left.next().transpose()?, right.next().transpose()?);
    while let (Some(one), Some(other)) = (&a, &b) {
        match one.key.cmp(&other.key) {
            std::cmp::Ordering::Equal => return Ok(Some(one.key.clone())),
            std::cmp::Ordering::Less => a = left.next().transpose()?,
            std::cmp::Ordering::Greater => b = right.next().transpose()?,
        }
    }
    Ok(None)
}
