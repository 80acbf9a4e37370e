//! Types that have no text, told by the first bytes alone, so that a film is not read to its end.

use std::panic;

use super::encoding;
use super::kind::{self, ZIP_SIGNATURES};

/// The names of the first entries of documents that are ZIP archives.
const FIRST_ENTRIES: [&[u8]; 9] = [
    b"[Content_Types].xml",
    b"_rels/",
    b"docProps/",
    b"word/",
    b"xl/",
    b"ppt/",
    b"customXml/",
    b"mimetype",
    b"META-INF/",
];

/// What the file is, if these first bytes of it show a type without text. `None`: only the whole file shows that.
///
/// A ZIP archive may be a document, which only its end shows. `is_too_large`: it will not be read to its end, so its first
/// entry decides.
pub fn without_text(head: &[u8], is_too_large: bool) -> Option<String> {
    if kind::is_zip(head) {
        return (is_too_large && !begins_like_a_document(head)).then(|| "a large ZIP archive".to_owned());
    }
    if kind::is_document(head) || !encoding::is_binary_head(head) {
        return None;
    }
    // This runs in the server's own process. After a panic, the child process has a look at the file.
    panic::catch_unwind(|| infer::get(head).map(kind::name_of)).ok().flatten()
}

/// The name of the first entry follows its header of 30 bytes.
fn begins_like_a_document(head: &[u8]) -> bool {
    head.starts_with(ZIP_SIGNATURES[0])
        && head.get(30..).is_some_and(|name| FIRST_ENTRIES.iter().any(|first| name.starts_with(first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zip(first: &str) -> Vec<u8> {
        [&b"PK\x03\x04"[..], &[0; 26], first.as_bytes()].concat()
    }

    #[test]
    fn only_a_binary_type_that_is_known_is_told_by_its_first_bytes() {
        let noise: Vec<u8> = (0..4_000u32).flat_map(u32::to_le_bytes).collect();
        let picture = [&b"\xff\xd8\xff\xe0\0\x10JFIF\0"[..], &noise].concat();
        assert_eq!(without_text(&picture, false).as_deref(), Some("a file of type JPG (image/jpeg)"));
        let film = [&b"\0\0\0\x18ftypmp42"[..], &noise].concat();
        assert_eq!(without_text(&film, false).as_deref(), Some("a file of type MP4 (video/mp4)"));
        for text in ["BM is how bitmaps begin", "GIF89a is a signature", "", "MZ", "%PDF-1.7"] {
            assert_eq!(without_text(text.as_bytes(), true), None, "{text}");
        }
        for start in
            [&b"%PDF-1.7\n"[..], b"{\\rtf1", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"?", b"x %PDF-1.4"]
        {
            assert_eq!(without_text(&[start, &noise].concat(), true), None, "{start:?}");
        }
        // Text in UTF-16 has a NUL in every character.
        let wide: Vec<u8> = "\u{feff}plain".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(without_text(&wide, false), None);
    }

    #[test]
    fn a_zip_archive_is_told_only_if_it_is_too_large_to_be_read() {
        assert_eq!(without_text(&zip("backup/2026.tar"), false), None);
        assert_eq!(without_text(&zip("backup/2026.tar"), true).as_deref(), Some("a large ZIP archive"));
        for first in ["[Content_Types].xml", "word/document.xml", "mimetypeapplication/epub+zip"] {
            assert_eq!(without_text(&zip(first), true), None, "{first}");
        }
    }
}
