//! The error of this crate: a text for the person who reads the failed test.

use std::fmt;

/// Why a server could not be found, started, stopped or paused.
///
/// It has only a text, because no caller handles some errors differently.
#[derive(Clone)]
pub struct Error(String);

impl Error {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// For `ok_or_else`: refuses to stop or pause a server that other tests may be using.
    pub(crate) fn not_started_here() -> Self {
        Self::new(
            "this server was started by another process; a test that stops or pauses a server must start it",
        )
    }

    /// For `map_err`: puts the failed step before the cause.
    pub(crate) fn while_doing<E: fmt::Display>(doing: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |cause| Self(format!("{doing}: {cause}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// `expect` prints this form. The default would escape the line breaks of the log.
impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl std::error::Error for Error {}
