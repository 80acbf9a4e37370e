//! HTML as a stream of tokens. No tree is built, so depth and length use no memory. Block elements become gaps,
//! headings get marks, scripts and styles are skipped.

use std::fs::File;
use std::io::Read;

use encoding_rs::Encoding;
use html5gum::{Emitter, Error, IoReader, State, Tokenizer, naive_next_state};

use super::ExtractError;
use super::encoding::Decoded;
use super::sink::{Gap, TextSink};

/// HTML pages and XHTML chapters treat titles and self-closing elements in different ways.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Html,
    /// A chapter of an EPUB. `<title/>` closes itself, and a title is skipped because it repeats the chapter's heading.
    Xhtml,
}

pub(super) fn extract_file(
    file: &mut File,
    encoding: &'static Encoding,
    sink: &mut TextSink<'_>,
) -> Result<(), ExtractError> {
    extract(Decoded::new(file, encoding), Dialect::Html, sink, ExtractError::local)
}

/// Reads a page in UTF-8. `failed` converts a read error.
pub(super) fn extract<R: Read>(
    page: R,
    dialect: Dialect,
    sink: &mut TextSink<'_>,
    failed: impl Fn(&std::io::Error) -> ExtractError,
) -> Result<(), ExtractError> {
    let page_emitter = Page {
        sink,
        dialect,
        failure: None,
        text: Vec::new(),
        tag: Vec::new(),
        is_end: false,
        closes_itself: false,
        last_start: Vec::new(),
        skipped: None,
        preformatted: 0,
        is_first_of_pre: false,
    };
    // The emitter returns a token only for a failure.
    match Tokenizer::new_with_emitter(IoReader::new(page), page_emitter).next() {
        Some(failure) => Err(failure.unwrap_or_else(|error| failed(&error))),
        None => Ok(()),
    }
}

/// The encoding that the page declares in its first kilobytes.
pub(super) fn declared_encoding(head: &[u8]) -> Option<&'static Encoding> {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let from = |word: &str| {
        let (_, after) = head.split_once(word)?;
        let value = after.trim_start().strip_prefix('=')?.trim_start().trim_start_matches(['"', '\'']);
        let end = value.find(|c: char| !(c.is_ascii_alphanumeric() || "-_:.".contains(c)))?;
        Encoding::for_label(&value.as_bytes()[..end])
    };
    let is_xml = head.trim_start().starts_with("<?xml");
    // The declaration was readable as ASCII, so the page cannot be UTF-16, even if it declares that.
    from("charset")
        .or_else(|| if is_xml { from("encoding") } else { None })
        .filter(|encoding| encoding.is_ascii_compatible() || *encoding == encoding_rs::ISO_2022_JP)
}

/// Long enough for the names of all known elements.
const NAME_BYTES_MAX: usize = 16;
const TEXT_BYTES: usize = 8 * 1024;

struct Page<'s, 'w> {
    sink: &'s mut TextSink<'w>,
    dialect: Dialect,
    failure: Option<ExtractError>,
    /// Text that was not written yet. It can end inside a character.
    text: Vec<u8>,
    tag: Vec<u8>,
    is_end: bool,
    closes_itself: bool,
    last_start: Vec<u8>,
    /// The element whose content is skipped.
    skipped: Option<Vec<u8>>,
    preformatted: usize,
    is_first_of_pre: bool,
}

impl Page<'_, '_> {
    fn record_failure<T>(&mut self, outcome: Result<T, ExtractError>) {
        if let Err(error) = outcome {
            self.failure.get_or_insert(error);
        }
    }

    /// Writes the text so far, except an incomplete character at the end.
    fn flush(&mut self, is_complete: bool) {
        let text = std::mem::take(&mut self.text);
        let whole = match std::str::from_utf8(&text) {
            Err(error) if error.error_len().is_none() && !is_complete => error.valid_up_to(),
            _ => text.len(),
        };
        if self.skipped.is_none() {
            let words = String::from_utf8_lossy(&text[..whole]);
            let outcome = if self.preformatted > 0 {
                let first = std::mem::take(&mut self.is_first_of_pre);
                let code = if first { words.strip_prefix('\n').unwrap_or(&words) } else { &words };
                self.sink.preformatted(code)
            } else {
                self.sink.words(&words)
            };
            self.record_failure(outcome);
        }
        self.text.extend_from_slice(&text[whole..]);
    }

