//! Damaged, encrypted and harmful files give the matching error.

use wharfinger_text::ExtractError;

use super::{bytes, document, limits};

fn error(name: &str) -> ExtractError {
    match document(name) {
        Err(error) => error,
        Ok((extracted, text)) => {
            panic!("{name} was read as {extracted:?}:\n{}", &text[..text.len().min(500)])
        }
    }
}

#[test]
fn a_damaged_file_is_corrupted() {
    for name in ["corrupted.pdf", "truncated.docx", "unclosed.docx", "entities.docx"] {
        let error = error(name);
        assert!(matches!(error, ExtractError::Corrupted(_)), "{name}: {error:?}");
    }
    let error = bytes("x.rtf", b"{\\rtf1 {never closed", &limits()).expect_err("cut off");
    assert!(matches!(error, ExtractError::Corrupted(_)), "{error:?}");
    let error = bytes("x.pdf", b"%PDF-1.7", &limits()).expect_err("an incomplete file");
    assert!(matches!(error, ExtractError::Corrupted(_)), "{error:?}");
}

#[test]
fn a_file_with_a_password_is_encrypted() {
    for name in [
        "encrypted.pdf",
        "encrypted.docx",
        "encrypted.odt",
        "encrypted.epub",
        "encrypted.zip",
        "encrypted-parts.docx",
    ] {
        let error = error(name);
        assert!(matches!(error, ExtractError::Encrypted(_)), "{name}: {error:?}");
    }
}

#[test]
fn the_error_names_the_type_of_an_unsupported_file() {
    for (name, expected) in [
        ("picture.png", "PNG"),
        ("video.mp4", "MP4"),
        ("program", "ELF"),
        ("archive.zip", "ZIP"),
        ("noise.bin", "binary"),
        ("old.doc", "before Word 2007"),
    ] {
        let error = error(name);
        let ExtractError::NotSupported(what) = &error else { panic!("{name}: {error:?}") };
        assert!(what.to_uppercase().contains(&expected.to_uppercase()), "{name}: {what}");
    }
}

#[test]
fn a_pdf_form_that_draws_itself_is_read_without_a_loop() {
    let (extracted, text) = document("loop.pdf").expect("a page without text");
    assert_eq!((extracted.pages, text.as_str()), (1, ""));
}
