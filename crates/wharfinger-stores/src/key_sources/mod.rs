//! Sources of key lists for `wharfinger reconcile`: files, queries and S3 inventories. They are read as a stream. A
//! list that cannot be read completely is an error.

pub mod inventory;
mod lists;
mod sql;

use std::io;

use wharfinger_reconcile::Entry;

pub use lists::{Column, ListFormat, read_list};
pub use sql::{is_database, read_query};

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The list is invalid. The text says where, and what to do.
    #[error("{0}")]
    Invalid(String),
    /// The source cannot be read now. A retry may help.
    #[error("{0}")]
    Unavailable(String),
    /// The entries cannot be written to the local disk.
    #[error("cannot write the list to disk: {0}")]
    Write(io::Error),
}

/// Receives the entries of a list.
pub type Sink<'s> = dyn FnMut(Entry) -> io::Result<()> + Send + 's;

/// What was noticed while a list was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// Rows whose key is NULL or empty, and rows of older versions and delete markers.
    pub skipped: u64,
    /// The last line of a file does not end in a line break, so the file may be truncated.
    pub lacks_final_newline: bool,
    /// CSV rows that contain line breaks.
    pub multiline_rows: u64,
}
