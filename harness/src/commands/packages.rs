//! What tests need besides servers, fetched while the tests are compiled.

use harness::promtool::Promtool;

use super::Outcome;

/// Installs what is missing.
pub fn prepare() -> Outcome {
    harness::browser::ready();
    harness::documents::folder();
    Promtool::find_or_unpack()?;
    harness::schemathesis::install()?;
    // For `cargo xtask ci`.
    harness::deny::find_or_build()?;
    Ok(())
}
