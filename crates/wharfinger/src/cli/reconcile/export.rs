//! Writes complete lists of orphans and missing keys, for other programs.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::json;
use wharfinger_reconcile::{Entries, Entry};

use super::super::{Failure, failed};
use super::progress::Progress;
use crate::clock::rfc3339;

enum ListFormat {
    Csv,
    Keys,
    Json,
}

/// The extension of the file selects the format.
pub(super) fn write(file: &Path, list: &Path, progress: &mut Progress) -> Result<(), Failure> {
    let format = match file.extension().and_then(|extension| extension.to_str()) {
        Some("csv") => ListFormat::Csv,
        Some("txt") => ListFormat::Keys,
        _ => ListFormat::Json,
    };
    let write_error = |error: io::Error| Failure::Failed(format!("{}: {error}", file.display()));
    let mut out = BufWriter::new(File::create(file).map_err(write_error)?);
    if matches!(format, ListFormat::Csv) {
        writeln!(out, "key,size,modifiedAt").map_err(write_error)?;
    }
    let mut skipped = 0;
    for entry in Entries::open(list).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        match format {
            ListFormat::Csv => row(&mut out, &entry),
            ListFormat::Keys if entry.key.contains(['\n', '\r']) => {
                skipped += 1;
                Ok(())
            }
            ListFormat::Keys => writeln!(out, "{}", entry.key),
            ListFormat::Json => {
                let at = entry.modified_at.map(rfc3339);
                writeln!(out, "{}", json!({ "key": entry.key, "size": entry.size, "modifiedAt": at }))
            }
        }
        .map_err(write_error)?;
    }
    out.flush().map_err(write_error)?;
    if skipped > 0 {
        progress.print(&format!(
            "{skipped} keys contain line breaks and are not in {}: use .csv or .jsonl instead",
            file.display()
        ));
    }
    Ok(())
}

fn row(out: &mut impl Write, entry: &Entry) -> io::Result<()> {
    let size = entry.size.map(|size| size.to_string()).unwrap_or_default();
    writeln!(out, "{},{size},{}", quoted(&entry.key), entry.modified_at.map(rfc3339).unwrap_or_default())
}

/// A CSV field, with quotes if needed.
pub(super) fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
