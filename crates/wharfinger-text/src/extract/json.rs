//! JSON as text. The structure stays. Escaped characters are decoded, because a search for `ü` must find `\u00fc`.

use std::fs::File;

use encoding_rs::Encoding;

use super::ExtractError;
use super::encoding;
use super::sink::TextSink;

pub(super) fn extract(
    file: &mut File,
    encoding: &'static Encoding,
    sink: &mut TextSink<'_>,
) -> Result<(), ExtractError> {
    let mut unescape = Unescape::default();
    let mut text = String::new();
    encoding::decode(file, encoding, &mut |piece| {
        text.clear();
        unescape.push(piece, &mut text);
        sink.verbatim(&text)
    })?;
    text.clear();
    unescape.finish(&mut text);
    sink.verbatim(&text)
}

/// The state at the end of a piece, which can be inside an escape sequence.
#[derive(Default)]
struct Unescape {
    /// The characters after the backslash of an incomplete escape sequence.
    partial: Option<String>,
    /// The high surrogate of an incomplete pair.
    high: Option<u16>,
}

impl Unescape {
    fn push(&mut self, piece: &str, out: &mut String) {
        let mut rest = piece;
        while !rest.is_empty() {
            if self.partial.is_none() {
                let Some(at) = rest.find('\\') else {
                    self.plain(rest, out);
                    return;
                };
                self.plain(&rest[..at], out);
                self.partial = Some(String::new());
                rest = &rest[at + 1..];
                continue;
            }
            let Some(c) = rest.chars().next() else { return };
            rest = &rest[c.len_utf8()..];
            self.escaped(c, out);
        }
    }

    fn plain(&mut self, text: &str, out: &mut String) {
        if !text.is_empty() {
            self.drop_high(out);
            out.push_str(text);
        }
    }

    fn escaped(&mut self, c: char, out: &mut String) {
        let partial = self.partial.get_or_insert_default();
        if partial.is_empty() && c != 'u' {
            let character = match c {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' | 'f' => ' ',
                other => other,
            };
            self.partial = None;
            self.drop_high(out);
            out.push(character);
            return;
        }
        partial.push(c);
        const LENGTH: usize = "u0000".len();
        if partial.chars().count() < LENGTH {
            return;
        }
        let code = partial.get(1..).and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let text = std::mem::take(partial);
        self.partial = None;
        match code {
            Some(code) => self.unit(code, out),
            None => {
                self.drop_high(out);
                out.push('\\');
                out.push_str(&text);
            }
        }
    }

    fn unit(&mut self, unit: u16, out: &mut String) {
        if let Some(high) = self.high.take() {
            match char::decode_utf16([high, unit]).next() {
                Some(Ok(character)) => return out.push(character),
                _ => out.push(char::REPLACEMENT_CHARACTER),
            }
        }
        match char::from_u32(u32::from(unit)) {
            Some(character) => out.push(character),
            None if unit < 0xdc00 => self.high = Some(unit),
            None => out.push(char::REPLACEMENT_CHARACTER),
        }
    }

    fn drop_high(&mut self, out: &mut String) {
        if self.high.take().is_some() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn finish(&mut self, out: &mut String) {
        self.drop_high(out);
        if let Some(partial) = self.partial.take() {
            out.push('\\');
            out.push_str(&partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_across_pieces() {
        let json = r#"{"a": "Gr\u00fc\u00dfe \ud83e\udd80 \"x\" \\ \uzzzz \ud83e."}"#;
        let expected = "{\"a\": \"Grüße 🦀 \"x\" \\ \\uzzzz \u{fffd}.\"}";
        for size in 1..json.len() {
            let (mut unescape, mut out) = (Unescape::default(), String::new());
            for piece in json.as_bytes().chunks(size) {
                unescape.push(std::str::from_utf8(piece).expect("ASCII"), &mut out);
            }
            unescape.finish(&mut out);
            assert_eq!(out, expected, "pieces of {size}");
        }
    }
}
