//! Documents of every kind, written by real programs, are extracted as text with their structure.

use harness::documents::SAMPLES;

use super::{bytes, document, limits};

#[test]
fn every_sample_is_extracted() {
    for sample in SAMPLES {
        let (extracted, text) =
            document(sample.file).unwrap_or_else(|error| panic!("{}: {error}", sample.file));
        assert_eq!(extracted.kind, sample.kind, "{}", sample.file);
        assert_eq!(extracted.pages, sample.pages, "{}", sample.file);
        for piece in sample.contains {
            assert!(text.contains(piece), "{} does not contain {piece:?}:\n{text}", sample.file);
        }
        assert!(!text.contains('\0'), "{}", sample.file);
        assert!(!text.contains("\n\n\n"), "{} has too many blank lines:\n{text}", sample.file);
    }
}

#[test]
fn the_file_name_does_not_decide_the_kind() {
    let folder = harness::documents::folder();
    for sample in SAMPLES.iter().filter(|sample| !["text", "markdown", "csv"].contains(&sample.kind)) {
        let content = std::fs::read(folder.join(sample.file)).expect("the document");
        let (extracted, _) = bytes("holiday.jpg", &content, &limits()).expect("read");
        assert_eq!(extracted.kind, sample.kind, "{}", sample.file);
    }
}

#[test]
fn scripts_styles_and_comments_of_a_page_are_left_out() {
    let (_, text) = document("hand.html").expect("read");
    for hidden in ["hidden", "color", "remark", "<", "&"] {
        let shown = text.replace("5 < 6", "").replace("Landing & leaving", "");
        assert!(!shown.contains(hidden), "the text contains {hidden:?}:\n{text}");
    }
}

#[test]
fn a_page_is_extracted_with_its_structure() {
    let (_, text) = document("hand.html").expect("read");
    let expected = "Ledger\n\n\
                    # Landing & leaving\n\n\
                    Every crate that lands is written down before it is moved.\n\n\
                    5 < 6 \u{a0}€\n\n\
                    North\tAmalia\n\n  kept\n  as is";
    assert_eq!(text, expected);
}

#[test]
fn a_text_that_mentions_signatures_is_still_text() {
    let (extracted, _) =
        bytes("a.txt", b"A PDF begins with\n%PDF-1.7\nand a ZIP with PK.", &limits()).expect("read");
    assert_eq!(extracted.kind, "text");
    let mut content = b"\x80\x81 sent by mail\r\n".to_vec();
    content.extend(std::fs::read(harness::documents::folder().join("reportlab.pdf")).expect("the document"));
    let (extracted, text) = bytes("a.txt", &content, &limits()).expect("read");
    assert_eq!(extracted.kind, "pdf");
    assert!(text.contains("Every crate that lands"), "{text}");
}

#[test]
fn an_empty_file_is_an_empty_text() {
    let (extracted, text) = bytes("nothing.pdf", b"", &limits()).expect("read");
    assert_eq!((extracted.kind.as_str(), extracted.bytes, text.as_str()), ("text", 0, ""));
}

#[test]
fn plain_text_is_unchanged() {
    let text = "One\r\n\r\n  two\tthree \u{a0}\u{feff}é\n\n\n\nend";
    assert_eq!(bytes("a.txt", text.as_bytes(), &limits()).expect("read").1, text);
    // Longer than one piece, so that a piece ends inside a character.
    let long = "äöü€🦀".repeat(50_000);
    assert_eq!(bytes("a.txt", long.as_bytes(), &limits()).expect("read").1, long);
}

#[test]
fn a_byte_order_mark_and_nul_are_removed() {
    assert_eq!(bytes("a.txt", b"\xef\xbb\xbfhello", &limits()).expect("read").1, "hello");
    let mut content = vec![b'x'; 5000];
    content[2500] = 0;
    assert_eq!(bytes("a.txt", &content, &limits()).expect("read").1, "x".repeat(4999));
}
