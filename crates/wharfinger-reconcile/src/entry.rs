//! One name in a list, and how lists of them lie on disk: length, flags, key, and what else is known.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// No store takes longer keys; what is longer is no list of keys.
pub const KEY_BYTES_MAX: usize = 4_096;

/// An object, or a key that an object is expected under. Lists of them are in the order of their keys' bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub key: String,
    /// Of a key from a list: what the object's size should be, where the list says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Milliseconds since 1970, by the store's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<i64>,
}

const HAS_SIZE: u8 = 1;
const HAS_TIME: u8 = 2;

impl Entry {
    /// A key of which nothing else is known.
    pub fn key(key: impl Into<String>) -> Entry {
        Entry { key: key.into(), size: None, modified_at: None }
    }

    /// An object as a store lists it.
    pub fn object(key: impl Into<String>, size: u64, modified_at: Option<i64>) -> Entry {
        Entry { key: key.into(), size: Some(size), modified_at }
    }

    /// Writes it, and answers how many bytes that took.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<u64> {
        let length = u32::try_from(self.key.len()).map_err(io::Error::other)?;
        let flags = if self.size.is_some() { HAS_SIZE } else { 0 }
            | if self.modified_at.is_some() { HAS_TIME } else { 0 };
        out.write_all(&length.to_le_bytes())?;
        out.write_all(&[flags])?;
        out.write_all(self.key.as_bytes())?;
        let mut written = 5 + u64::from(length);
        if let Some(size) = self.size {
            out.write_all(&size.to_le_bytes())?;
            written += 8;
        }
        if let Some(at) = self.modified_at {
            out.write_all(&at.to_le_bytes())?;
            written += 8;
        }
        Ok(written)
    }

    /// Reads the next; none at the end of the list. One that ends in the middle is an error.
    pub fn read_from(input: &mut impl Read) -> io::Result<Option<Entry>> {
        let mut first = [0; 1];
        if input.read(&mut first)? == 0 {
            return Ok(None);
        }
        let mut head = [first[0], 0, 0, 0, 0];
        input.read_exact(&mut head[1..])?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if length > 2 * KEY_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no list of ours"));
        }
        let mut key = vec![0; length];
        input.read_exact(&mut key)?;
        let key =
            String::from_utf8(key).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let mut number = || -> io::Result<[u8; 8]> {
            let mut bytes = [0; 8];
            input.read_exact(&mut bytes)?;
            Ok(bytes)
        };
        let size = (head[4] & HAS_SIZE != 0).then(&mut number).transpose()?.map(u64::from_le_bytes);
        let modified_at = (head[4] & HAS_TIME != 0).then(&mut number).transpose()?.map(i64::from_le_bytes);
        Ok(Some(Entry { key, size, modified_at }))
    }

    /// Roughly what it takes in memory.
    pub(crate) fn weight(&self) -> usize {
        size_of::<Entry>() + self.key.len() + 16
    }
}
