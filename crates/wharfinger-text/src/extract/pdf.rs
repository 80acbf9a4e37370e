//! PDF: the pages are interpreted as for drawing, and the glyphs are recorded. The library keeps the whole file in
//! memory. It repairs damaged files if possible, and opens encrypted files that need no password.

use std::fs::File;
use std::io::Read;

use hayro_interpret::hayro_syntax::{DecryptionError, LoadPdfError, Pdf};
use hayro_interpret::kurbo::{Affine, Rect};
use hayro_interpret::{Context, InterpreterCache, InterpreterSettings, interpret_page};

use super::pdf_layout::PageText;
use super::sink::{Gap, TextSink};
use super::{ExtractError, ExtractLimits, pages_within, pdf_inflation};

const OBJECTS_MAX: usize = 4_000_000;

/// The file and its interpreted content must fit into memory together.
const MEMORY_PER_FILE: u64 = 2;

pub(super) fn extract(
    file: &mut File,
    limits: &ExtractLimits,
    sink: &mut TextSink<'_>,
) -> Result<u32, ExtractError> {
    let length = file.metadata().map_err(|error| ExtractError::local(&error))?.len();
    if length.saturating_mul(MEMORY_PER_FILE) > limits.memory_bytes_max {
        let pdf_bytes_max = limits.memory_bytes_max / MEMORY_PER_FILE;
        return Err(ExtractError::TooLarge(format!(
            "a PDF of more than {pdf_bytes_max} bytes does not fit into the memory limit"
        )));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(length).read_to_end(&mut bytes).map_err(|error| ExtractError::local(&error))?;
    pdf_inflation::check(&bytes, limits.inflated_bytes_max)?;

    let pdf = Pdf::new(bytes).map_err(load_error)?;
    if pdf.len() > OBJECTS_MAX {
        return Err(ExtractError::TooLarge(format!("the PDF has more than {OBJECTS_MAX} objects")));
    }
    let pages = pages_within(pdf.pages().len(), limits.pages_max)?;
    if pages == 0 {
        return Err(ExtractError::Corrupted("the PDF has no pages".to_owned()));
    }
    let cache = InterpreterCache::new();
    for page in pdf.pages().iter() {
        // Nothing is drawn, so the size of the page does not matter.
        let nowhere = Rect::new(0.0, 0.0, 1.0, 1.0);
        let settings = InterpreterSettings::default();
        let mut context = Context::new(Affine::IDENTITY, nowhere, &cache, pdf.xref(), settings);
        let mut text = PageText::new(limits.text_bytes_max);
        interpret_page(page, &mut context, &mut text);
        sink.gap(Gap::Page);
        sink.preformatted(text.finish()?.trim())?;
    }
    Ok(pages)
}

fn load_error(error: LoadPdfError) -> ExtractError {
    match error {
        LoadPdfError::Decryption(DecryptionError::PasswordProtected) => {
            ExtractError::Encrypted("a PDF with a password".to_owned())
        }
        LoadPdfError::Decryption(DecryptionError::UnsupportedAlgorithm) => {
            ExtractError::Encrypted("a PDF with an unknown encryption".to_owned())
        }
        LoadPdfError::Decryption(other) => {
            ExtractError::Corrupted(format!("the encryption of the PDF is invalid: {other:?}"))
        }
        LoadPdfError::Invalid => ExtractError::Corrupted("no pages were found in the PDF".to_owned()),
    }
}
