//! What a comparison adds up to: objects and bytes, by age and by prefix, and a few names of each kind. Of the same
//! size however much was compared, and written down between two steps it goes on where it was.

use serde::{Deserialize, Serialize};

use crate::compare::Finding;
use crate::entry::Entry;
use crate::prefixes::{PrefixTotal, Prefixes};

pub const SAMPLES_MAX: usize = 20;
const DAY_MS: i64 = 86_400_000;

/// Upper limits of ages in days, and what they are called. The last holds all that is older.
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

/// When an orphan is old enough to be called one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// When the list of keys was made: ages are counted up to here.
    pub as_of: i64,
    /// What was stored in so many milliseconds before that, or after it, may not have been written down yet.
    pub grace_ms: i64,
}

/// What becomes of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is to be said of it.
    Fine,
    /// Nobody answers for it, and it is old enough that somebody should.
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
    /// No key answers for them, but they are younger than the grace, or the store does not say how old they are.
    pub young: Count,
    /// Empty objects whose names end in a slash, by which consoles show folders. They are nobody's and hold nothing.
    pub folders: u64,
    /// Of another size than the list says; these are kept too.
    pub resized: Count,
    pub missing: u64,
    /// When the youngest of those that are kept was stored. A list that knows nothing younger may be as old as that.
    pub newest_kept: Option<i64>,
    pub newest_orphan: Option<i64>,
    by_age: [Count; AGES.len()],
    prefixes: Prefixes,
    pub orphan_samples: Vec<Entry>,
    pub missing_samples: Vec<String>,
    pub resized_samples: Vec<String>,
}

impl Totals {
    /// Sums are told for so many of the largest prefixes, of so many parts each.
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

    /// Counts a finding. They come in the order of their keys.
    pub fn take(&mut self, finding: Finding) -> Verdict {
        match finding {
            Finding::Kept(object) => {
                self.keep(&object);
                Verdict::Fine
            }
            Finding::Resized { object, .. } => {
                self.keep(&object);
                self.resized.add(&object);
                sample(&mut self.resized_samples, object.key);
                Verdict::Fine
            }
            Finding::Missing(key) => {
                self.missing += 1;
                sample(&mut self.missing_samples, key.key.clone());
                Verdict::Missing(key)
            }
            Finding::Orphan(object) => {
                self.listed.add(&object);
                self.orphan(object)
            }
        }
    }

    fn keep(&mut self, object: &Entry) {
        self.listed.add(object);
        self.kept.add(object);
        self.newest_kept = self.newest_kept.max(object.modified_at);
    }

    fn orphan(&mut self, object: Entry) -> Verdict {
        if object.key.ends_with('/') && object.size == Some(0) {
            self.folders += 1;
            return Verdict::Fine;
        }
        let Some(age_ms) = self.times.age_ms(&object).filter(|age| *age >= self.times.grace_ms) else {
            self.young.add(&object);
            return Verdict::Fine;
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

    /// What was called missing, and was found when it was looked for by name.
    pub fn found_after_all(&mut self, key: &str) {
        self.missing = self.missing.saturating_sub(1);
        self.missing_samples.retain(|sample| sample != key);
    }

    pub fn by_age(&self) -> impl Iterator<Item = (&'static str, Count)> {
        AGES.iter().map(|(_, name)| *name).zip(self.by_age)
    }

    /// The prefixes with the most bytes, the largest first, and what all others hold.
    pub fn by_prefix(&self) -> (Vec<PrefixTotal>, Count) {
        self.prefixes.totals()
    }
}

impl Times {
    /// None where the store does not say.
    fn age_ms(self, object: &Entry) -> Option<i64> {
        object.modified_at.filter(|at| *at > 0).map(|at| self.as_of.saturating_sub(at))
    }

    /// What was last changed after this is too young to be called an orphan.
    pub fn cutoff(self) -> i64 {
        self.as_of.saturating_sub(self.grace_ms)
    }
}

fn sample<T>(samples: &mut Vec<T>, one: T) {
    if samples.len() < SAMPLES_MAX {
        samples.push(one);
    }
}
