//! Two ordered lists side by side: the objects that a store has, and the keys that somebody expects there.

use std::io;

use crate::entry::Entry;

/// What was found about one object or one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// An object whose key is in the list.
    Kept(Entry),
    /// The same, but of another size than the list says.
    Resized { object: Entry, expected: u64 },
    /// An object that no key of the list answers for.
    Orphan(Entry),
    /// A key without its object.
    Missing(Entry),
}

#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A merge of what is not in order would call living objects orphans.
    #[error("the objects are not in the order of their keys' bytes: {after:?} comes after {before:?}")]
    ObjectsOutOfOrder { before: String, after: String },
    #[error("the keys are not in the order of their bytes: {after:?} comes after {before:?}")]
    KeysOutOfOrder { before: String, after: String },
    #[error("the list of keys cannot be read: {0}")]
    Keys(#[from] io::Error),
}

/// A comparison that takes objects one by one, in the order of their keys' bytes, and reads the keys as it needs them.
pub struct Comparison<K> {
    keys: K,
    /// The key that is to be compared next.
    head: Option<Entry>,
    last_object: Option<String>,
    last_key: String,
    keys_read: u64,
}

impl<K: Iterator<Item = io::Result<Entry>>> Comparison<K> {
    /// The keys are in the order of their bytes, as [`crate::Sorter`] leaves them.
    pub fn new(keys: K) -> Result<Comparison<K>, CompareError> {
        Comparison::after(keys, None)
    }

    /// Goes on with a comparison that had come to this object, itself included.
    pub fn after(keys: K, last_object: Option<&str>) -> Result<Comparison<K>, CompareError> {
        let last_object = last_object.map(str::to_owned);
        let mut comparison =
            Comparison { keys, head: None, last_object, last_key: String::new(), keys_read: 0 };
        comparison.read_key()?;
        while let (Some(head), Some(last)) = (&comparison.head, &comparison.last_object)
            && head.key <= *last
        {
            comparison.read_key()?;
        }
        Ok(comparison)
    }

    /// How many keys were compared.
    pub fn keys_done(&self) -> u64 {
        self.keys_read - u64::from(self.head.is_some())
    }

    /// Compares the next object, and every key before it.
    pub fn object(&mut self, object: Entry, mut found: impl FnMut(Finding)) -> Result<(), CompareError> {
        if let Some(last) = self.last_object.as_ref().filter(|last| **last >= object.key) {
            return Err(CompareError::ObjectsOutOfOrder { before: last.clone(), after: object.key });
        }
        let last = self.last_object.get_or_insert_default();
        last.clear();
        last.push_str(&object.key);
        while let Some(head) = self.head.take_if(|head| head.key < object.key) {
            found(Finding::Missing(head));
            self.read_key()?;
        }
        match self.head.take_if(|head| head.key == object.key) {
            None => found(Finding::Orphan(object)),
            Some(head) => {
                found(match (head.size, object.size) {
                    (Some(expected), Some(size)) if expected != size => Finding::Resized { object, expected },
                    _ => Finding::Kept(object),
                });
                self.read_key()?;
            }
        }
        Ok(())
    }

    /// There are no more objects: the keys that are left have none.
    pub fn finish(mut self, mut found: impl FnMut(Finding)) -> Result<(), CompareError> {
        while let Some(head) = self.head.take() {
            found(Finding::Missing(head));
            self.read_key()?;
        }
        Ok(())
    }

    /// Fills the place of the key that was compared with the next.
    fn read_key(&mut self) -> Result<(), CompareError> {
        self.head = self.keys.next().transpose()?;
        let Some(head) = &self.head else { return Ok(()) };
        if self.keys_read > 0 && self.last_key >= head.key {
            let (before, after) = (self.last_key.clone(), head.key.clone());
            return Err(CompareError::KeysOutOfOrder { before, after });
        }
        self.keys_read += 1;
        self.last_key.clone_from(&head.key);
        Ok(())
    }
}

/// Compares two whole lists, each in the order of its keys' bytes.
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
