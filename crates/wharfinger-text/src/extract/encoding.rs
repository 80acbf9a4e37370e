//! Decodes bytes into characters, in pieces. The whole file is read once, in constant memory, to detect its encoding,
//! or that it is not text.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use encoding_rs::{CoderResult, Decoder, Encoding, UTF_8, WINDOWS_1252};

use super::ExtractError;

const PIECE_BYTES: usize = 64 * 1024;

/// The encoding of the file, or None for a binary file. A byte order mark of UTF-16 has priority over the declared
/// encoding.
pub(super) fn of(
    file: &mut File,
    declared: Option<&'static Encoding>,
) -> Result<Option<&'static Encoding>, ExtractError> {
    let local = |error| ExtractError::local(&error);
    file.seek(SeekFrom::Start(0)).map_err(local)?;
    let mut survey = Survey::default();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = file.read(&mut piece).map_err(local)?;
        if read == 0 {
            break;
        }
        if survey.bytes == 0
            && let Some((wide, _)) = Encoding::for_bom(&piece[..read])
            && wide != UTF_8
        {
            return Ok(is_wide_text(&piece[..read], wide).then_some(wide));
        }
        survey.add(&piece[..read]);
        if survey.is_binary() {
            return Ok(None);
        }
    }
    Ok(survey.verdict(declared))
}

/// A binary file can start with the bytes of a byte order mark by chance, so the first piece must decode to text too.
fn is_wide_text(piece: &[u8], encoding: &'static Encoding) -> bool {
    let mut text = String::with_capacity(piece.len() * 3 + 16);
    let (_, _, had_faults) = encoding.new_decoder().decode_to_string(piece, &mut text, false);
    !had_faults && !text.chars().any(|c| u8::try_from(c).is_ok_and(is_control))
}

/// Whether the first bytes of a file show that it is not text, whatever follows: it has no byte order mark, and at least
/// every sixteenth byte is a control character.
pub(super) fn is_binary_head(head: &[u8]) -> bool {
    let mut survey = Survey::default();
    survey.add(head);
    Encoding::for_bom(head).is_none() && survey.controls > 8 && survey.controls * 16 > survey.bytes
}

/// Counts over the bytes of a file, to decide whether it is text.
#[derive(Default)]
struct Survey {
    bytes: u64,
    controls: u64,
    above_ascii: u64,
    /// Bytes that Windows-1252 has no character for.
    undefined: u64,
    /// Characters of more than one byte, and decoding faults, if the file is read as UTF-8.
    characters: u64,
    faults: u64,
    /// The bytes of a character that continues in the next piece.
    partial: Vec<u8>,
}

