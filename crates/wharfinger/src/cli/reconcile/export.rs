//! Whole lists of what was found, for other programs.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::json;
use wharfinger_reconcile::{Entries, Entry};

use super::super::{Failure, failed};
use super::progress::Progress;
use crate::clock::rfc3339;

enum Shape {
    Csv,
    Keys,
    Json,
}

/// The file's name says how.
pub(super) fn write(file: &Path, list: &Path, progress: &mut Progress) -> Result<(), Failure> {
    let shape = match file.extension().and_then(|extension| extension.to_str()) {
        Some("csv") => Shape::Csv,
        Some("txt") => Shape::Keys,
        _ => Shape::Json,
    };
    let shown = |error: io::Error| Failure::Failed(format!("{}: {error}", file.display()));
    let mut out = BufWriter::new(File::create(file).map_err(shown)?);
    if matches!(shape, Shape::Csv) {
        writeln!(out, "key,size,modifiedAt").map_err(shown)?;
    }
    let mut left_out = 0;
    for entry in Entries::open(list).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        match shape {
            Shape::Csv => row(&mut out, &entry),
            Shape::Keys if entry.key.contains(['\n', '\r']) => {
                left_out += 1;
                Ok(())
            }
            Shape::Keys => writeln!(out, "{}", entry.key),
            Shape::Json => {
                let at = entry.modified_at.map(rfc3339);
                writeln!(out, "{}", json!({ "key": entry.key, "size": entry.size, "modifiedAt": at }))
            }
        }
        .map_err(shown)?;
    }
    out.flush().map_err(shown)?;
    if left_out > 0 {
        progress.say(&format!(
            "{left_out} keys hold line breaks and are not in {}: another ending than .txt takes them",
            file.display()
        ));
    }
    Ok(())
}

fn row(out: &mut impl Write, entry: &Entry) -> io::Result<()> {
    let size = entry.size.map(|size| size.to_string()).unwrap_or_default();
    writeln!(out, "{},{size},{}", quoted(&entry.key), entry.modified_at.map(rfc3339).unwrap_or_default())
}

/// A field of CSV.
pub(super) fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
