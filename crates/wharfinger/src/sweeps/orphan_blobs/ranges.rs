//! Splits the keys of the store into ranges that can be scanned concurrently. Together they cover every key below
//! `uploads/` and `derived/`, also keys that are not in the catalog (test `every_key_is_in_one_range`).

use wharfinger_catalog::{KeySample, ScanRange};
use wharfinger_lifecycle::key::{DERIVED, UPLOADS, end_of_folder};

/// Up to `ranges_per_folder_max` ranges for each folder, of about equal size, and with at least `objects_min` objects.
pub(super) fn cut(sample: &KeySample, ranges_per_folder_max: usize, objects_min: usize) -> Vec<ScanRange> {
    let mut ranges: Vec<ScanRange> = Vec::new();
    for folder in [DERIVED, UPLOADS] {
        let keys: Vec<&String> = sample.keys.iter().filter(|key| key.starts_with(folder)).collect();
        let share = keys.len() as u64 * sample.objects / (sample.keys.len() as u64).max(1);
        let wanted = usize::try_from(share / objects_min.max(1) as u64).unwrap_or(usize::MAX);
        let count = wanted.clamp(1, ranges_per_folder_max.max(1));
        let mut borders: Vec<String> = (1..count).map(|n| keys[keys.len() * n / count].clone()).collect();
        borders.dedup();
        borders.push(end_of_folder(folder));
        let mut after = folder.to_owned();
        for upto in borders {
            ranges.push(ScanRange::new(ranges.len() as i64, folder, after, upto.clone()));
            after = upto;
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(keys: &[&str]) -> KeySample {
        KeySample {
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            objects: 100 * keys.len() as u64,
        }
    }

    fn holder(ranges: &[ScanRange], key: &str) -> Vec<usize> {
        let holds = |range: &ScanRange| range.after.as_str() < key && key <= range.upto.as_str();
        (0..ranges.len()).filter(|n| holds(&ranges[*n])).collect()
    }

    #[test]
    fn every_key_is_in_one_range() {
        let known =
            ["derived/a/b", "uploads/a", "uploads/b%2E", "uploads/c/d/e", "uploads/c/d/f", "uploads/z"];
        for (ranges_per_folder_max, objects_min) in
            [(1, 1), (2, 1), (4, 1), (8, 100), (8, 1_000_000), (100, 1)]
        {
            let ranges = cut(&sample(&known), ranges_per_folder_max, objects_min);
            let others = ["uploads/!", "uploads/\u{10ffff}~", "uploads/0", "derived/~", "uploads/c/d/e0"];
            for key in known.iter().chain(&others) {
                assert_eq!(holder(&ranges, key).len(), 1, "{key} in {ranges:?}");
            }
            for outside in ["uploads", "uploads/", "uploads2/x", "derived", "RAW/x", ".wharfinger/store", "z"]
            {
                assert_eq!(holder(&ranges, outside).len(), 0, "{outside}");
            }
        }
    }

    #[test]
    fn small_and_empty_catalogs_are_not_split() {
        assert_eq!(cut(&KeySample::default(), 8, 1_000).len(), 2);
        assert_eq!(cut(&sample(&["uploads/a", "uploads/b"]), 8, 1_000).len(), 2);
        assert_eq!(cut(&sample(&["uploads/a", "uploads/b", "uploads/c", "uploads/d"]), 3, 100).len(), 4);
    }
}
