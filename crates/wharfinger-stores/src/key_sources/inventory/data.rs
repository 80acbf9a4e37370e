//! Reads the data files of an inventory row by row.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use chrono::DateTime;
use flate2::bufread::MultiGzDecoder;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use wharfinger_reconcile::Entry;

use super::super::lists::csv_error;
use super::super::{ReadStats, Sink, SourceError};
use super::manifest::{Columns, DataFile, FileFormat, Manifest};

const BUFFER_BYTES: usize = 64 << 10;

/// One row of a data file.
#[derive(Default)]
struct InventoryRow {
    entry: Option<Entry>,
    /// The row is of an older version or a delete marker.
    is_superseded: bool,
}

pub(super) fn read_data(
    path: &Path,
    manifest: &Manifest,
    file: &DataFile,
    sink: &mut Sink<'_>,
) -> Result<ReadStats, SourceError> {
    let opened = File::open(path)
        .map_err(|error| SourceError::Unavailable(format!("cannot read {}: {error}", file.key)))?;
    let mut stats = ReadStats::default();
    let mut take = |row: InventoryRow| match row.entry.filter(|_| !row.is_superseded) {
        Some(entry) => sink(entry).map_err(SourceError::Write),
        None => {
            stats.skipped += 1;
            Ok(())
        }
    };
    match &manifest.format {
        FileFormat::Csv(columns) => {
            let input = BufReader::with_capacity(BUFFER_BYTES, opened);
            match file.key.ends_with(".gz") {
                true => read_csv(MultiGzDecoder::new(input), *columns, &file.key, &mut take)?,
                false => read_csv(input, *columns, &file.key, &mut take)?,
            }
        }
        FileFormat::Parquet => read_parquet(opened, &file.key, &mut take)?,
    }
    Ok(stats)
}

fn read_csv(
    input: impl Read,
    columns: Columns,
    name: &str,
    take: &mut dyn FnMut(InventoryRow) -> Result<(), SourceError>,
) -> Result<(), SourceError> {
    let mut rows = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(input);
    let mut row = csv::ByteRecord::new();
    while rows.read_byte_record(&mut row).map_err(csv_error)? {
        let line = row.position().map_or(0, csv::Position::line);
        let text = |at: Option<usize>| {
            at.and_then(|at| row.get(at)).and_then(|bytes| std::str::from_utf8(bytes).ok())
        };
        let key = text(Some(columns.key)).and_then(form_decoded).filter(|key| !key.is_empty());
        let key =
            key.ok_or_else(|| SourceError::Invalid(format!("line {line} of {name} has no valid key")))?;
        let is =
            |at: Option<usize>, word: &str| text(at).is_some_and(|value| value.eq_ignore_ascii_case(word));
        take(InventoryRow {
            entry: Some(Entry {
                key,
                size: text(columns.size).and_then(|size| size.parse().ok()),
                modified_at: text(columns.modified_at)
                    .and_then(|at| DateTime::parse_from_rfc3339(at).ok())
                    .map(|at| at.timestamp_millis()),
            }),
            is_superseded: is(columns.is_latest, "false") || is(columns.is_delete_marker, "true"),
        })?;
    }
    Ok(())
}

/// Keys in CSV inventories are encoded like form data.
fn form_decoded(key: &str) -> Option<String> {
    wharfinger_reconcile::percent_decoded(&key.replace('+', " "))
}

/// Reads the row groups one after the other, and only the needed columns.
fn read_parquet(
    file: File,
    name: &str,
    take: &mut dyn FnMut(InventoryRow) -> Result<(), SourceError>,
) -> Result<(), SourceError> {
    const WANTED: [&str; 5] = ["key", "size", "last_modified_date", "is_latest", "is_delete_marker"];
    let wrong =
        |error: parquet::errors::ParquetError| SourceError::Invalid(format!("cannot read {name}: {error}"));
    let reader = SerializedFileReader::new(file).map_err(wrong)?;
    let schema = reader.metadata().file_metadata().schema();
    let fields: Vec<Arc<Type>> =
        schema.get_fields().iter().filter(|field| WANTED.contains(&field.name())).cloned().collect();
    if !fields.iter().any(|field| field.name() == "key") {
        return Err(SourceError::Invalid(format!("{name} has no column `key`")));
    }
    let projection = Type::group_type_builder(schema.name()).with_fields(fields).build().map_err(wrong)?;
    for row in reader.get_row_iter(Some(projection)).map_err(wrong)? {
        take(parquet_row(&row.map_err(wrong)?, name)?)?;
    }
    Ok(())
}

fn parquet_row(row: &Row, name: &str) -> Result<InventoryRow, SourceError> {
    let (mut key, mut size, mut modified_at, mut is_superseded) = (None, None, None, false);
    for (column, field) in row.get_column_iter() {
        match (column.as_str(), field) {
            ("key", Field::Str(text)) => key = Some(text.clone()),
            ("key", Field::Bytes(bytes)) => {
                let text = std::str::from_utf8(bytes.data());
                let text =
                    text.map_err(|_| SourceError::Invalid(format!("{name} has a key that is not UTF-8")))?;
                key = Some(text.to_owned());
            }
            ("size", Field::Long(bytes)) => size = u64::try_from(*bytes).ok(),
            ("last_modified_date", Field::TimestampMillis(at)) => modified_at = Some(*at),
            ("last_modified_date", Field::TimestampMicros(at)) => modified_at = Some(at / 1_000),
            ("is_latest", Field::Bool(is_latest)) => is_superseded |= !is_latest,
            ("is_delete_marker", Field::Bool(is_marker)) => is_superseded |= is_marker,
            _ => {}
        }
    }
    let entry = key.filter(|key| !key.is_empty()).map(|key| Entry { key, size, modified_at });
    if entry.is_none() {
        return Err(SourceError::Invalid(format!("{name} has a row without a key")));
    }
    Ok(InventoryRow { entry, is_superseded })
}
