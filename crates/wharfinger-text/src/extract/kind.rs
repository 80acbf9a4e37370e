//! Detects the kind of a file by its content, because names and declared types can be wrong. The name only selects the
//! kind of plain text.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use encoding_rs::Encoding;

use super::{ExtractError, encoding, html};

const HEAD_BYTES: u64 = 8192;

/// PDF readers accept the signature in this range, because some writers put other bytes before it.
const PDF_HEAD_BYTES: usize = 1024;

pub(super) enum Kind {
    Pdf,
    Rtf,
    /// A document in a ZIP archive, or another archive.
    Zip,
    Text(TextKind, &'static Encoding),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextKind {
    Plain,
    Markdown,
    Csv,
    Json,
    Xml,
    Html,
}

impl TextKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "text",
            Self::Markdown => "markdown",
            Self::Csv => "csv",
            Self::Json => "json",
            Self::Xml => "xml",
            Self::Html => "html",
        }
    }
}

pub(super) fn of(file: &mut File, file_name: &str) -> Result<Kind, ExtractError> {
    let local = |error| ExtractError::local(&error);
    file.seek(SeekFrom::Start(0)).map_err(local)?;
    let mut head = Vec::new();
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut head).map_err(local)?;
    file.seek(SeekFrom::Start(0)).map_err(local)?;

    if is_pdf(&head) {
        return Ok(Kind::Pdf);
    }
    if head.starts_with(RTF) {
        return Ok(Kind::Rtf);
    }
    if is_zip(&head) {
        return Ok(Kind::Zip);
    }
    if head.starts_with(COMPOUND_FILE) {
        return Err(compound_file(file)?);
    }
    // The table of signatures can mistake text for a binary format, so it comes last.
    let declared = if looks_like_html(&head) { html::declared_encoding(&head) } else { None };
    match encoding::of(file, declared)? {
        Some(encoding) => Ok(Kind::Text(text_kind(&head, encoding, file_name), encoding)),
        None => Err(ExtractError::NotSupported(binary_name(&head))),
    }
}

const RTF: &[u8] = b"{\\rtf";

pub(super) const ZIP_SIGNATURES: [&[u8]; 3] = [b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08"];

pub(super) fn is_zip(head: &[u8]) -> bool {
    ZIP_SIGNATURES.iter().any(|signature| head.starts_with(signature))
}

pub(crate) fn is_pdf(head: &[u8]) -> bool {
    head.starts_with(b"%PDF-") || has_late_pdf_signature(head)
}

/// Starts like a document that is neither text nor an archive.
pub(super) fn is_document(head: &[u8]) -> bool {
    is_pdf(head) || head.starts_with(RTF) || head.starts_with(COMPOUND_FILE)
}

/// A text that mentions the signature is still text.
fn has_late_pdf_signature(head: &[u8]) -> bool {
    let is_text = std::str::from_utf8(head).map_or_else(|error| error.error_len().is_none(), |_| true);
    !is_text
        && head[..head.len().min(PDF_HEAD_BYTES)]
            .windows(6)
            .any(|window| window.starts_with(b"%PDF-") && window[5].is_ascii_digit())
}

fn text_kind(head: &[u8], encoding: &'static Encoding, file_name: &str) -> TextKind {
    let head = encoding::head(head, encoding);
    let extension = file_name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    let named = match extension.as_deref() {
        Some("md" | "markdown") => Some(TextKind::Markdown),
        Some("csv" | "tsv") => Some(TextKind::Csv),
        Some("json" | "jsonl" | "ndjson") => Some(TextKind::Json),
        _ => None,
    };
    let start = after_preamble(&head);
    // Markdown can begin with an HTML element.
    if begins_with(start, &PAGES) || (named.is_none() && begins_with(start, &ELEMENTS)) {
        return TextKind::Html;
    }
    let start = head.trim_start();
    if start.starts_with("<?xml") {
        return TextKind::Xml;
    }
    named.unwrap_or(if looks_like_json(start) { TextKind::Json } else { TextKind::Plain })
}

/// The possible beginnings of a page.
const PAGES: [&str; 4] = ["<!doctype html", "<html", "<head", "<body"];
/// The possible beginnings of a fragment of a page.
const ELEMENTS: [&str; 8] = ["<title", "<meta", "<script", "<style", "<h1", "<div", "<p>", "<table"];

fn looks_like_html(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let start = after_preamble(&text);
    begins_with(start, &PAGES) || begins_with(start, &ELEMENTS)
}

fn begins_with(text: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|beginning| {
        text.get(..beginning.len()).is_some_and(|start| start.eq_ignore_ascii_case(beginning))
    })
}

