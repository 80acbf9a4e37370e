//! The one error of this crate: a sentence for whoever reads the failed test.

use std::fmt;

/// Why a server could not be had, started or broken as asked.
///
/// Nobody decides anything on its kind, so it carries text alone.
#[derive(Clone)]
pub struct Error(String);

impl Error {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// For `ok_or_else`: refuses to break a server that other tests may be using.
    pub(crate) fn not_ours() -> Self {
        Self::new("this server is not ours to break; a test that breaks one starts its own")
    }

    /// For `map_err`: puts what was being done in front of what went wrong.
    pub(crate) fn while_doing<E: fmt::Display>(doing: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |cause| Self(format!("{doing}: {cause}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// `expect` prints this form, and log tails are unreadable with their line breaks escaped.
impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl std::error::Error for Error {}
