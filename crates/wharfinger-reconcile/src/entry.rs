//! One entry of a list, and its format on disk: length, flags, key, and the optional size and time.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// No store accepts longer keys, so a longer one means that the file is not a list of keys.
pub const KEY_BYTES_MAX: usize = 4_096;

/// An object, or a key at which an object is expected. Lists of entries are in byte order of the keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub key: String,
    /// For a key from a list: the expected size of the object, if the list has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Milliseconds since 1970, by the store's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<i64>,
}

const HAS_SIZE: u8 = 1;
const HAS_TIME: u8 = 2;

impl Entry {
    /// A key without a size and a time.
    pub fn key(key: impl Into<String>) -> Entry {
        Entry { key: key.into(), size: None, modified_at: None }
    }

    /// An object as a store lists it.
    pub fn object(key: impl Into<String>, size: u64, modified_at: Option<i64>) -> Entry {
        Entry { key: key.into(), size: Some(size), modified_at }
    }

    /// Writes the entry and returns the number of bytes written.
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

    /// Reads the next entry. None: the list has ended. A truncated entry is an error.
    pub fn read_from(input: &mut impl Read) -> io::Result<Option<Entry>> {
        let mut first = [0; 1];
        if input.read(&mut first)? == 0 {
            return Ok(None);
        }
        let mut head = [first[0], 0, 0, 0, 0];
        input.read_exact(&mut head[1..])?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if length > 2 * KEY_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this file is not a list of entries"));
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

    /// Approximate size in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Entry>() + self.key.len() + 16
    }
}