impl Survey {
    fn add(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        if piece.is_ascii() && self.partial.is_empty() {
            self.controls += piece.iter().filter(|byte| is_control(**byte)).count() as u64;
            return;
        }
        for byte in piece {
            self.controls += u64::from(is_control(*byte));
            self.above_ascii += u64::from(*byte >= 0x80);
            self.undefined += u64::from(matches!(byte, 0x81 | 0x8d | 0x8f | 0x90 | 0x9d));
        }
        let mut joined = std::mem::take(&mut self.partial);
        joined.extend_from_slice(piece);
        let mut rest = joined.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.characters += long_characters(text);
                    return;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    self.characters += long_characters(std::str::from_utf8(valid).unwrap_or_default());
                    match error.error_len() {
                        Some(length) => {
                            self.faults += 1;
                            rest = &after[length..];
                        }
                        None => {
                            self.partial = after.to_vec();
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Text can contain a few control characters, but at most 1 in 200 bytes.
    fn is_binary(&self) -> bool {
        self.controls > 8 && self.controls * 200 > self.bytes
    }

    fn verdict(mut self, declared: Option<&'static Encoding>) -> Option<&'static Encoding> {
        if !self.partial.is_empty() {
            self.faults += 1;
        }
        if self.controls > 0 && (self.controls * 200 > self.bytes) {
            return None;
        }
        if declared.is_some_and(|declared| declared != UTF_8) {
            return declared;
        }
        // Truncated or damaged UTF-8 is still read as UTF-8. Text in another encoding almost never looks like UTF-8.
        if self.faults == 0 || self.faults * 8 <= self.characters {
            return Some(UTF_8);
        }
        let is_plausible =
            self.undefined == 0 && self.controls == 0 && self.above_ascii * 10 <= self.bytes * 4;
        is_plausible.then_some(WINDOWS_1252)
    }
}

fn long_characters(text: &str) -> u64 {
    text.bytes().filter(|byte| *byte >= 0xc0).count() as u64
}

fn is_control(byte: u8) -> bool {
    // Recordings of terminals contain backspace and escape, so these are allowed.
    matches!(byte, 0..=0x07 | 0x0e..=0x1a | 0x1c..=0x1f | 0x7f)
}

/// Decodes the first bytes of a file, to detect its kind.
pub(super) fn head<'a>(bytes: &'a [u8], encoding: &'static Encoding) -> Cow<'a, str> {
    encoding.decode(bytes).0
}

/// Passes the text of the file to `piece`, in pieces. Invalid bytes become U+FFFD.
pub(super) fn decode(
    file: &mut File,
    encoding: &'static Encoding,
    piece: &mut dyn FnMut(&str) -> Result<(), ExtractError>,
) -> Result<(), ExtractError> {
    let mut reader = Decoded::new(file, encoding);
    loop {
        let text = reader.next_piece().map_err(|error| ExtractError::local(&error))?;
        match text {
            Some(text) => piece(text)?,
            None => return Ok(()),
        }
    }
}

/// Decodes a reader to UTF-8.
pub(super) struct Decoded<R> {
    source: R,
    decoder: Decoder,
    raw: Vec<u8>,
    text: String,
    /// The number of bytes of `text` that were read.
    consumed: usize,
    is_at_end: bool,
}

impl<R: Read> Decoded<R> {
    pub(super) fn new(source: R, encoding: &'static Encoding) -> Self {
        Self {
            source,
            decoder: encoding.new_decoder(),
            raw: vec![0; PIECE_BYTES],
            text: String::with_capacity(PIECE_BYTES * 3 + 16),
            consumed: 0,
            is_at_end: false,
        }
    }

    fn next_piece(&mut self) -> std::io::Result<Option<&str>> {
        self.text.clear();
        self.consumed = 0;
        while !self.is_at_end && self.text.is_empty() {
            let read = self.source.read(&mut self.raw)?;
            self.is_at_end = read == 0;
            // A byte becomes at most three bytes of UTF-8.
            let (result, _, _) =
                self.decoder.decode_to_string(&self.raw[..read], &mut self.text, self.is_at_end);
            assert_eq!(result, CoderResult::InputEmpty, "the buffer has room for the whole piece");
        }
        Ok((!self.text.is_empty()).then_some(self.text.as_str()))
    }
}

impl<R: Read> Read for Decoded<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.consumed == self.text.len() && self.next_piece()?.is_none() {
            return Ok(0);
        }
        let count = into.len().min(self.text.len() - self.consumed);
        into[..count].copy_from_slice(&self.text.as_bytes()[self.consumed..self.consumed + count]);
        self.consumed += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(bytes: &[u8]) -> Option<&'static Encoding> {
        // The pieces are small, so that they divide characters.
        let mut survey = Survey::default();
        for piece in bytes.chunks(3) {
            survey.add(piece);
        }
        survey.verdict(None)
    }

    #[test]
    fn text_is_distinguished_from_binary_data() {
        assert_eq!(verdict(b""), Some(UTF_8));
        assert_eq!(verdict("Grüße, 世界, and a 🦀.".as_bytes()), Some(UTF_8));
        assert_eq!(verdict(&"äöüäöüäöüäö".as_bytes()[..21]), Some(UTF_8), "cut off");
        assert_eq!(verdict(b"Stra\xdfe und Gr\xfc\xdfe an alle"), Some(WINDOWS_1252));
        assert_eq!(verdict(b"\xcf\xf0\xe8\xe2\xe5\xf2, \xec\xe8\xf0"), None, "Cyrillic is not Latin");
        assert_eq!(verdict(&[0, 1, 2, 3]), None);
        assert_eq!(verdict(b"Stra\xdfe\x00\x01"), None);
    }
}