    fn start(&mut self) {
        if self.skipped.is_some() {
            return;
        }
        let is_chapter = self.dialect == Dialect::Xhtml;
        match self.tag.as_slice() {
            b"script" | b"style" | b"template" | b"iframe" | b"noembed" | b"noframes" => self.skip(),
            b"title" if is_chapter => self.skip(),
            [b'h', level @ b'1'..=b'6'] => self.sink.heading(usize::from(level - b'0')),
            b"li" => self.sink.list_item(),
            b"br" => self.sink.gap(Gap::Line),
            b"tr" => self.sink.gap(Gap::Line),
            b"td" | b"th" => self.sink.gap(Gap::Cell),
            b"pre" => {
                self.sink.gap(Gap::Paragraph);
                self.preformatted += 1;
                self.is_first_of_pre = true;
            }
            name if is_block(name) => self.sink.gap(Gap::Paragraph),
            _ => {}
        }
    }

    fn skip(&mut self) {
        if !(self.closes_itself && self.dialect == Dialect::Xhtml) {
            self.skipped = Some(self.tag.clone());
        }
    }

    fn end(&mut self) {
        if let Some(skipped) = &self.skipped {
            if *skipped == self.tag {
                self.skipped = None;
            }
            return;
        }
        match self.tag.as_slice() {
            [b'h', b'1'..=b'6'] => {
                self.sink.forget_mark();
                self.sink.gap(Gap::Paragraph);
            }
            b"li" => self.sink.gap(Gap::Line),
            b"tr" => self.sink.gap(Gap::Line),
            b"pre" => {
                self.preformatted = self.preformatted.saturating_sub(1);
                self.sink.gap(Gap::Paragraph);
            }
            name if is_block(name) => self.sink.gap(Gap::Paragraph),
            _ => {}
        }
    }
}

fn is_block(name: &[u8]) -> bool {
    const BLOCKS: [&[u8]; 34] = [
        b"address",
        b"article",
        b"aside",
        b"blockquote",
        b"body",
        b"caption",
        b"center",
        b"dd",
        b"details",
        b"dialog",
        b"div",
        b"dl",
        b"dt",
        b"fieldset",
        b"figcaption",
        b"figure",
        b"footer",
        b"form",
        b"head",
        b"header",
        b"hr",
        b"html",
        b"legend",
        b"main",
        b"nav",
        b"ol",
        b"option",
        b"p",
        b"section",
        b"summary",
        b"table",
        b"textarea",
        b"title",
        b"ul",
    ];
    BLOCKS.contains(&name)
}

impl Emitter for Page<'_, '_> {
    type Token = ExtractError;

    fn set_last_start_tag(&mut self, last_start_tag: Option<&[u8]>) {
        self.last_start = last_start_tag.unwrap_or_default().to_vec();
    }

    fn emit_eof(&mut self) {
        self.flush(true);
    }

    fn emit_error(&mut self, _: Error) {}

    fn should_emit_errors(&mut self) -> bool {
        false
    }

    fn pop_token(&mut self) -> Option<ExtractError> {
        self.failure.take()
    }

    fn emit_string(&mut self, characters: &[u8]) {
        self.text.extend_from_slice(characters);
        if self.text.len() >= TEXT_BYTES {
            self.flush(false);
        }
    }

    fn init_start_tag(&mut self) {
        self.tag.clear();
        self.is_end = false;
        self.closes_itself = false;
    }

    fn init_end_tag(&mut self) {
        self.tag.clear();
        self.is_end = true;
        self.closes_itself = false;
    }

    fn init_comment(&mut self) {}

    fn emit_current_tag(&mut self) -> Option<State> {
        self.flush(true);
        if self.is_end {
            self.end();
            return None;
        }
        self.last_start.clone_from(&self.tag);
        self.start();
        if self.closes_itself && self.dialect == Dialect::Xhtml { None } else { naive_next_state(&self.tag) }
    }

    fn emit_current_comment(&mut self) {}

    fn emit_current_doctype(&mut self) {}

    fn set_self_closing(&mut self) {
        self.closes_itself = true;
    }

    fn set_force_quirks(&mut self) {}

    fn push_tag_name(&mut self, name: &[u8]) {
        // One byte more than the limit is kept, so that a longer name matches no known element.
        let room = (NAME_BYTES_MAX + 1).saturating_sub(self.tag.len());
        self.tag.extend_from_slice(&name[..name.len().min(room)]);
    }

    fn push_comment(&mut self, _: &[u8]) {}

    fn push_doctype_name(&mut self, _: &[u8]) {}

    fn init_doctype(&mut self) {}

    fn init_attribute(&mut self) {}

    fn push_attribute_name(&mut self, _: &[u8]) {}

    fn push_attribute_value(&mut self, _: &[u8]) {}

    fn set_doctype_public_identifier(&mut self, _: &[u8]) {}

    fn set_doctype_system_identifier(&mut self, _: &[u8]) {}

    fn push_doctype_public_identifier(&mut self, _: &[u8]) {}

    fn push_doctype_system_identifier(&mut self, _: &[u8]) {}

    fn current_is_appropriate_end_tag_token(&mut self) -> bool {
        self.is_end && self.tag == self.last_start
    }
}
