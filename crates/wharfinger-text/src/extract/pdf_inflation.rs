//! Counts the inflated bytes of a PDF before it is interpreted. The streams are searched in the raw bytes, because the
//! tables of an untrusted file can omit streams.

use std::io::{BufRead, BufReader, Read};

use flate2::bufread::ZlibDecoder;

use super::ExtractError;

/// The maximum of nested compressed streams. PDF filters can be chained.
const LAYERS_MAX: usize = 4;

/// The range before a stream's data that is searched for its dictionary.
const DICTIONARY_BYTES: usize = 1024;

/// Images are not inflated for text, and encrypted streams cannot be recognized. The memory limit covers both.
pub(super) fn check(pdf: &[u8], inflated_bytes_max: u64) -> Result<(), ExtractError> {
    let mut left = inflated_bytes_max;
    let mut from = 0;
    while let Some(start) = next_stream(pdf, from) {
        let data = &pdf[start..];
        from = start;
        if is_zlib(data) && !is_image(pdf, start) {
            let mut decoder = ZlibDecoder::new(data);
            if !is_within(&mut decoder, &mut left, LAYERS_MAX) {
                return Err(ExtractError::TooLarge(format!(
                    "it inflates to more than {inflated_bytes_max} bytes"
                )));
            }
            from += usize::try_from(decoder.total_in()).unwrap_or(0).min(data.len());
        }
    }
    Ok(())
}

/// Subtracts the inflated bytes of the source from `left`, also through nested compression. A damaged stream counts up
/// to the damage. The interpreter reports the damage later.
fn is_within(source: &mut dyn Read, left: &mut u64, layers: usize) -> bool {
    let mut buffered = BufReader::with_capacity(32 * 1024, source);
    if layers > 0 && buffered.fill_buf().is_ok_and(is_zlib) {
        return is_within(&mut ZlibDecoder::new(buffered), left, layers - 1);
    }
    loop {
        let count = match buffered.fill_buf() {
            Ok(bytes) if !bytes.is_empty() => bytes.len(),
            _ => return true,
        };
        buffered.consume(count);
        match left.checked_sub(count as u64) {
            Some(rest) => *left = rest,
            None => return false,
        }
    }
}

/// The start of the data of the next stream.
fn next_stream(pdf: &[u8], from: usize) -> Option<usize> {
    const WORD: &[u8] = b"stream";
    let mut at = from;
    loop {
        at += find(&pdf[at..], WORD)?;
        let after = at + WORD.len();
        let is_end = pdf[..at].ends_with(b"end");
        let data = match pdf.get(after..)? {
            [b'\r', b'\n', ..] => after + 2,
            [b'\n' | b'\r', ..] => after + 1,
            _ => 0,
        };
        if data > 0 && !is_end {
            return Some(data);
        }
        at = after;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let first = what[0];
    let mut from = 0;
    loop {
        let at = from + bytes.get(from..)?.iter().position(|byte| *byte == first)?;
        if bytes[at..].starts_with(what) {
            return Some(at);
        }
        from = at + 1;
    }
}

fn is_zlib(data: &[u8]) -> bool {
    matches!(data, [first, second, ..]
        if first & 0x0f == 8 && first >> 4 <= 7 && (u16::from(*first) << 8 | u16::from(*second)) % 31 == 0)
}

fn is_image(pdf: &[u8], data: usize) -> bool {
    let dictionary = &pdf[data.saturating_sub(DICTIONARY_BYTES)..data];
    let own = dictionary.windows(4).rposition(|window| window == b" obj").unwrap_or(0);
    find(&dictionary[own..], b"/Image").is_some()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    fn compressed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).expect("in memory");
        encoder.finish().expect("in memory")
    }

    fn object(dictionary: &str, data: &[u8]) -> Vec<u8> {
        let mut object = format!("1 0 obj <<{dictionary}>> stream\r\n").into_bytes();
        object.extend_from_slice(data);
        object.extend_from_slice(b"\nendstream endobj\n");
        object
    }

    #[test]
    fn all_streams_and_nested_streams_share_one_limit() {
        let text = vec![b' '; 100_000];
        let one = object("/Filter /FlateDecode", &compressed(&text));
        assert!(check(&one, 100_000).is_ok());
        assert!(matches!(check(&one, 99_999), Err(ExtractError::TooLarge(_))));
        let two = [one.clone(), one].concat();
        assert!(matches!(check(&two, 150_000), Err(ExtractError::TooLarge(_))));
        let nested = object("", &compressed(&compressed(&text)));
        assert!(matches!(check(&nested, 99_999), Err(ExtractError::TooLarge(_))));
    }

    #[test]
    fn images_and_damaged_streams_are_not_counted() {
        let text = vec![b' '; 100_000];
        assert!(check(&object("/Subtype /Image", &compressed(&text)), 10).is_ok());
        assert!(check(&object("", &compressed(&text)[..8]), 10).is_ok());
        assert!(check(b"stream\nstream\nendstream\n", 10).is_ok());
        assert!(check(b"stream", 10).is_ok());
    }
}