/// The text after comments and an XML declaration.
pub(crate) fn after_preamble(text: &str) -> &str {
    let mut rest = text.trim_start_matches('\u{feff}').trim_start();
    loop {
        let end = if rest.starts_with("<!--") {
            "-->"
        } else if rest.starts_with("<?xml") {
            "?>"
        } else {
            return rest;
        };
        match rest.split_once(end) {
            Some((_, after)) => rest = after.trim_start(),
            None => return "",
        }
    }
}

/// Whether the text starts like an object or an array.
fn looks_like_json(start: &str) -> bool {
    let after = |bracket| start.strip_prefix(bracket).map(str::trim_start);
    after('{').is_some_and(|rest| rest.starts_with(['"', '}']))
        || after('[').is_some_and(|rest| rest.starts_with(['{', '[', '"', ']']))
}

const COMPOUND_FILE: &[u8] = &[0xd0, 0xcf, 0x11, 0xe0, 0xa1, 0xb1, 0x1a, 0xe1];

/// The container of the old Office formats and of encrypted new documents. Its directory has aligned entries of 128
/// bytes that begin with a name in UTF-16.
fn compound_file(file: &mut File) -> Result<ExtractError, ExtractError> {
    const ENTRY_BYTES: usize = 128;
    let name = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).chain([0, 0]).collect::<Vec<u8>>();
    let encrypted = name("EncryptedPackage");
    let known = [
        (name("WordDocument"), "a Word document in the format before Word 2007"),
        (name("Workbook"), "an Excel workbook in the format before Excel 2007"),
        (name("PowerPoint Document"), "a PowerPoint presentation in the format before PowerPoint 2007"),
    ];
    let mut reader = std::io::BufReader::with_capacity(64 * 1024, file);
    let mut entry = [0; ENTRY_BYTES];
    let mut found = "a Microsoft compound file";
    loop {
        match reader.read_exact(&mut entry) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(ExtractError::local(&error)),
        }
        if entry.starts_with(&encrypted) {
            return Ok(ExtractError::Encrypted("an Office document with a password".to_owned()));
        }
        if let Some((_, what)) = known.iter().find(|(name, _)| entry.starts_with(name)) {
            found = what;
        }
    }
    Ok(ExtractError::NotSupported(found.to_owned()))
}

fn binary_name(head: &[u8]) -> String {
    match infer::get(head) {
        Some(kind) => name_of(kind),
        None => "a binary file of an unknown type".to_owned(),
    }
}

pub(super) fn name_of(kind: infer::Type) -> String {
    format!("a file of type {} ({})", kind.extension().to_uppercase(), kind.mime_type())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str, name: &str) -> TextKind {
        text_kind(text.as_bytes(), encoding_rs::UTF_8, name)
    }

    #[test]
    fn the_content_has_priority_over_the_name() {
        assert_eq!(kind("<!DOCTYPE html><p>x", "notes.csv"), TextKind::Html);
        assert_eq!(kind("<!-- made --> <HTML>", "notes.txt"), TextKind::Html);
        assert_eq!(kind("<?xml version='1.0'?><html>", "x"), TextKind::Html);
        assert_eq!(kind("<?xml version='1.0'?><note/>", "x"), TextKind::Xml);
        assert_eq!(kind("{\"a\": 1}", "x"), TextKind::Json);
    }

    #[test]
    fn the_name_selects_the_kind_of_plain_text() {
        assert_eq!(kind("a,b\n1,2\n", "Table.CSV"), TextKind::Csv);
        assert_eq!(kind("<h1>a</h1>\n\n**b**", "read.me.md"), TextKind::Markdown);
        assert_eq!(kind("<h1>a</h1>\n\n**b**", "read.me"), TextKind::Html);
        assert_eq!(kind("# a\n", "read.me.md"), TextKind::Markdown);
        assert_eq!(kind("1", "one.json"), TextKind::Json);
        assert_eq!(kind("a,b\n1,2\n", "table"), TextKind::Plain);
        assert_eq!(kind("a < b", "table.pdf"), TextKind::Plain);
    }
}
