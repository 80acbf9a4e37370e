//! Runs the real program: a command to its end, or a server until it is stopped.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::test_app::TestEnv;

/// A working folder without any settings.
pub struct Place(TempDir);

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Ran {
            code: output.status.code().expect("not killed"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

impl Ran {
    #[track_caller]
    pub fn expect(self, code: i32) -> Ran {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// Each line of the output, as JSON.
    #[track_caller]
    pub fn json(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
    }

    /// Expects exit code 2 and one line on stderr that contains `named`.
    #[track_caller]
    pub fn expect_usage(self, named: &str) {
        assert_eq!((self.code, self.stdout.as_str()), (2, ""), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.contains(named), "{named} in {self:?}");
    }
}

impl Place {
    pub fn new() -> Place {
        // Other tests of this process build their own TLS clients, which need the provider.
        wharfinger_calls::tls::install_provider();
        Place(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn data(&self) -> PathBuf {
        self.path().join("wharfinger-data")
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder");
        std::fs::write(&path, bytes).expect("the file");
        path
    }

    /// The program with an empty environment, so that nothing configures it.
    pub fn command(&self, arguments: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wharfinger"));
        command.args(arguments).current_dir(self.path()).env_clear().stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(&[], arguments)
    }

    pub fn run_with(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Ran {
        let mut command = self.command(arguments);
        command.envs(environment.iter().copied()).output().expect("the program runs").into()
    }

    pub fn token(&self, tenant: &str, user: &str, role: &str) -> String {
        let arguments = ["token", "--tenant", tenant, "--user", user, "--role", role];
        self.run(&arguments).expect(0).stdout.trim().to_owned()
    }

    pub fn serve(&self, environment: &[(&str, &str)]) -> Served {
        self.serve_at("127.0.0.1:0", environment)
    }

    pub fn serve_at(&self, address: &str, environment: &[(&str, &str)]) -> Served {
        self.serve_with(&["--listen", address], environment)
    }

    pub fn serve_as(&self, roles: &str, environment: &[(&str, &str)]) -> Served {
        self.serve_with(&["--listen", "127.0.0.1:0", "--role", roles], environment)
    }

    /// Starts a server and returns when it has printed its address. The log is appended to a file.
    fn serve_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Served {
        let log = std::fs::File::options().create(true).append(true).open(self.path().join("log"));
        let mut child = self
            .command(&[&["serve"], arguments].concat())
            // Without stages a confirmed file is ready at once, which most tests expect.
            .env("PIPELINE_STAGES", "")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("the program starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut first = String::new();
        stdout.read_line(&mut first).expect("a line");
        let url = first.trim_end().rsplit(' ').next().filter(|url| url.starts_with("http://"));
        let url = url.unwrap_or_else(|| panic!("no address in {first:?}; log: {}", self.log())).to_owned();
        Served { child, stdout, url }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path().join("log")).expect("a log")
    }
}

pub struct Served {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub url: String,
}

impl Served {
    /// The address without the scheme.
    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// The lines after the first one, up to a line that starts with `start`.
    pub fn read_until(&mut self, start: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let read = self.stdout.read_line(&mut line).expect("a line");
            assert!(read > 0, "no line starts with {start:?}: {lines:?}");
            lines.push(line.trim_end_matches('\n').to_owned());
            if line.starts_with(start) {
                return lines;
            }
        }
    }

    /// The remaining output. Returns when the server has ended.
    pub fn rest(&mut self) -> String {
        std::io::read_to_string(&mut self.stdout).expect("text")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs");
        assert!(sent.success());
    }

    pub fn wait(mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    pub fn terminate(self) -> ExitStatus {
        self.signal("TERM");
        self.wait()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program on the database of an env, beside its servers.
pub fn run_on(env: &TestEnv, arguments: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wharfinger"));
    command.args(arguments).current_dir(env.folder()).env_clear().envs(env.environment());
    command.stdin(Stdio::null()).output().expect("the program runs").into()
}
