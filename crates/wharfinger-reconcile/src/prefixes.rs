//! Sums by prefix in bounded memory. Keys arrive sorted, so the sum of a prefix is complete when another prefix starts.
//! Only the largest sums are kept.

use serde::{Deserialize, Serialize};

use crate::entry::Entry;
use crate::totals::Count;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixTotal {
    /// Empty for objects that are in no folder.
    pub prefix: String,
    #[serde(flatten)]
    pub count: Count,
}

/// A key is counted for its folder, or for the first `depth` parts of a deeper folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prefixes {
    depth: usize,
    totals_max: usize,
    /// The folders of the last key, each inside the one before it.
    open: Vec<PrefixTotal>,
    largest: Vec<PrefixTotal>,
    others: Count,
}

impl Prefixes {
    pub(crate) fn new(depth: usize, totals_max: usize) -> Prefixes {
        let top = PrefixTotal { prefix: String::new(), count: Count::default() };
        Prefixes {
            depth,
            totals_max: totals_max.max(1),
            open: vec![top],
            largest: Vec::new(),
            others: Count::default(),
        }
    }

    pub(crate) fn add(&mut self, object: &Entry) {
        while let Some(ended) =
            self.open.pop_if(|folder| !folder.prefix.is_empty() && !object.key.starts_with(&folder.prefix))
        {
            self.close(ended);
        }
        let open_bytes = self.open.last().map_or(0, |folder| folder.prefix.len());
        let mut ends = object.key.match_indices('/').map(|(at, _)| at + 1);
        while self.open.len() <= self.depth
            && let Some(end) = ends.find(|end| *end > open_bytes)
        {
            self.open.push(PrefixTotal { prefix: object.key[..end].to_owned(), count: Count::default() });
        }
        if let Some(folder) = self.open.last_mut() {
            folder.count.add(object);
        }
    }

    fn close(&mut self, total: PrefixTotal) {
        add_to_largest(&mut self.largest, &mut self.others, total, self.totals_max);
    }

    pub(crate) fn totals(&self) -> (Vec<PrefixTotal>, Count) {
        let (mut largest, mut others) = (self.largest.clone(), self.others);
        for folder in &self.open {
            add_to_largest(&mut largest, &mut others, folder.clone(), self.totals_max);
        }
        largest.sort_by(|a, b| b.count.bytes.cmp(&a.count.bytes).then_with(|| a.prefix.cmp(&b.prefix)));
        (largest, others)
    }
}

/// Adds a sum, and moves the smallest to `others` if there are too many. Sums with equal bytes are ordered by their
/// number of objects, then by name.
fn add_to_largest(largest: &mut Vec<PrefixTotal>, others: &mut Count, total: PrefixTotal, totals_max: usize) {
    if total.count.objects == 0 {
        return;
    }
    largest.push(total);
    if largest.len() > totals_max {
        let rank =
            |one: &PrefixTotal| (one.count.bytes, one.count.objects, std::cmp::Reverse(one.prefix.clone()));
        let smallest = (0..largest.len()).min_by_key(|at| rank(&largest[*at]));
        if let Some(at) = smallest {
            others.merge(largest.swap_remove(at).count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_ends_where_the_next_begins() {
        let mut prefixes = Prefixes::new(2, 10);
        for key in ["a", "a.txt", "a/1", "a/b/1", "a/b/c/2", "a/c", "ab", "b/x/1"] {
            prefixes.add(&Entry::object(key, 10, None));
        }
        let (totals, others) = prefixes.totals();
        let shown: Vec<(&str, u64)> =
            totals.iter().map(|one| (one.prefix.as_str(), one.count.objects)).collect();
        assert_eq!(shown, [("", 3), ("a/", 2), ("a/b/", 2), ("b/x/", 1)]);
        assert_eq!(others, Count::default());
    }

    #[test]
    fn only_the_largest_prefixes_are_listed() {
        let mut prefixes = Prefixes::new(1, 2);
        for folder in 0..1_000u64 {
            prefixes.add(&Entry::object(format!("{folder:04}/x"), folder, None));
        }
        let (totals, others) = prefixes.totals();
        let shown: Vec<&str> = totals.iter().map(|one| one.prefix.as_str()).collect();
        assert_eq!(shown, ["0999/", "0998/"]);
        assert_eq!(others, Count { objects: 998, bytes: (0..998).sum() });
    }
}
