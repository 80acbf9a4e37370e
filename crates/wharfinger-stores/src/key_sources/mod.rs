//! Where lists of keys come from, for a bucket that is not ours: files, queries and S3 inventories. All of them are read
//! once, from the beginning to the end, and never held; a list that cannot be read as a whole is an error.

pub mod inventory;
mod lists;
mod sql;

use std::io;

use wharfinger_reconcile::Entry;

pub use lists::{Column, ListFormat, read_list};
pub use sql::{is_database, read_query};

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The list is not what it should be; says where, and what helps.
    #[error("{0}")]
    Wrong(String),
    /// Whoever has the list does not answer. Trying again may help.
    #[error("{0}")]
    Unavailable(String),
    /// What is read cannot be put anywhere.
    #[error("what was read could not be written: {0}")]
    Full(io::Error),
}

/// Who takes the entries of a list.
pub type Sink<'s> = dyn FnMut(Entry) -> io::Result<()> + Send + 's;

/// What a list held beside keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Rows whose key is NULL, empty, or of an object's older version or delete marker.
    pub skipped: u64,
    /// The last line of a file has no end: more may have come after it.
    pub is_open: bool,
    /// Rows of CSV that hold line breaks.
    pub over_lines: u64,
}
