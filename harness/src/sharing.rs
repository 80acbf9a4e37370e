//! How one server serves many tests: a variable names it to other processes, and each process comes
//! by it once.

use std::sync::OnceLock;

use crate::Error;

/// The running server that the variable names, where it is set.
pub(crate) fn named_by<A>(
    variable: &str,
    parse: impl FnOnce(&str) -> Result<A, Error>,
) -> Result<Option<A>, Error> {
    let Ok(url) = std::env::var(variable) else {
        return Ok(None);
    };
    parse(&url).map(Some).map_err(Error::while_doing(format!("reading {variable}")))
}

/// What `come_by` gives, once for a process. The failure is kept too, so that each test reports it at
/// once rather than trying again.
///
/// # Panics
///
/// Panics with that failure.
pub(crate) fn once<S>(
    name: &str,
    shared: &'static OnceLock<Result<S, Error>>,
    come_by: impl FnOnce() -> Result<S, Error>,
) -> &'static S {
    match shared.get_or_init(come_by) {
        Ok(server) => server,
        Err(error) => panic!("the tests need {name}, and it could not be had: {error}"),
    }
}
