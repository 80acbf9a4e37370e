//! Lists of keys in files: one per line, separated by NUL, or a column of CSV; gzip or not. A list that is not UTF-8 is
//! refused: a guessed key would make a live object look like an orphan.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use wharfinger_reconcile::{Entry, KEY_BYTES_MAX};

use super::{ReadStats, Sink, SourceError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListFormat {
    Lines,
    /// Separated by NUL, for keys that contain line breaks.
    Null,
    Csv(Column),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// Counted from 1. The list has no header row.
    Number(usize),
    /// The name in the header row.
    Name(String),
}

const BUFFER_BYTES: usize = 64 << 10;
/// A longer row probably has a quote that is never closed.
const ROW_BYTES_MAX: usize = 1 << 20;
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads a whole list.
pub fn read_list(
    input: impl Read,
    format: &ListFormat,
    sink: &mut Sink<'_>,
) -> Result<ReadStats, SourceError> {
    let mut input = BufReader::with_capacity(BUFFER_BYTES, input);
    let begins = input.fill_buf().map_err(unreadable)?;
    if begins.starts_with(b"\x1f\x8b") {
        read_plain(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(input)), format, sink)
    } else {
        read_plain(input, format, sink)
    }
}

fn read_plain(
    mut input: impl BufRead,
    format: &ListFormat,
    sink: &mut Sink<'_>,
) -> Result<ReadStats, SourceError> {
    let begins = input.fill_buf().map_err(unreadable)?;
    if begins.starts_with(b"\xff\xfe") || begins.starts_with(b"\xfe\xff") {
        return Err(SourceError::Invalid(
            "the list is UTF-16: convert it first, for example with `iconv -f utf-16 -t utf-8`".into(),
        ));
    }
    if begins.starts_with(UTF8_MARK) {
        input.consume(UTF8_MARK.len());
    }
    match format {
        ListFormat::Lines => read_separated(input, b'\n', sink),
        ListFormat::Null => read_separated(input, 0, sink),
        ListFormat::Csv(column) => read_csv(input, column, sink),
    }
}

fn unreadable(error: io::Error) -> SourceError {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
            SourceError::Invalid(format!("the list is damaged: {error}"))
        }
        _ => SourceError::Unavailable(format!("cannot read the list: {error}")),
    }
}

fn read_separated(
    mut input: impl BufRead,
    separator: u8,
    sink: &mut Sink<'_>,
) -> Result<ReadStats, SourceError> {
    let mut stats = ReadStats::default();
    let what = if separator == 0 { "key" } else { "line" };
    let mut bytes = Vec::with_capacity(KEY_BYTES_MAX);
    for number in 1u64.. {
        bytes.clear();
        let limit = KEY_BYTES_MAX as u64 + 2;
        let read = (&mut input).take(limit).read_until(separator, &mut bytes).map_err(unreadable)?;
        if read == 0 {
            break;
        }
        let mut key = bytes.as_slice();
        stats.lacks_final_newline = key.last() != Some(&separator);
        key = key.strip_suffix(&[separator]).unwrap_or(key);
        if separator == b'\n' {
            key = key.strip_suffix(b"\r").unwrap_or(key);
        }
        if key.is_empty() {
            stats.skipped += 1;
            continue;
        }
        sink(Entry::key(parse_key(key, what, number)?)).map_err(SourceError::Write)?;
    }
    Ok(stats)
}

fn parse_key(bytes: &[u8], what: &str, number: u64) -> Result<String, SourceError> {
    if bytes.len() > KEY_BYTES_MAX {
        return Err(SourceError::Invalid(format!(
            "{what} {number} is longer than the longest key ({KEY_BYTES_MAX} bytes): is this a list of keys?"
        )));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let byte = bytes.get(error.valid_up_to()).copied().unwrap_or_default();
        SourceError::Invalid(format!(
            "{what} {number} is not UTF-8 (byte 0x{byte:02X} after {} bytes): convert the list first, for example with \
             `iconv -f latin1 -t utf-8`",
            error.valid_up_to()
        ))
    })?;
    if what == "line" && text.contains('\0') {
        return Err(SourceError::Invalid(format!(
            "line {number} contains a NUL: if NUL separates the keys, use --null"
        )));
    }
    Ok(text.to_owned())
}

/// Fails if too many bytes were read since the last row.
struct Bounded<R> {
    input: R,
    since_row: Rc<Cell<usize>>,
    last: Rc<Cell<u8>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.since_row.set(self.since_row.get() + read);
        if let Some(last) = buffer[..read].last() {
            self.last.set(*last);
        }
        if self.since_row.get() > ROW_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a row is too long: is a closing quote missing?",
            ));
        }
        Ok(read)
    }
}

fn read_csv(input: impl BufRead, column: &Column, sink: &mut Sink<'_>) -> Result<ReadStats, SourceError> {
    let since_row = Rc::new(Cell::new(0));
    let last = Rc::new(Cell::new(b'\n'));
    let bounded = Bounded { input, since_row: since_row.clone(), last: last.clone() };
    let mut rows = csv::ReaderBuilder::new().has_headers(false).flexible(false).from_reader(bounded);
    let mut row = csv::ByteRecord::new();
    let mut stats = ReadStats::default();
    let mut at = match column {
        Column::Number(number) => Some(number.saturating_sub(1)),
        Column::Name(_) => None,
    };
    while rows.read_byte_record(&mut row).map_err(csv_error)? {
        since_row.set(0);
        let line = row.position().map_or(0, csv::Position::line);
        stats.multiline_rows += u64::from(row.iter().any(|field| field.contains(&b'\n')));
        let Some(at) = at else {
            at = Some(column_index(&row, column)?);
            continue;
        };
        match row.get(at) {
            None => {
                return Err(SourceError::Invalid(format!(
                    "line {line} has {} columns, but no column {}",
                    row.len(),
                    at + 1
                )));
            }
            Some(b"") => stats.skipped += 1,
            // A quoted key can contain anything.
            Some(key) => {
                sink(Entry::key(parse_key(key, "the row at line", line)?)).map_err(SourceError::Write)?
            }
        }
    }
    stats.lacks_final_newline = !b"\r\n".contains(&last.get());
    Ok(stats)
}

