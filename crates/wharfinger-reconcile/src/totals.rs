//! The sums of a comparison: objects and bytes, by age and by prefix, and some samples of each kind. The size is
//! bounded. Totals can be serialized between two findings and continued later.

use serde::{Deserialize, Serialize};

use crate::compare::Finding;
use crate::entry::Entry;
use crate::prefixes::{PrefixTotal, Prefixes};

pub const SAMPLES_MAX: usize = 20;
const DAY_MS: i64 = 86_400_000;

/// Upper limits of ages in days, and their names. The last one has no limit.
pub const AGES: [(i64, &str); 6] = [
    (1, "under 1 day"),
    (7, "under 7 days"),
    (30, "under 30 days"),
    (90, "under 90 days"),
    (365, "under 1 year"),
    (i64::MAX, "older"),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    pub objects: u64,
    pub bytes: u64,
}

impl Count {
    pub fn add(&mut self, object: &Entry) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(object.size.unwrap_or(0));
    }

    pub fn merge(&mut self, other: Count) {
        self.objects += other.objects;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Decides when an object without a key is old enough to be an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// The time when the list of keys was made. Ages are counted up to it.
    pub as_of: i64,
    /// An object that was stored less than this before `as_of`, or after it, may not be on the list yet.
    pub grace_ms: i64,
}

/// The decision about a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to report.
    Ok,
    /// An object without a key that is old enough to be reported.
    Orphan(Entry),
    Missing(Entry),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    times: Times,
    pub listed: Count,
    pub kept: Count,
    pub orphans: Count,
    /// Objects without a key that are younger than the grace, or whose age the store does not report.
    pub young: Count,
    /// Empty objects whose names end in a slash. Consoles create them to show folders.
    pub folders: u64,
    /// Objects with another size than the list says. They are counted in `kept` too.
    pub resized: Count,
    pub missing: u64,
    /// The time of the newest object whose key is in the list. The list may be as old as that.
    pub newest_kept: Option<i64>,
    pub newest_orphan: Option<i64>,
    by_age: [Count; AGES.len()],
    prefixes: Prefixes,
    pub orphan_samples: Vec<Entry>,
    pub missing_samples: Vec<String>,
    pub resized_samples: Vec<String>,
}

impl Totals {
    /// Sums are kept for the `prefixes_max` largest prefixes, of at most `depth` parts each.
    pub fn new(times: Times, depth: usize, prefixes_max: usize) -> Totals {
        Totals {
            times,
            listed: Count::default(),
            kept: Count::default(),
            orphans: Count::default(),
            young: Count::default(),
            folders: 0,
            resized: Count::default(),
            missing: 0,
            newest_kept: None,
            newest_orphan: None,
            by_age: [Count::default(); AGES.len()],
            prefixes: Prefixes::new(depth, prefixes_max),
            orphan_samples: Vec::new(),
            missing_samples: Vec::new(),
            resized_samples: Vec::new(),
        }
    }

    pub fn times(&self) -> Times {
        self.times
    }

    /// Counts a finding. Findings must arrive in the order of their keys.
    pub fn add(&mut self, finding: Finding) -> Verdict {
        match finding {
            Finding::Kept(object) => {
                self.add_kept(&object);
                Verdict::Ok
            }
            Finding::Resized { object, .. } => {
                self.add_kept(&object);
                self.resized.add(&object);
                sample(&mut self.resized_samples, object.key);
                Verdict::Ok
            }
            Finding::Missing(key) => {
                self.missing += 1;
                sample(&mut self.missing_samples, key.key.clone());
                Verdict::Missing(key)
            }
            Finding::Orphan(object) => {
                self.listed.add(&object);
                self.add_orphan(object)
            }
        }
    }

    fn add_kept(&mut self, object: &Entry) {
        self.listed.add(object);
        self.kept.add(object);
        self.newest_kept = self.newest_kept.max(object.modified_at);
    }

    fn add_orphan(&mut self, object: Entry) -> Verdict {
        if object.key.ends_with('/') && object.size == Some(0) {
            self.folders += 1;
            return Verdict::Ok;
        }
        let Some(age_ms) = self.times.age_ms(&object).filter(|age| *age >= self.times.grace_ms) else {
            self.young.add(&object);
            return Verdict::Ok;
        };
        self.orphans.add(&object);
        self.newest_orphan = self.newest_orphan.max(object.modified_at);
        let days = age_ms / DAY_MS;
        let at = AGES.iter().position(|(limit, _)| days < *limit).unwrap_or(AGES.len() - 1);
        self.by_age[at].add(&object);
        self.prefixes.add(&object);
        sample(&mut self.orphan_samples, object.clone());
        Verdict::Orphan(object)
    }

    /// Removes a key that was counted as missing, because a second check has found its object.
    pub fn remove_missing(&mut self, key: &str) {
        self.missing = self.missing.saturating_sub(1);
        self.missing_samples.retain(|sample| sample != key);
    }

    pub fn by_age(&self) -> impl Iterator<Item = (&'static str, Count)> {
        AGES.iter().map(|(_, name)| *name).zip(self.by_age)
    }

    /// The prefixes with the most bytes, the largest first, and the sum of all others.
    pub fn by_prefix(&self) -> (Vec<PrefixTotal>, Count) {
        self.prefixes.totals()
    }
}

impl Times {
    /// None: the store does not report the time.
    fn age_ms(self, object: &Entry) -> Option<i64> {
        object.modified_at.filter(|at| *at > 0).map(|at| self.as_of.saturating_sub(at))
    }

    /// An object that was changed after this time is too young to be an orphan.
    pub fn cutoff(self) -> i64 {
        self.as_of.saturating_sub(self.grace_ms)
    }
}

fn sample<T>(samples: &mut Vec<T>, one: T) {
    if samples.len() < SAMPLES_MAX {
        samples.push(one);
    }
}
