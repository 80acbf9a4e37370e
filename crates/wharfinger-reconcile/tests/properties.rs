//! Sorting and comparing are checked against sets in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use proptest::prelude::*;
use wharfinger_reconcile::{
    CompareError, Comparison, Entries, Entry, Finding, Sorter, Times, Totals, Verdict, compare,
};

fn sorted(keys: &[String], memory_max: usize, fan_in: usize) -> (Vec<Entry>, u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sorter =
        Sorter::with_limits(&folder.path().join("sorting"), memory_max, fan_in).expect("a sorter");
    for key in keys {
        sorter.push(Entry::key(key.clone())).expect("written");
    }
    let sorted = sorter.finish(&folder.path().join("keys")).expect("a list");
    assert!(!folder.path().join("sorting").exists(), "the runs are removed");
    let entries: io::Result<Vec<Entry>> = Entries::open(&sorted.path).expect("a list").collect();
    let entries = entries.expect("entries");
    assert_eq!(entries.len() as u64, sorted.entries);
    (entries, sorted.duplicates)
}

/// Short keys of few letters, so that many are equal: with slashes, characters that sort before a slash, and non-ASCII.
fn key() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop::sample::select(vec!['a', 'b', '/', '-', ' ', '\n', 'é', '\u{10000}', '\u{ffff}']),
        1..5,
    )
    .prop_map(String::from_iter)
}

#[derive(Debug, Default, PartialEq)]
struct Found {
    kept: BTreeSet<String>,
    resized: BTreeSet<String>,
    orphans: BTreeSet<String>,
    missing: BTreeSet<String>,
}

impl Found {
    fn add(&mut self, finding: Finding) {
        let (set, key) = match finding {
            Finding::Kept(object) => (&mut self.kept, object.key),
            Finding::Resized { object, .. } => (&mut self.resized, object.key),
            Finding::Orphan(object) => (&mut self.orphans, object.key),
            Finding::Missing(key) => (&mut self.missing, key.key),
        };
        assert!(set.insert(key), "reported twice");
    }
}