fn column_index(header: &csv::ByteRecord, column: &Column) -> Result<usize, SourceError> {
    let Column::Name(name) = column else { return Ok(0) };
    let found = header.iter().position(|title| title == name.as_bytes());
    found.ok_or_else(|| {
        let titles: Vec<_> = header.iter().map(String::from_utf8_lossy).collect();
        SourceError::Invalid(format!(
            "the list has no column `{name}`; its columns are {}",
            titles.join(", ")
        ))
    })
}

pub(super) fn csv_error(error: csv::Error) -> SourceError {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => unreadable(error),
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let line = pos.map_or(0, |pos| pos.line());
            SourceError::Invalid(format!(
                "line {line} has {len} columns, but the first row has {expected_len}: is a quote missing?"
            ))
        }
        _ => SourceError::Invalid("the list is not valid CSV".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn read(bytes: &[u8], format: ListFormat) -> Result<(Vec<String>, u64), String> {
        let mut keys = Vec::new();
        let stats = read_list(bytes, &format, &mut |entry| {
            keys.push(entry.key);
            Ok(())
        });
        stats.map(|stats| (keys, stats.skipped)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_missing_final_newline_is_reported() {
        let lacks_final_newline = |bytes: &[u8], format: ListFormat| {
            read_list(bytes, &format, &mut |_| Ok(())).expect("a list").lacks_final_newline
        };
        let csv = || ListFormat::Csv(Column::Number(1));
        for (whole, cut, format) in [
            (&b"a\nb\n"[..], &b"a\nb"[..], ListFormat::Lines),
            (b"a\r\nb\r\n", b"a\r\nb\r", ListFormat::Lines),
            (b"a\0b\0", b"a\0b", ListFormat::Null),
            (b"a\n\"b\"\n", b"a\n\"b\"", csv()),
        ] {
            assert!(
                !lacks_final_newline(whole, format.clone()) && lacks_final_newline(cut, format),
                "{cut:?}"
            );
        }
        assert!(!lacks_final_newline(b"", ListFormat::Lines) && !lacks_final_newline(b"", csv()));
    }

    #[test]
    fn lines_of_every_system_are_read() {
        let keys = |bytes: &[u8]| read(bytes, ListFormat::Lines).expect("a list").0;
        assert_eq!(keys(b"a\nb c\n\n d\n"), ["a", "b c", " d"]);
        assert_eq!(keys(b"a\r\nb\r\n"), ["a", "b"]);
        assert_eq!(keys("\u{feff}a\nü".as_bytes()), ["a", "ü"]);
        assert_eq!(keys(b""), Vec::<String>::new());
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"a\nb\n").expect("memory");
        assert_eq!(keys(&gzip.finish().expect("memory")), ["a", "b"]);
    }

    #[test]
    fn nul_separates_keys_that_contain_line_breaks() {
        assert_eq!(read(b"a\nb\0c\r\0", ListFormat::Null), Ok((vec!["a\nb".into(), "c\r".into()], 0)));
        assert!(read(b"a\0b\0", ListFormat::Lines).expect_err("NULs").contains("--null"));
    }

    #[test]
    fn an_invalid_list_is_refused_with_its_line() {
        assert!(
            read(b"a\ncaf\xe9\n", ListFormat::Lines).expect_err("Latin-1").contains("line 2 is not UTF-8")
        );
        assert!(read(b"\xff\xfea\0", ListFormat::Lines).expect_err("UTF-16").contains("utf-16"));
        let long = vec![b'x'; 10_000_000];
        assert!(read(&long, ListFormat::Lines).expect_err("one line").contains("line 1 is longer"));
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&long).expect("memory");
        let half = gzip.finish().expect("memory");
        assert!(read(&half[..half.len() / 2], ListFormat::Lines).is_err());
    }

    #[test]
    fn columns_are_found_by_number_and_by_name() {
        let text = b"id,key\n1,\"a,b\"\n2,\"c\nd\"\n3,\"e\"\"f\"\n4,\n";
        let keys = vec!["a,b".to_owned(), "c\nd".into(), "e\"f".into()];
        assert_eq!(read(text, ListFormat::Csv(Column::Name("key".into()))), Ok((keys.clone(), 1)));
        let numbered = read(&text[7..], ListFormat::Csv(Column::Number(2)));
        assert_eq!(numbered, Ok((keys, 1)));
        let wrong = read(text, ListFormat::Csv(Column::Name("path".into()))).expect_err("no such column");
        assert!(wrong.contains("id, key"), "{wrong}");
        assert!(read(b"a\n", ListFormat::Csv(Column::Number(2))).expect_err("one column").contains("line 1"));
    }

    #[test]
    fn a_quote_that_is_never_closed_is_an_error() {
        let mut text = b"\"a\n".to_vec();
        text.extend(std::iter::repeat_n(&b"b\n"[..], 1_000_000).flatten());
        assert!(read(&text, ListFormat::Csv(Column::Number(1))).expect_err("no end").contains("quote"));
    }
}
