//! Text out of a file that anybody may have made: its kind is told by its content, every limit is
//! counted while reading, and whatever a format's code does wrong ends as an error.

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

/// How much a file may ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtractLimits {
    /// Pages, slides, sheets or chapters.
    pub pages_max: u32,
    /// All that is inflated out of the file, together.
    pub inflated_bytes_max: u64,
    pub text_bytes_max: u64,
    /// Text beyond this is left out.
    pub truncate_at_bytes: u64,
    /// Of the child process, above what it has when it begins; the file of a PDF is held whole.
    pub memory_bytes_max: u64,
    /// Processor time of the child process, in steps of a second.
    pub time_ms_max: u64,
}

/// Why there is no text. Only [`ExtractError::Unavailable`] may be different next time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExtractError {
    #[error("no text can be read from {0}")]
    NotSupported(String),
    #[error("the file is corrupted: {0}")]
    Corrupted(String),
    #[error("the file is encrypted: {0}")]
    Encrypted(String),
    #[error("the file is too large: {0}")]
    TooLarge(String),
    #[error("reading the file crashed: {0}")]
    Crashed(String),
    #[error("the file could not be read: {0}")]
    Unavailable(String),
}

impl ExtractError {
    /// Whether the same file will fail the same way again.
    pub fn is_permanent(&self) -> bool {
        !matches!(self, Self::Unavailable(_))
    }

    /// A failure to read or write on this machine.
    fn local(error: &io::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extracted {
    /// `pdf`, `docx`, `html`, `text` and so on.
    pub kind: String,
    /// How much text was written, in bytes of UTF-8.
    pub bytes: u64,
    /// Pages, slides, sheets or chapters; 1 for kinds that have none.
    pub pages: u32,
    /// There was more text than may be kept.
    pub cut: bool,
}

/// Writes the text of the file to the sink, in pieces. The name only tells kinds of plain text apart.
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
        // It ended because the sink was full.
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

/// The error for one page more than there may be.
fn pages_within(count: usize, pages_max: u32) -> Result<u32, ExtractError> {
    match u32::try_from(count) {
        Ok(count) if count <= pages_max => Ok(count),
        _ => Err(ExtractError::TooLarge(format!("more than {pages_max} pages"))),
    }
}

const PANIC_CHARS_MAX: usize = 300;

thread_local! {
    /// `Some` while a panic of this thread is ours to report.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Turns a panic of the code that reads a format into an error. The message is taken by a hook,
/// which other threads, and this one outside, do not notice.
fn caught<T>(work: impl FnOnce() -> Result<T, ExtractError>) -> Result<T, ExtractError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let ours = PANIC.with_borrow_mut(|message| {
                message.as_mut().map(|message| *message = info.to_string().replace('\n', " "))
            });
            if ours.is_none() {
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
    fn only_what_failed_on_this_machine_is_worth_another_try() {
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
