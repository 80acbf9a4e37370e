//! The packages that tests need in addition to servers. They are installed while the tests are compiled.

use harness::promtool::Promtool;

use super::Outcome;

/// Installs missing packages.
pub fn prepare() -> Outcome {
    harness::browser::ready();
    harness::documents::folder();
    Promtool::find_or_unpack()?;
    harness::schemathesis::install()?;
    // For `cargo xtask ci`.
    harness::deny::find_or_build()?;
    Ok(())
}
