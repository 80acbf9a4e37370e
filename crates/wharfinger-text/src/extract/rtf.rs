//! RTF: control words and groups. Only destinations with text are read. The depth of groups has a limit, because each
//! open group uses memory.

use std::fs::File;
use std::io::{BufRead, BufReader};

use encoding_rs::{Encoding, WINDOWS_1252};

use super::ExtractError;
use super::sink::{Gap, TextSink};

const DEPTH_MAX: usize = 4096;

pub(super) fn extract(file: &mut File, sink: &mut TextSink<'_>) -> Result<(), ExtractError> {
    let mut reader = RtfReader {
        source: BufReader::new(file),
        sink,
        group: Group { is_skipped: false, fallback: 1 },
        outer: Vec::new(),
        encoding: WINDOWS_1252,
        bytes: Vec::new(),
        high: None,
        to_skip: 0,
        is_starred: false,
        in_cell: false,
    };
    reader.run()
}

#[derive(Clone, Copy)]
struct Group {
    is_skipped: bool,
    /// The number of fallback characters after `\u`, for readers that do not support it.
    fallback: usize,
}

struct RtfReader<'s, 'w, 'f> {
    source: BufReader<&'f mut File>,
    sink: &'s mut TextSink<'w>,
    group: Group,
    outer: Vec<Group>,
    encoding: &'static Encoding,
    /// Bytes in the document's code page that were not decoded yet. Some characters have two bytes.
    bytes: Vec<u8>,
    high: Option<u16>,
    to_skip: usize,
    is_starred: bool,
    in_cell: bool,
}

