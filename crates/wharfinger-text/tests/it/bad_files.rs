//! Damaged, locked and harmful files end in the error that names their remedy.

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
fn what_is_damaged_is_corrupted() {
    for name in ["corrupted.pdf", "truncated.docx", "unclosed.docx", "entities.docx"] {
        let error = error(name);
        assert!(matches!(error, ExtractError::Corrupted(_)), "{name}: {error:?}");
    }
    let error = bytes("x.rtf", b"{\\rtf1 {never closed", &limits()).expect_err("cut off");
    assert!(matches!(error, ExtractError::Corrupted(_)), "{error:?}");
    let error = bytes("x.pdf", b"%PDF-1.7", &limits()).expect_err("nothing in it");
    assert!(matches!(error, ExtractError::Corrupted(_)), "{error:?}");
}

#[test]
fn what_has_a_password_is_encrypted() {
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
fn what_is_no_document_is_named() {
    for (name, says) in [
        ("picture.png", "PNG"),
        ("video.mp4", "MP4"),
        ("program", "ELF"),
        ("archive.zip", "ZIP"),
        ("noise.bin", "binary"),
        ("old.doc", "Word document of before 2007"),
    ] {
        let error = error(name);
        let ExtractError::NotSupported(what) = &error else { panic!("{name}: {error:?}") };
        assert!(what.to_uppercase().contains(&says.to_uppercase()), "{name}: {what}");
    }
}

#[test]
fn a_form_that_draws_itself_comes_to_an_end() {
    let (extracted, text) = document("loop.pdf").expect("a page without text");
    assert_eq!((extracted.pages, text.as_str()), (1, ""));
}
