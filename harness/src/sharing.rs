//! Sharing one server between many tests. A variable passes its address to other processes. Each process connects or
//! starts it once.

use std::sync::OnceLock;

use crate::Error;

/// The address of the running server. None: the variable is not set.
pub(crate) fn named_by<A>(
    variable: &str,
    parse: impl FnOnce(&str) -> Result<A, Error>,
) -> Result<Option<A>, Error> {
    let Ok(url) = std::env::var(variable) else {
        return Ok(None);
    };
    parse(&url).map(Some).map_err(Error::while_doing(format!("reading {variable}")))
}

/// Runs `start` once in each process. An error is kept too, so that later tests report it without another attempt.
///
/// # Panics
///
/// Panics with that error.
pub(crate) fn once<S>(
    name: &str,
    shared: &'static OnceLock<Result<S, Error>>,
    start: impl FnOnce() -> Result<S, Error>,
) -> &'static S {
    match shared.get_or_init(start) {
        Ok(server) => server,
        Err(error) => panic!("the tests need {name}, and it did not start: {error}"),
    }
}
