//! One test binary. Finds it in cargo's messages, runs it, and reads its output line by line.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Outcome, cargo};

/// The interval of progress lines for a long run.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(60);

pub struct TestBinary {
    pub package: String,
    /// The name of a file under `tests/`, or `unit tests`.
    pub target: String,
    folder: PathBuf,
    program: PathBuf,
}

/// The output and the result of one run of a binary.
pub struct Run {
    pub passed: bool,
    pub seconds: f64,
    pub lines: Vec<String>,
}

impl Run {
    /// The last line of the test runner: `ok. 12 passed; 0 failed; …`.
    pub fn summary(&self) -> &str {
        let closing = self.lines.iter().rev().find_map(|line| line.strip_prefix("test result: "));
        closing.unwrap_or("ended without a result")
    }

    /// Each test with its seconds. Empty if the binary was not asked for them.
    pub fn times(&self) -> impl Iterator<Item = (f64, &str)> {
        self.lines.iter().filter_map(|line| {
            let (test, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
            let seconds = rest.split_once('<')?.1.split_once("s>")?.0;
            Some((seconds.parse().ok()?, test))
        })
    }
}

/// The selected test binaries. Empty lists select all of the workspace.
#[derive(Default)]
pub struct Selection {
    pub packages: Vec<String>,
    /// Files or folders under `tests/`.
    pub targets: Vec<String>,
}

impl Selection {
    pub fn is_everything(&self) -> bool {
        self.packages.is_empty() && self.targets.is_empty()
    }

    fn contains(&self, binary: &TestBinary) -> bool {
        let is_one_of = |names: &[String], name: &String| names.is_empty() || names.contains(name);
        is_one_of(&self.packages, &binary.package) && is_one_of(&self.targets, &binary.target)
    }
}

/// Compiles the selected tests and returns their binaries. cargo always gets the whole workspace: with fewer packages
/// the dependencies have other features, and all of them would be compiled again.
pub fn compile(selection: &Selection) -> Outcome<Vec<TestBinary>> {
    let mut command = cargo("test --workspace --no-run --locked --message-format=json-render-diagnostics");
    for target in &selection.targets {
        command.args(["--test", target]);
    }
    let mut compiling = command.stdout(Stdio::piped()).spawn()?;
    let messages = compiling.stdout.take().ok_or("cargo has no output")?;
    let mut binaries = Vec::new();
    for message in BufReader::new(messages).lines() {
        binaries.extend(TestBinary::from_message(&message?).filter(|binary| selection.contains(binary)));
    }
    let status = compiling.wait()?;
    if !status.success() {
        return Err(format!("the tests do not compile: {status}").into());
    }
    if binaries.is_empty() {
        return Err("no such tests".into());
    }
    Ok(binaries)
}

impl TestBinary {
    /// None: cargo's message is not about a test binary.
    fn from_message(message: &str) -> Option<TestBinary> {
        let is_test = message.split_once(r#""profile":{"#)?.1.split_once('}')?.0.contains(r#""test":true"#);
        let program = string_after(message, r#""executable":""#).filter(|_| is_test)?;
        let folder = Path::new(&string_after(message, r#""manifest_path":""#)?).parent()?.to_owned();
        let target = message.split_once(r#""target":{"#)?.1;
        let target = match string_after(target, r#""kind":[""#)?.as_str() {
            "test" => string_after(target, r#""name":""#)?,
            _ => "unit tests".to_owned(),
        };
        let package = folder.file_name()?.to_string_lossy().into_owned();
        Some(TestBinary { package, target, folder, program: program.into() })
    }

    pub fn name(&self) -> String {
        format!("{}: {}", self.package, self.target)
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).stdin(Stdio::null());
        command
    }
}

/// Runs the command and collects its output. Prints the name of a failed test at once.
pub fn run(name: &str, mut command: Command) -> Outcome<Run> {
    let (output, input) = io::pipe()?;
    let began = Instant::now();
    let mut child = command.stdout(input.try_clone()?).stderr(input).spawn()?;
    // The command holds the write end of the pipe. While it is open, the reader never sees the end.
    drop(command);
    let (mut lines, mut done, mut reported) = (Vec::new(), 0, Instant::now());
    let mut total = String::from("?");
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if let Some(count) = line.strip_prefix("running ").and_then(|line| line.split(' ').next()) {
            total = count.to_owned();
        }
        if line.starts_with("test ") && line.contains(" ... ") {
            done += 1;
            if line.contains("... FAILED") {
                println!("   {name}: {line}");
            }
        }
        if reported.elapsed() > PROGRESS_INTERVAL {
            reported = Instant::now();
            println!("   {name}: {done} of {total} tests done");
        }
        lines.push(line);
    }
    let passed = child.wait()?.success();
    Ok(Run { passed, seconds: began.elapsed().as_secs_f64(), lines })
}

/// The JSON string after `before`.
fn string_after(json: &str, before: &str) -> Option<String> {
    let mut text = String::new();
    let mut characters = json.split_once(before)?.1.chars();
    loop {
        match characters.next()? {
            '"' => return Some(text),
            '\\' => text.push(characters.next()?),
            character => text.push(character),
        }
    }
}
