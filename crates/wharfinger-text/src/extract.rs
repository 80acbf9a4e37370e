//! Extracts the text of an untrusted file. The content decides its kind, every limit is checked while reading, and a
//! panic of a format's code becomes an error.

mod archive;
mod docx;
mod encoding;
mod epub;
mod html;
mod json;
pub(crate) mod kind;
mod opendocument;
mod pdf;
mod pdf_inflation;
mod pdf_layout;
mod pptx;
mod rtf;
mod sink;
mod spreadsheet_date;
mod without_text;
mod xlsx;
mod xml;

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use serde::{Deserialize, Serialize};

use archive::Archive;
use kind::{Kind, TextKind};
use sink::TextSink;

pub use without_text::without_text;

/// The limits for one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtractLimits {
    /// Pages, slides, sheets or chapters.
    pub pages_max: u32,
    /// The total of all inflated bytes of the file.
    pub inflated_bytes_max: u64,
    pub text_bytes_max: u64,
    /// Text after this limit is left out.
    pub truncate_at_bytes: u64,
    /// The memory of the child process above its memory at the start. A PDF is held in memory completely.
    pub memory_bytes_max: u64,
    /// The processor time of the child process, rounded up to seconds.
    pub time_ms_max: u64,
}

/// The reason why there is no text. Only [`ExtractError::Unavailable`] can succeed on a retry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExtractError {
    #[error("cannot extract text from {0}")]
    NotSupported(String),
    #[error("the file is corrupted: {0}")]
    Corrupted(String),
    #[error("the file is encrypted: {0}")]
    Encrypted(String),
    #[error("the file is too large: {0}")]
    TooLarge(String),
    #[error("reading the file crashed: {0}")]
    Crashed(String),
    #[error("cannot read the file: {0}")]
    Unavailable(String),
}

impl ExtractError {
    /// Whether a retry with the same file fails in the same way.
    pub fn is_permanent(&self) -> bool {
        !matches!(self, Self::Unavailable(_))
    }

    /// A failure of this machine to read or write.
    fn local(error: &io::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

/// The result of an extraction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extracted {
    /// `pdf`, `docx`, `html`, `text` and so on.
    pub kind: String,
    /// The size of the text in bytes of UTF-8.
    pub bytes: u64,
    /// Pages, slides, sheets or chapters; 1 for other kinds.
    pub pages: u32,
    /// There was more text than the limit.
    pub cut: bool,
}

/// Writes the text of the file to the sink in pieces. The file name only selects the kind of plain text.
pub fn extract(
    file: &mut File,
    file_name: &str,
    limits: &ExtractLimits,
    sink: &mut dyn Write,
) -> Result<Extracted, ExtractError> {
    let mut sink = TextSink::new(sink, limits.text_bytes_max, limits.truncate_at_bytes);
    let outcome = caught(|| extract_uncaught(file, file_name, limits, &mut sink));
    let (kind, pages, cut) = match outcome {
        Ok((kind, pages)) => (kind, pages, false),
        // The error only stopped the reader, because the sink was full.
        Err(_) if sink.is_cut() => (sink.kind, sink.pages(), true),
        Err(error) => return Err(error),
    };
    let bytes = sink.finish()?;
    Ok(Extracted { kind: kind.to_owned(), bytes, pages, cut })
}

fn extract_uncaught(
    file: &mut File,
    file_name: &str,
    limits: &ExtractLimits,
    sink: &mut TextSink<'_>,
) -> Result<(&'static str, u32), ExtractError> {
    let kind = kind::of(file, file_name)?;
    file.seek(SeekFrom::Start(0)).map_err(|error| ExtractError::local(&error))?;
    match kind {
        Kind::Pdf => {
            sink.kind = "pdf";
            Ok((sink.kind, pdf::extract(file, limits, sink)?))
        }
        Kind::Rtf => {
            sink.kind = "rtf";
            rtf::extract(file, sink).map(|()| ("rtf", 1))
        }
        Kind::Zip => extract_archive(file, limits, sink),
        Kind::Text(kind, encoding) => {
            sink.kind = kind.name();
            match kind {
                TextKind::Html => html::extract_file(file, encoding, sink)?,
                TextKind::Json => json::extract(file, encoding, sink)?,
                _ => encoding::decode(file, encoding, &mut |text| sink.verbatim(text))?,
            }
            Ok((kind.name(), 1))
        }
    }
}

fn extract_archive(
    file: &mut File,
    limits: &ExtractLimits,
    sink: &mut TextSink<'_>,
) -> Result<(&'static str, u32), ExtractError> {
    let mut archive = Archive::open(file, limits.inflated_bytes_max)?;
    let format = archive.format()?;
    sink.kind = match &format {
        archive::Format::Docx(_) => "docx",
        archive::Format::Pptx(_) => "pptx",
        archive::Format::Xlsx(_) => "xlsx",
        archive::Format::Epub => "epub",
        archive::Format::OpenDocument(kind) => kind,
    };
    let pages = match format {
        archive::Format::Docx(part) => docx::extract(&mut archive, &part, sink).map(|()| 1)?,
        archive::Format::Pptx(part) => pptx::extract(&mut archive, &part, limits.pages_max, sink)?,
        archive::Format::Xlsx(part) => xlsx::extract(&mut archive, &part, limits.pages_max, sink)?,
        archive::Format::Epub => epub::extract(&mut archive, limits.pages_max, sink)?,
        archive::Format::OpenDocument(_) => opendocument::extract(&mut archive, limits.pages_max, sink)?,
    };
    Ok((sink.kind, pages))
}

/// Returns an error if there are more pages than the limit.
fn pages_within(count: usize, pages_max: u32) -> Result<u32, ExtractError> {
    match u32::try_from(count) {
        Ok(count) if count <= pages_max => Ok(count),
        _ => Err(ExtractError::TooLarge(format!("more than {pages_max} pages"))),
    }
}

const PANIC_CHARS_MAX: usize = 300;

thread_local! {
    /// `Some` while `caught` runs in this thread.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Turns a panic of a format's code into an error. The hook passes panics of other threads, and panics outside of this
/// function, to the previous hook.
fn caught<T>(work: impl FnOnce() -> Result<T, ExtractError>) -> Result<T, ExtractError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let caught_here = PANIC.with_borrow_mut(|message| {
                message.as_mut().map(|message| *message = info.to_string().replace('\n', " "))
            });
            if caught_here.is_none() {
                previous(info);
            }
        }));
    });
    PANIC.set(Some(String::new()));
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    let message = PANIC.take().unwrap_or_default();
    outcome.unwrap_or_else(|_| Err(ExtractError::Crashed(message.chars().take(PANIC_CHARS_MAX).collect())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_a_short_message() {
        let outcome: Result<(), _> = caught(|| panic!("{}", "x".repeat(10_000)));
        let Err(ExtractError::Crashed(message)) = outcome else { panic!("no crash: {outcome:?}") };
        assert!(message.contains("xxx"), "{message}");
        assert!(message.len() <= PANIC_CHARS_MAX);
    }

    #[test]
    fn only_a_failure_of_this_machine_is_retryable() {
        assert!(!ExtractError::Unavailable(String::new()).is_permanent());
        for error in [
            ExtractError::NotSupported(String::new()),
            ExtractError::Corrupted(String::new()),
            ExtractError::Encrypted(String::new()),
            ExtractError::TooLarge(String::new()),
            ExtractError::Crashed(String::new()),
        ] {
            assert!(error.is_permanent(), "{error:?}");
        }
    }
}
