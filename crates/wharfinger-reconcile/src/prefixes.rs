//! Sums by prefix in bounded memory: keys come in order, so that a prefix is over when another begins, and only the
//! largest are remembered.

use serde::{Deserialize, Serialize};

use crate::entry::Entry;
use crate::totals::Count;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixTotal {
    /// Empty for objects that lie at the top.
    pub prefix: String,
    #[serde(flatten)]
    pub count: Count,
}

/// A key belongs to the folder it lies in, or to that folder's ancestor of `depth` parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prefixes {
    depth: usize,
    totals_max: usize,
    /// The folders that the last key lies in, from the top down, each inside the one before it.
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
            self.remember(ended);
        }
        let known = self.open.last().map_or(0, |folder| folder.prefix.len());
        let mut ends = object.key.match_indices('/').map(|(at, _)| at + 1);
        while self.open.len() <= self.depth
            && let Some(end) = ends.find(|end| *end > known)
        {
            self.open.push(PrefixTotal { prefix: object.key[..end].to_owned(), count: Count::default() });
        }
        if let Some(folder) = self.open.last_mut() {
            folder.count.add(object);
        }
    }

    fn remember(&mut self, total: PrefixTotal) {
        keep(&mut self.largest, &mut self.others, total, self.totals_max);
    }

    pub(crate) fn totals(&self) -> (Vec<PrefixTotal>, Count) {
        let (mut largest, mut others) = (self.largest.clone(), self.others);
        for folder in &self.open {
            keep(&mut largest, &mut others, folder.clone(), self.totals_max);
        }
        largest.sort_by(|a, b| b.count.bytes.cmp(&a.count.bytes).then_with(|| a.prefix.cmp(&b.prefix)));
        (largest, others)
    }
}

/// Of two with the same bytes, the one with more objects is the larger, then the one that comes first.
fn keep(largest: &mut Vec<PrefixTotal>, others: &mut Count, total: PrefixTotal, totals_max: usize) {
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
    fn folders_end_where_others_begin() {
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
    fn only_the_largest_are_told_apart() {
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
