//! promtool, which checks Prometheus rules: installed, unpacked before, or unpacked now.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::{Error, command, installation};

const PACKAGES: [&str; 1] = ["prometheus"];

pub struct Promtool {
    program: PathBuf,
    library_path: Option<OsString>,
}

impl Promtool {
    pub fn find_or_unpack() -> Result<Self, Error> {
        installation::find_or_unpack("promtool", &PACKAGES, Self::under)
    }

    fn under(root: &Path) -> Option<Self> {
        let program = root.join("usr/bin/promtool");
        let library_path = installation::library_path(root);
        program.is_file().then_some(Self { program, library_path })
    }

    /// Checks that Prometheus accepts these rules. Returns promtool's output, which has their number.
    pub fn check_rules(&self, rules: &Path) -> Result<String, Error> {
        self.run("check", rules)
    }

    /// Runs the unit tests of the alerts.
    pub fn test_rules(&self, tests: &Path) -> Result<String, Error> {
        self.run("test", tests)
    }

    fn run(&self, command: &str, file: &Path) -> Result<String, Error> {
        let mut promtool = installation::command(&self.program, self.library_path.as_deref(), &[]);
        command::run(promtool.args([command, "rules"]).arg(file))
    }
}
