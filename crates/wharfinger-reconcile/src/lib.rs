//! Finds orphans: compares the objects of a bucket with a list of keys. Both may have any length; the memory is
//! constant.
//!
//! * [`Sorter`] sorts keys on disk into byte order, the order in which stores list.
//! * [`compare`] (or [`Comparison`], object by object) merges both lists.
//! * [`Totals`] sums the results by age and by prefix, and decides which orphans are old enough to be reported.
//!
//! The crate uses no network and no clock. The caller provides the lists.
//!
//! ```
//! use wharfinger_reconcile::{Comparison, Entries, Entry, Sorter, Totals, Times, Verdict};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let mut sorter = Sorter::new(&folder.path().join("sorting"))?;
//! for key in ["b.jpg", "a.jpg", "b.jpg"] {
//!     sorter.push(Entry::key(key))?;
//! }
//! let keys = sorter.finish(&folder.path().join("keys"))?;
//! assert_eq!((keys.entries, keys.duplicates), (2, 1));
//!
//! let mut totals = Totals::new(Times { as_of: 1_000_000, grace_ms: 1_000 }, 1, 20);
//! let mut comparison = Comparison::new(Entries::open(&keys.path)?)?;
//! for object in [Entry::object("a.jpg", 10, Some(5)), Entry::object("old.jpg", 20, Some(5))] {
//!     comparison.object(object, |finding| {
//!         if let Verdict::Orphan(orphan) = totals.add(finding) {
//!             assert_eq!(orphan.key, "old.jpg");
//!         }
//!     })?;
//! }
//! comparison.finish(|finding| drop(totals.add(finding)))?;
//! assert_eq!((totals.orphans.bytes, totals.missing), (20, 1));
//! # Ok(())
//! # }
//! ```

mod compare;
mod entry;
mod hints;
mod prefixes;
mod sorter;
mod totals;

pub use compare::{CompareError, Comparison, Finding, compare};
pub use entry::{Entry, KEY_BYTES_MAX};
pub use hints::{Hints, OBJECTS_MAX as HINT_OBJECTS_MAX, decoded as percent_decoded, normalized};
pub use prefixes::PrefixTotal;
pub use sorter::{Entries, FAN_IN, MEMORY_MAX, Sorted, Sorter};
pub use totals::{AGES, Count, SAMPLES_MAX, Times, Totals, Verdict};