proptest! {
    #[test]
    fn keys_are_sorted_by_their_bytes_without_duplicates(
        keys in prop::collection::vec(key(), 0..300),
        memory_max in 1usize..3_000,
        fan_in in 2usize..6,
    ) {
        let (entries, duplicates) = sorted(&keys, memory_max, fan_in);
        let expected: BTreeSet<Vec<u8>> = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        let got: Vec<Vec<u8>> = entries.into_iter().map(|entry| entry.key.into_bytes()).collect();
        prop_assert_eq!(got, expected.iter().cloned().collect::<Vec<_>>());
        prop_assert_eq!(duplicates as usize, keys.len() - expected.len());
    }

    #[test]
    fn a_comparison_agrees_with_sets_even_if_it_is_interrupted(
        keys in prop::collection::btree_map(key(), prop::option::of(0u64..3), 0..60),
        objects in prop::collection::btree_map(key(), 0u64..3, 0..60),
        stop_at in 0usize..60,
    ) {
        let key_entries = || {
            let keys = keys.iter().map(|(key, size)| Entry { key: key.clone(), size: *size, modified_at: None });
            keys.map(Ok).collect::<Vec<io::Result<Entry>>>().into_iter()
        };
        let mut expected = Found::default();
        for (key, size) in &objects {
            let set = match keys.get(key) {
                None => &mut expected.orphans,
                Some(Some(known)) if known != size => &mut expected.resized,
                Some(_) => &mut expected.kept,
            };
            set.insert(key.clone());
        }
        expected.missing = keys.keys().filter(|key| !objects.contains_key(*key)).cloned().collect();

        let object_entries: Vec<Entry> =
            objects.iter().map(|(key, size)| Entry::object(key.clone(), *size, None)).collect();
        let mut whole = Found::default();
        compare(key_entries(), object_entries.iter().cloned().map(Ok), |finding| whole.add(finding)).expect("in order");
        prop_assert_eq!(&whole, &expected);

        let stop_at = stop_at.min(object_entries.len());
        let mut parts = Found::default();
        let mut first = Comparison::new(key_entries()).expect("in order");
        for object in &object_entries[..stop_at] {
            first.object(object.clone(), |finding| parts.add(finding)).expect("in order");
        }
        let last = stop_at.checked_sub(1).map(|at| object_entries[at].key.as_str());
        let mut second = Comparison::resume_after(key_entries(), last).expect("in order");
        for object in &object_entries[stop_at..] {
            second.object(object.clone(), |finding| parts.add(finding)).expect("in order");
        }
        second.finish(|finding| parts.add(finding)).expect("in order");
        prop_assert_eq!(&parts, &expected);
    }

    /// Totals may be serialized and read again between any two findings.
    #[test]
    fn serialized_totals_continue_with_the_same_result(
        objects in prop::collection::btree_map(key(), (0u64..100, 0i64..200), 1..60),
        stop_at in 0usize..60,
    ) {
        let times = Times { as_of: 150, grace_ms: 50 };
        let mut whole = Totals::new(times, 2, 3);
        let mut parts = whole.clone();
        let mut orphans = BTreeMap::new();
        for (at, (key, (size, modified_at))) in objects.iter().enumerate() {
            let object = Entry::object(key.clone(), *size, Some(*modified_at));
            if let Verdict::Orphan(orphan) = whole.add(Finding::Orphan(object.clone())) {
                orphans.insert(orphan.key, orphan.size.unwrap_or(0));
            }
            if at == stop_at {
                parts = serde_json::from_str(&serde_json::to_string(&parts).expect("JSON")).expect("totals");
            }
            parts.add(Finding::Orphan(object));
        }
        prop_assert_eq!(&parts, &whole);
        let (totals, others) = whole.by_prefix();
        let bytes: u64 = totals.iter().map(|total| total.count.bytes).sum::<u64>() + others.bytes;
        prop_assert_eq!(bytes, orphans.values().sum::<u64>());
        prop_assert_eq!(whole.by_age().map(|(_, count)| count.objects).sum::<u64>(), orphans.len() as u64);
        for (key, (size, modified_at)) in &objects {
            let is_folder = key.ends_with('/') && *size == 0;
            let is_old = *modified_at > 0 && *modified_at <= times.cutoff();
            prop_assert_eq!(orphans.contains_key(key), is_old && !is_folder, "{}", key);
        }
    }
}

#[test]
fn unsorted_lists_are_rejected() {
    let entries = |keys: &[&str]| keys.iter().map(|key| Ok(Entry::key(*key))).collect::<Vec<_>>();
    let out_of_order = compare(entries(&["a"]), entries(&["b", "a"]), drop);
    assert!(matches!(out_of_order, Err(CompareError::ObjectsOutOfOrder { .. })), "{out_of_order:?}");
    let twice = compare(entries(&["a"]), entries(&["a", "a"]), drop);
    assert!(matches!(twice, Err(CompareError::ObjectsOutOfOrder { .. })), "{twice:?}");
    let keys = compare(entries(&["b", "a"]), entries(&["c"]), drop);
    assert!(matches!(keys, Err(CompareError::KeysOutOfOrder { .. })), "{keys:?}");
}

#[test]
fn a_truncated_list_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sorter = Sorter::new(&folder.path().join("sorting")).expect("a sorter");
    sorter.push(Entry::object("a-key", 1, Some(2))).expect("written");
    let sorted = sorter.finish(&folder.path().join("keys")).expect("a list");
    let whole = std::fs::read(&sorted.path).expect("the list");
    for length in 1..whole.len() {
        std::fs::write(&sorted.path, &whole[..length]).expect("the list");
        let read: io::Result<Vec<Entry>> = Entries::open(&sorted.path).expect("a list").collect();
        assert!(read.is_err(), "truncated at {length}");
    }
}
