//! The media type of a file by its first bytes, whatever its name and its declared type are.

use infer::MatcherType;

use crate::extract::kind::{after_preamble, is_pdf};

/// As many first bytes as [`of`] looks at.
pub const HEAD_BYTES: usize = 8192;

/// None: the bytes have no known signature. That is true of most text, and of many binary formats.
pub fn of(head: &[u8]) -> Option<&'static str> {
    let head = &head[..head.len().min(HEAD_BYTES)];
    if let Some(found) = of_markup(head) {
        return Some(found);
    }
    if is_pdf(head) {
        return Some("application/pdf");
    }
    if head.starts_with(b"{\\rtf") {
        return Some("application/rtf");
    }
    // Short signatures also occur in texts: a letter about "BM" is not a bitmap.
    if is_plain_text(head) {
        return None;
    }
    // The table has `text/html` too, by rules that are not those of browsers.
    infer::get(head)
        .filter(|kind| kind.matcher_type() != MatcherType::Text)
        .map(|kind| kind.mime_type())
        .filter(|found| *found != "application/octet-stream")
}

/// What a browser takes for a page if it looks at the bytes (WHATWG MIME Sniffing, 7.1), and what it could run.
fn of_markup(head: &[u8]) -> Option<&'static str> {
    let text = decoded(head);
    let start = text.trim_start_matches('\u{feff}').trim_start();
    if start.starts_with("#!") {
        return Some("text/x-shellscript");
    }
    if !start.starts_with('<') {
        return None;
    }
    let after = after_preamble(start);
    if begins_with_tag(after, "<svg") || (begins_with_tag(after, "<!doctype") && is_svg_doctype(after)) {
        return Some("image/svg+xml");
    }
    if begins_with_tag(after, "<?php") || begins_with_tag(after, "<?") && !start.starts_with("<?xml") {
        return Some("text/x-php");
    }
    let is_html = |text: &str| text.starts_with("<!--") || HTML.iter().any(|tag| begins_with_tag(text, tag));
    if is_html(start) || is_html(after) {
        return Some("text/html");
    }
    start.starts_with("<?xml").then_some("text/xml")
}

const HTML: [&str; 18] = [
    "<!doctype html",
    "<html",
    "<head",
    "<script",
    "<iframe",
    "<h1",
    "<div",
    "<font",
    "<table",
    "<a",
    "<style",
    "<title",
    "<b",
    "<body",
    "<br",
    "<p",
    "<meta",
    "<img",
];

fn begins_with_tag(text: &str, tag: &str) -> bool {
    let Some(start) = text.get(..tag.len()) else { return false };
    let next = text[tag.len()..].chars().next();
    start.eq_ignore_ascii_case(tag) && next.is_none_or(|c| c.is_whitespace() || c == '>' || c == '/')
}

fn is_svg_doctype(text: &str) -> bool {
    let name = text.split_whitespace().nth(1).unwrap_or_default();
    name.eq_ignore_ascii_case("svg")
}

/// UTF-16 is decoded if it has its mark, because browsers decode it then.
fn decoded(head: &[u8]) -> std::borrow::Cow<'_, str> {
    match head {
        [0xff, 0xfe, rest @ ..] => encoding_rs::UTF_16LE.decode_without_bom_handling(rest).0,
        [0xfe, 0xff, rest @ ..] => encoding_rs::UTF_16BE.decode_without_bom_handling(rest).0,
        _ => String::from_utf8_lossy(head),
    }
}

/// UTF-8 without control characters. The last character may be cut.
fn is_plain_text(head: &[u8]) -> bool {
    let is_utf8 = std::str::from_utf8(head).map_or_else(|error| error.error_len().is_none(), |_| true);
    is_utf8 && !head.iter().any(|byte| *byte < 0x20 && !b"\t\n\r\x0c\x1b".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_decide() {
        let utf16: Vec<u8> =
            [0xff, 0xfe].into_iter().chain("<script>".encode_utf16().flat_map(u16::to_le_bytes)).collect();
        for (head, found) in [
            (&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], Some("image/png")),
            (b"\xff\xd8\xff\xe0\0\x10JFIF", Some("image/jpeg")),
            (b"GIF89a\x01\0\x01\0\0", Some("image/gif")),
            (b"PK\x03\x04\x14\0\0\0", Some("application/zip")),
            (b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", Some("application/x-executable")),
            (b"%PDF-1.7\n1 0 obj", Some("application/pdf")),
            (b"\r\n \xe2\x82\xac%PDF", None),
            (b"  <!DOCTYPE html><p>", Some("text/html")),
            (b"\xef\xbb\xbf<HTML lang=x>", Some("text/html")),
            (b"<script>alert(1)</script>", Some("text/html")),
            (b"<!-- a --><svg onload=x>", Some("image/svg+xml")),
            (b"<!-- a long comment", Some("text/html")),
            (b"<?xml version='1.0'?><!DOCTYPE svg PUBLIC 'x'><svg>", Some("image/svg+xml")),
            (b"<?xml version='1.0'?><svg xmlns='x'>", Some("image/svg+xml")),
            (b"<?xml version='1.0'?><html>", Some("text/html")),
            (b"<?xml version='1.0'?><gpx>", Some("text/xml")),
            (b"<?php phpinfo();", Some("text/x-php")),
            (b"#!/bin/sh\n", Some("text/x-shellscript")),
            (b"<html>\0\0\x01\x02", Some("text/html")),
            (&utf16, Some("text/html")),
            // Texts, although they start like something else.
            (b"BM is short for bitmap", None),
            (b"ID3 tags are old", None),
            (b"a,b\n1,2\n", None),
            (b"<3 <- a heart", None),
            (b"<abbr>", None),
            (b"{\"a\": \"<html>\"}", None),
            (b"", None),
            (b"\0\x01\x02\x03", None),
        ] {
            assert_eq!(of(head), found, "{:?}", String::from_utf8_lossy(head));
        }
    }
}