impl RtfReader<'_, '_, '_> {
    fn run(&mut self) -> Result<(), ExtractError> {
        while let Some(byte) = self.next()? {
            match byte {
                b'{' => {
                    self.flush()?;
                    if self.outer.len() >= DEPTH_MAX {
                        return Err(ExtractError::TooLarge(format!(
                            "groups are nested more than {DEPTH_MAX} levels deep"
                        )));
                    }
                    self.outer.push(self.group);
                    self.is_starred = false;
                }
                b'}' => {
                    self.flush()?;
                    match self.outer.pop() {
                        Some(group) => self.group = group,
                        None => {
                            return Err(ExtractError::Corrupted(
                                "a closing brace has no opening brace".to_owned(),
                            ));
                        }
                    }
                    if self.outer.is_empty() {
                        return Ok(());
                    }
                }
                b'\\' => self.control()?,
                b'\r' | b'\n' => {}
                byte => self.character(byte)?,
            }
        }
        Err(ExtractError::Corrupted("the document ends too early".to_owned()))
    }

    fn next(&mut self) -> Result<Option<u8>, ExtractError> {
        let byte = self.peek()?;
        self.source.consume(usize::from(byte.is_some()));
        Ok(byte)
    }

    fn peek(&mut self) -> Result<Option<u8>, ExtractError> {
        let buffer = self.source.fill_buf().map_err(|error| ExtractError::local(&error))?;
        Ok(buffer.first().copied())
    }

    fn control(&mut self) -> Result<(), ExtractError> {
        const WORD_BYTES_MAX: usize = 32;
        let Some(first) = self.next()? else { return Ok(()) };
        if !first.is_ascii_alphabetic() {
            return self.symbol(first);
        }
        let mut word = vec![first];
        while let Some(byte) = self.peek()?
            && byte.is_ascii_alphabetic()
            && word.len() < WORD_BYTES_MAX
        {
            word.push(byte);
            self.source.consume(1);
        }
        let mut number = String::new();
        while let Some(byte) = self.peek()?
            && (byte.is_ascii_digit() || (byte == b'-' && number.is_empty()))
            && number.len() < 11
        {
            number.push(char::from(byte));
            self.source.consume(1);
        }
        if self.peek()? == Some(b' ') {
            self.source.consume(1);
        }
        self.word(&word, number.parse::<i64>().ok())
    }

    fn symbol(&mut self, symbol: u8) -> Result<(), ExtractError> {
        match symbol {
            b'\'' => {
                let digits = [self.next()?.unwrap_or(b'0'), self.next()?.unwrap_or(b'0')];
                let code =
                    std::str::from_utf8(&digits).ok().and_then(|text| u8::from_str_radix(text, 16).ok());
                self.character(code.unwrap_or(b'?'))
            }
            b'*' => {
                self.is_starred = true;
                Ok(())
            }
            b'~' => self.text("\u{a0}"),
            b'_' => self.text("-"),
            b'{' | b'}' | b'\\' => self.character(symbol),
            b'\r' | b'\n' => self.gap(Gap::Paragraph),
            _ => Ok(()),
        }
    }

    fn word(&mut self, word: &[u8], number: Option<i64>) -> Result<(), ExtractError> {
        let is_starred = std::mem::take(&mut self.is_starred);
        match word {
            b"bin" => return self.skip_bytes(number.unwrap_or(0)),
            b"fonttbl" | b"colortbl" | b"stylesheet" | b"info" | b"pict" | b"object" | b"header"
            | b"headerl" | b"headerr" | b"headerf" | b"footer" | b"footerl" | b"footerr" | b"footerf"
            | b"themedata" | b"datastore" | b"listtable" | b"generator" | b"fldinst" | b"xe" | b"tc" => {
                self.group.is_skipped = true;
            }
            b"footnote" => self.gap(Gap::Blank)?,
            // Readers can skip a starred destination that they do not know.
            _ if is_starred => self.group.is_skipped = true,
            b"par" | b"sect" => self.gap(Gap::Paragraph)?,
            b"outlinelevel" => {
                self.flush()?;
                // Counted from 0; 9 is body text.
                if let Some(level @ 0..9) = number
                    && !self.group.is_skipped
                {
                    self.sink.heading(level as usize + 1);
                }
            }
            b"page" => self.gap(Gap::Page)?,
            b"line" => self.gap(Gap::Line)?,
            b"tab" => self.gap(Gap::Cell)?,
            b"intbl" => self.set_in_cell(true)?,
            b"cell" => self.set_in_cell(false)?,
            b"row" => {
                self.set_in_cell(false)?;
                self.gap(Gap::Line)?;
            }
            b"emdash" => self.text("—")?,
            b"endash" => self.text("–")?,
            b"lquote" => self.text("‘")?,
            b"rquote" => self.text("’")?,
            b"ldblquote" => self.text("“")?,
            b"rdblquote" => self.text("”")?,
            b"bullet" => self.text("•")?,
            b"uc" => self.group.fallback = usize::try_from(number.unwrap_or(1)).unwrap_or(1),
            b"u" => self.unit(number.unwrap_or(0))?,
            b"ansicpg" => {
                let label = format!("windows-{}", number.unwrap_or(1252));
                let label = match number {
                    Some(932) => "shift_jis",
                    Some(936) => "gbk",
                    Some(949) => "euc-kr",
                    Some(950) => "big5",
                    Some(65001) => "utf-8",
                    _ => &label,
                };
                self.encoding = Encoding::for_label(label.as_bytes()).unwrap_or(WINDOWS_1252);
            }
            b"mac" => self.encoding = encoding_rs::MACINTOSH,
            _ => {}
        }
        Ok(())
    }

    /// Skips binary data, which can contain braces.
    fn skip_bytes(&mut self, count: i64) -> Result<(), ExtractError> {
        for _ in 0..count {
            if self.next()?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn character(&mut self, byte: u8) -> Result<(), ExtractError> {
        self.is_starred = false;
        if self.to_skip > 0 {
            self.to_skip -= 1;
        } else if !self.group.is_skipped {
            self.bytes.push(byte);
            if self.bytes.len() >= 4096 && byte.is_ascii() {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// A UTF-16 unit, written as a signed number.
    fn unit(&mut self, number: i64) -> Result<(), ExtractError> {
        let unit = (number & 0xffff) as u16;
        let joined = self.high.take().and_then(|high| char::decode_utf16([high, unit]).next()?.ok());
        match joined.or_else(|| char::from_u32(u32::from(unit))) {
            Some(character) => self.text(character.encode_utf8(&mut [0; 4]))?,
            None if unit < 0xdc00 => self.high = Some(unit),
            None => self.text("\u{fffd}")?,
        }
        self.to_skip = self.group.fallback;
        Ok(())
    }

    fn gap(&mut self, gap: Gap) -> Result<(), ExtractError> {
        self.flush()?;
        if !self.group.is_skipped {
            self.sink.gap(gap);
        }
        Ok(())
    }

    /// `\intbl` starts a cell, and `\cell` ends it.
    fn set_in_cell(&mut self, in_cell: bool) -> Result<(), ExtractError> {
        self.flush()?;
        match (self.in_cell, in_cell) {
            (false, true) => self.sink.open_cell(),
            (true, false) => self.sink.close_cell(),
            _ => {}
        }
        self.in_cell = in_cell;
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<(), ExtractError> {
        self.flush()?;
        if self.group.is_skipped { Ok(()) } else { self.sink.words(text) }
    }

    fn flush(&mut self) -> Result<(), ExtractError> {
        self.to_skip = 0;
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.is_empty() || self.group.is_skipped {
            return Ok(());
        }
        let (text, _) = self.encoding.decode_without_bom_handling(&bytes);
        self.sink.words(&text)
    }
}
