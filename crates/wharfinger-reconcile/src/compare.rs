//! Merges two sorted lists: the objects in a store, and the keys that are expected there.

use std::io;

use crate::entry::Entry;

/// The result for one object or one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// An object whose key is in the list.
    Kept(Entry),
    /// An object whose key is in the list with another size.
    Resized { object: Entry, expected: u64 },
    /// An object whose key is not in the list.
    Orphan(Entry),
    /// A key without an object.
    Missing(Entry),
}

#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A merge of unsorted lists would report objects in use as orphans.
    #[error("the objects are not sorted by the bytes of their keys: {after:?} comes after {before:?}")]
    ObjectsOutOfOrder { before: String, after: String },
    #[error("the keys are not sorted by their bytes: {after:?} comes after {before:?}")]
    KeysOutOfOrder { before: String, after: String },
    #[error("cannot read the list of keys: {0}")]
    Keys(#[from] io::Error),
}

/// A comparison that takes objects one by one, in byte order of their keys. It reads the keys when it needs them.
pub struct Comparison<K> {
    keys: K,
    next_key: Option<Entry>,
    last_object: Option<String>,
    last_key: String,
    keys_read: u64,
}

impl<K: Iterator<Item = io::Result<Entry>>> Comparison<K> {
    /// The keys must be in byte order, as [`crate::Sorter`] writes them.
    pub fn new(keys: K) -> Result<Comparison<K>, CompareError> {
        Comparison::resume_after(keys, None)
    }

    /// Resumes a comparison after this object, which was compared already.
    pub fn resume_after(keys: K, last_object: Option<&str>) -> Result<Comparison<K>, CompareError> {
        let last_object = last_object.map(str::to_owned);
        let mut comparison =
            Comparison { keys, next_key: None, last_object, last_key: String::new(), keys_read: 0 };
        comparison.read_key()?;
        while let (Some(key), Some(last)) = (&comparison.next_key, &comparison.last_object)
            && key.key <= *last
        {
            comparison.read_key()?;
        }
        Ok(comparison)
    }

    /// The number of keys that were compared.
    pub fn keys_done(&self) -> u64 {
        self.keys_read - u64::from(self.next_key.is_some())
    }

    /// Compares the next object, and every key before it.
    pub fn object(&mut self, object: Entry, mut found: impl FnMut(Finding)) -> Result<(), CompareError> {
        if let Some(last) = self.last_object.as_ref().filter(|last| **last >= object.key) {
            return Err(CompareError::ObjectsOutOfOrder { before: last.clone(), after: object.key });
        }
        let last = self.last_object.get_or_insert_default();
        last.clear();
        last.push_str(&object.key);
        while let Some(key) = self.next_key.take_if(|next| next.key < object.key) {
            found(Finding::Missing(key));
            self.read_key()?;
        }
        match self.next_key.take_if(|next| next.key == object.key) {
            None => found(Finding::Orphan(object)),
            Some(key) => {
                found(match (key.size, object.size) {
                    (Some(expected), Some(size)) if expected != size => Finding::Resized { object, expected },
                    _ => Finding::Kept(object),
                });
                self.read_key()?;
            }
        }
        Ok(())
    }

    /// Ends the objects: the remaining keys have none.
    pub fn finish(mut self, mut found: impl FnMut(Finding)) -> Result<(), CompareError> {
        while let Some(key) = self.next_key.take() {
            found(Finding::Missing(key));
            self.read_key()?;
        }
        Ok(())
    }

    fn read_key(&mut self) -> Result<(), CompareError> {
        self.next_key = self.keys.next().transpose()?;
        let Some(next) = &self.next_key else { return Ok(()) };
        if self.keys_read > 0 && self.last_key >= next.key {
            let (before, after) = (self.last_key.clone(), next.key.clone());
            return Err(CompareError::KeysOutOfOrder { before, after });
        }
        self.keys_read += 1;
        self.last_key.clone_from(&next.key);
        Ok(())
    }
}

/// Compares two complete lists, each in byte order of its keys.
///
/// ```
/// use wharfinger_reconcile::{Entry, Finding, compare};
///
/// let keys = ["a", "b"].map(|key| Ok(Entry::key(key)));
/// let objects = ["b", "c"].map(|key| Ok(Entry::object(key, 1, None)));
/// let mut orphans = Vec::new();
/// compare(keys, objects, |finding| {
///     if let Finding::Orphan(object) = finding {
///         orphans.push(object.key);
///     }
/// })?;
/// assert_eq!(orphans, ["c"]);
/// # Ok::<(), wharfinger_reconcile::CompareError>(())
/// ```
pub fn compare(
    keys: impl IntoIterator<Item = io::Result<Entry>>,
    objects: impl IntoIterator<Item = io::Result<Entry>>,
    mut found: impl FnMut(Finding),
) -> Result<(), CompareError> {
    let mut comparison = Comparison::new(keys.into_iter())?;
    for object in objects {
        comparison.object(object?, &mut found)?;
    }
    comparison.finish(found)
}
