//! Bytes into characters, in pieces: which encoding a file is in, if it is text at all, is settled
//! by reading all of it once, in constant memory.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use encoding_rs::{CoderResult, Decoder, Encoding, UTF_8, WINDOWS_1252};

use super::ExtractError;

const PIECE_BYTES: usize = 64 * 1024;

/// The encoding of the file, or none where it is not text. What a page declares is believed unless
/// a byte order mark knows better.
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
        survey.look_at(&piece[..read]);
        if survey.is_binary() {
            return Ok(None);
        }
    }
    Ok(survey.verdict(declared))
}

/// Two bytes are soon taken for a byte order mark; that what follows are characters is not so soon said.
fn is_wide_text(piece: &[u8], encoding: &'static Encoding) -> bool {
    let mut text = String::with_capacity(piece.len() * 3 + 16);
    let (_, _, had_faults) = encoding.new_decoder().decode_to_string(piece, &mut text, false);
    !had_faults && !text.chars().any(|c| u8::try_from(c).is_ok_and(is_control))
}

/// Whether the first bytes of a file show that it is no text, whatever follows: it has no byte order mark, and every
/// sixteenth of them is a control character at least.
pub(super) fn is_binary_head(head: &[u8]) -> bool {
    let mut survey = Survey::default();
    survey.look_at(head);
    Encoding::for_bom(head).is_none() && survey.controls > 8 && survey.controls * 16 > survey.bytes
}

/// What was seen of bytes that may be text.
#[derive(Default)]
struct Survey {
    bytes: u64,
    controls: u64,
    above_ascii: u64,
    /// Bytes that Windows-1252 has no character for.
    undefined: u64,
    /// Characters of more than one byte, and faults, if the bytes are taken for UTF-8.
    characters: u64,
    faults: u64,
    /// A character cut in two by the end of a piece.
    begun: Vec<u8>,
}

impl Survey {
    fn look_at(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        if piece.is_ascii() && self.begun.is_empty() {
            self.controls += piece.iter().filter(|byte| is_control(**byte)).count() as u64;
            return;
        }
        for byte in piece {
            self.controls += u64::from(is_control(*byte));
            self.above_ascii += u64::from(*byte >= 0x80);
            self.undefined += u64::from(matches!(byte, 0x81 | 0x8d | 0x8f | 0x90 | 0x9d));
        }
        let mut joined = std::mem::take(&mut self.begun);
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
                            self.begun = after.to_vec();
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Text may hold a stray control character or two, not one in a hundred, and never a NUL so early
    /// and often as binary formats do.
    fn is_binary(&self) -> bool {
        self.controls > 8 && self.controls * 200 > self.bytes
    }

    fn verdict(mut self, declared: Option<&'static Encoding>) -> Option<&'static Encoding> {
        if !self.begun.is_empty() {
            self.faults += 1;
        }
        if self.controls > 0 && (self.controls * 200 > self.bytes) {
            return None;
        }
        if declared.is_some_and(|declared| declared != UTF_8) {
            return declared;
        }
        // Text in UTF-8 that was cut off or patched is still that; text in another encoding hardly
        // ever looks like UTF-8 by chance.
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
    // Backspace and escape are in what terminals recorded.
    matches!(byte, 0..=0x07 | 0x0e..=0x1a | 0x1c..=0x1f | 0x7f)
}

/// The beginning of a text, for a look at its kind.
pub(super) fn head<'a>(bytes: &'a [u8], encoding: &'static Encoding) -> Cow<'a, str> {
    encoding.decode(bytes).0
}

/// Hands the text of the file on in pieces; what is no character becomes U+FFFD.
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

/// A reader of another encoding as a reader of UTF-8.
pub(super) struct Decoded<R> {
    source: R,
    decoder: Decoder,
    raw: Vec<u8>,
    text: String,
    /// How much of `text` was read as bytes.
    taken: usize,
    is_over: bool,
}

impl<R: Read> Decoded<R> {
    pub(super) fn new(source: R, encoding: &'static Encoding) -> Self {
        Self {
            source,
            decoder: encoding.new_decoder(),
            raw: vec![0; PIECE_BYTES],
            text: String::with_capacity(PIECE_BYTES * 3 + 16),
            taken: 0,
            is_over: false,
        }
    }

    fn next_piece(&mut self) -> std::io::Result<Option<&str>> {
        self.text.clear();
        self.taken = 0;
        while !self.is_over && self.text.is_empty() {
            let read = self.source.read(&mut self.raw)?;
            self.is_over = read == 0;
            // Room for three bytes a byte, which is the most that any encoding asks for.
            let (result, _, _) =
                self.decoder.decode_to_string(&self.raw[..read], &mut self.text, self.is_over);
            assert_eq!(result, CoderResult::InputEmpty, "the text has room for all of the piece");
        }
        Ok((!self.text.is_empty()).then_some(self.text.as_str()))
    }
}

impl<R: Read> Read for Decoded<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.taken == self.text.len() && self.next_piece()?.is_none() {
            return Ok(0);
        }
        let count = into.len().min(self.text.len() - self.taken);
        into[..count].copy_from_slice(&self.text.as_bytes()[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(bytes: &[u8]) -> Option<&'static Encoding> {
        // In small pieces, so that characters are cut in two.
        let mut survey = Survey::default();
        for piece in bytes.chunks(3) {
            survey.look_at(piece);
        }
        survey.verdict(None)
    }

    #[test]
    fn text_is_told_from_what_is_not() {
        assert_eq!(verdict(b""), Some(UTF_8));
        assert_eq!(verdict("Grüße, 世界, and a 🦀.".as_bytes()), Some(UTF_8));
        assert_eq!(verdict(&"äöüäöüäöüäö".as_bytes()[..21]), Some(UTF_8), "cut off");
        assert_eq!(verdict(b"Stra\xdfe und Gr\xfc\xdfe an alle"), Some(WINDOWS_1252));
        assert_eq!(verdict(b"\xcf\xf0\xe8\xe2\xe5\xf2, \xec\xe8\xf0"), None, "Cyrillic is not Latin");
        assert_eq!(verdict(&[0, 1, 2, 3]), None);
        assert_eq!(verdict(b"Stra\xdfe\x00\x01"), None);
    }
}
