//! Tests of extraction, chunks and vectors with real documents and harmful files, in this process and in the child.

mod bad_files;
mod child;
mod chunks;
mod kinds;
mod limits;
mod noise;
mod vectors;

use std::fs::File;
use std::path::Path;

use wharfinger_text::{ExtractError, ExtractLimits, Extracted, extract};

const MB: u64 = 1024 * 1024;

/// Limits that every harmless document respects.
fn limits() -> ExtractLimits {
    ExtractLimits {
        pages_max: 1000,
        inflated_bytes_max: 50 * MB,
        text_bytes_max: 50 * MB,
        truncate_at_bytes: 50 * MB,
        memory_bytes_max: 512 * MB,
        time_ms_max: 20_000,
    }
}

fn read(path: &Path, limits: &ExtractLimits) -> Result<(Extracted, String), ExtractError> {
    let mut file = File::open(path).expect("the document");
    let name = path.file_name().expect("a name").to_string_lossy();
    let mut text = Vec::new();
    let extracted = extract(&mut file, &name, limits, &mut text)?;
    assert_eq!(extracted.bytes, text.len() as u64, "the reported size is the written size");
    Ok((extracted, String::from_utf8(text).expect("UTF-8")))
}

/// Extracts a document of the samples folder.
fn document(name: &str) -> Result<(Extracted, String), ExtractError> {
    read(&harness::documents::folder().join(name), &limits())
}

/// Extracts bytes as a file with this name.
fn bytes(name: &str, content: &[u8], limits: &ExtractLimits) -> Result<(Extracted, String), ExtractError> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, content).expect("a file");
    read(&path, limits)
}
