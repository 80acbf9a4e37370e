//! Every limit stops the extraction, and the error names the limit.

use std::io::{self, Write};

use wharfinger_text::{ExtractError, ExtractLimits};

use super::{bytes, limits, read};

fn too_large(name: &str, limits: &ExtractLimits) -> String {
    let outcome = read(&harness::documents::folder().join(name), limits);
    match outcome {
        Err(ExtractError::TooLarge(reason)) => reason,
        other => panic!("{name}: {:?}", other.map(|(extracted, _)| extracted)),
    }
}

#[test]
fn inflation_stops_at_its_limit() {
    for name in ["bomb.docx", "stream-bomb.pdf", "nested-bomb.pdf"] {
        let reason = too_large(name, &limits());
        assert!(reason.contains(&limits().inflated_bytes_max.to_string()), "{name}: {reason}");
    }
}

#[test]
fn sizes_in_headers_are_not_trusted() {
    let outcome = read(&harness::documents::folder().join("lying-bomb.docx"), &limits());
    assert!(
        matches!(outcome, Err(ExtractError::TooLarge(_) | ExtractError::Corrupted(_))),
        "{:?}",
        outcome.map(|o| o.0)
    );
}

#[test]
fn all_parts_of_a_document_share_one_inflation_limit() {
    let path = harness::documents::folder().join("report.docx");
    let mut archive =
        zip::ZipArchive::new(std::fs::File::open(path).expect("the document")).expect("an archive");
    let sizes = (0..archive.len()).map(|index| archive.by_index(index).expect("a part").size());
    let largest = sizes.max().expect("parts");
    too_large("report.docx", &ExtractLimits { inflated_bytes_max: largest + 1, ..limits() });
}

#[test]
fn pages_slides_sheets_and_chapters_have_a_limit() {
    assert!(too_large("page-bomb.pdf", &limits()).contains("1000 pages"));
    let one = ExtractLimits { pages_max: 1, ..limits() };
    for name in ["typst.pdf", "weather.pptx", "workbook.xlsx", "book.epub", "slides.odp"] {
        assert!(too_large(name, &one).contains("1 pages"), "{name}");
    }
}

#[test]
fn the_text_limit_applies_to_every_kind() {
    for sample in harness::documents::SAMPLES.iter().filter(|sample| !sample.contains.is_empty()) {
        let tight = ExtractLimits { text_bytes_max: 20, ..limits() };
        assert!(too_large(sample.file, &tight).contains("20 bytes of text"), "{}", sample.file);
    }
}

#[test]
fn depth_and_entries_have_limits() {
    assert!(too_large("deep.docx", &limits()).contains("deep"));
    assert!(too_large("many.zip", &limits()).contains("entries"));
    let deep = [b"{\\rtf1 ".to_vec(), b"{".repeat(100_000)].concat();
    let outcome = bytes("deep.rtf", &deep, &limits());
    assert!(matches!(outcome, Err(ExtractError::TooLarge(_))), "{outcome:?}");
    // The depth of HTML has no limit, because no tree is built.
    let deep = ["<html>", &"<div>".repeat(1_000_000), "bottom"].concat();
    assert_eq!(bytes("deep.html", deep.as_bytes(), &limits()).expect("read").1, "bottom");
}

#[test]
fn a_pdf_must_fit_into_the_memory_limit() {
    let tight = ExtractLimits { memory_bytes_max: 1000, ..limits() };
    assert!(too_large("typst.pdf", &tight).contains("memory"));
}

#[test]
fn a_failed_write_is_retryable() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::other("no space left"))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut file = std::fs::File::open(harness::documents::folder().join("plain.txt")).expect("the document");
    let error = wharfinger_text::extract(&mut file, "plain.txt", &limits(), &mut Full).expect_err("no space");
    assert_eq!(error, ExtractError::Unavailable("no space left".to_owned()));
    assert!(!error.is_permanent());
}

/// The spine of this small book names one chapter 900 times.
#[test]
fn a_chapter_is_read_once_even_if_named_often() {
    let words = "ahoy ".repeat(100_000);
    let chapter = format!("<html xmlns=\"http://www.w3.org/1999/xhtml\"><body><p>{words}</p></body></html>");
    let spine = "<itemref idref=\"c\"/>".repeat(900);
    let package = format!(
        "<package xmlns=\"http://www.idpf.org/2007/opf\"><manifest><item id=\"c\" href=\"c.xhtml\" \
         media-type=\"application/xhtml+xml\"/></manifest><spine>{spine}</spine></package>"
    );
    let container = "<container xmlns=\"urn:oasis:names:tc:opendocument:xmlns:container\"><rootfiles><rootfile \
                     full-path=\"p.opf\" media-type=\"application/oebps-package+xml\"/></rootfiles></container>";
    let mut archive = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    let options = |method| zip::write::SimpleFileOptions::default().compression_method(method);
    for (name, text, method) in [
        ("mimetype", "application/epub+zip", zip::CompressionMethod::Stored),
        ("META-INF/container.xml", container, zip::CompressionMethod::Deflated),
        ("p.opf", package.as_str(), zip::CompressionMethod::Deflated),
        ("c.xhtml", chapter.as_str(), zip::CompressionMethod::Deflated),
    ] {
        archive.start_file(name, options(method)).expect("started");
        archive.write_all(text.as_bytes()).expect("written");
    }
    let book = archive.finish().expect("finished").into_inner();
    assert!(book.len() < 4_000, "{}", book.len());
    let (extracted, text) = bytes("b.epub", &book, &limits()).expect("read");
    assert_eq!((extracted.pages, extracted.cut), (1, false));
    assert_eq!(text.matches("ahoy").count(), 100_000);
    let tight = ExtractLimits { truncate_at_bytes: 10_000, ..limits() };
    let (extracted, text) = bytes("b.epub", &book, &tight).expect("read");
    assert!(extracted.cut && extracted.kind == "epub" && text.len() == 10_000, "{extracted:?}");
}
