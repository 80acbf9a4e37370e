//! Every kind of document, as real programs write them, comes out as text with its structure.

use harness::documents::SAMPLES;

use super::{bytes, document, limits};

#[test]
fn every_sample_is_read() {
    for sample in SAMPLES {
        let (extracted, text) =
            document(sample.file).unwrap_or_else(|error| panic!("{}: {error}", sample.file));
        assert_eq!(extracted.kind, sample.kind, "{}", sample.file);
        assert_eq!(extracted.pages, sample.pages, "{}", sample.file);
        for piece in sample.contains {
            assert!(text.contains(piece), "{} lacks {piece:?}:\n{text}", sample.file);
        }
        assert!(!text.contains('\0'), "{}", sample.file);
        assert!(!text.contains("\n\n\n"), "{} has gaps:\n{text}", sample.file);
    }
}

#[test]
fn names_do_not_decide() {
    let folder = harness::documents::folder();
    for sample in SAMPLES.iter().filter(|sample| !["text", "markdown", "csv"].contains(&sample.kind)) {
        let content = std::fs::read(folder.join(sample.file)).expect("the document");
        let (extracted, _) = bytes("holiday.jpg", &content, &limits()).expect("read all the same");
        assert_eq!(extracted.kind, sample.kind, "{}", sample.file);
    }
}

#[test]
fn what_is_not_text_of_a_page_is_left_out() {
    let (_, text) = document("hand.html").expect("read");
    for hidden in ["hidden", "color", "remark", "<", "&"] {
        let shown = text.replace("5 < 6", "").replace("Landing & leaving", "");
        assert!(!shown.contains(hidden), "{hidden:?} is in:\n{text}");
    }
}

#[test]
fn a_page_comes_out_in_this_form() {
    let (_, text) = document("hand.html").expect("read");
    let expected = "Ledger\n\n\
                    # Landing & leaving\n\n\
                    Every crate that lands is written down before it is moved.\n\n\
                    5 < 6 \u{a0}€\n\n\
                    North\tAmalia\n\n  kept\n  as is";
    assert_eq!(text, expected);
}

#[test]
fn a_text_may_speak_of_signatures() {
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
fn an_empty_file_is_text_with_nothing_in_it() {
    let (extracted, text) = bytes("nothing.pdf", b"", &limits()).expect("read");
    assert_eq!((extracted.kind.as_str(), extracted.bytes, text.as_str()), ("text", 0, ""));
}

#[test]
fn plain_text_comes_out_as_it_went_in() {
    let text = "One\r\n\r\n  two\tthree \u{a0}\u{feff}é\n\n\n\nend";
    assert_eq!(bytes("a.txt", text.as_bytes(), &limits()).expect("read").1, text);
    // Over the border of pieces, where characters are cut in two.
    let long = "äöü€🦀".repeat(50_000);
    assert_eq!(bytes("a.txt", long.as_bytes(), &limits()).expect("read").1, long);
}

#[test]
fn a_byte_order_mark_and_nul_are_not_text() {
    assert_eq!(bytes("a.txt", b"\xef\xbb\xbfhello", &limits()).expect("read").1, "hello");
    let mut content = vec![b'x'; 5000];
    content[2500] = 0;
    assert_eq!(bytes("a.txt", &content, &limits()).expect("read").1, "x".repeat(4999));
}
