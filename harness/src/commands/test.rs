//! `cargo xtask test`: compiles the tests while their servers start, then runs the test binaries in parallel.

use std::collections::VecDeque;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use harness::postgres;

use super::parts::Parts;
use super::servers::{self, Servers};
use super::test_binary::{self, Run, Selection, TestBinary};
use super::{Outcome, cargo, packages};

/// Read by all test binaries.
const TEST_THREADS: &str = "RUST_TEST_THREADS";
/// Binaries that run at the same time. Most tests wait for servers and disks part of their time.
const PARALLEL_BINARIES: usize = 2;
/// These take longest, so they start first.
const LONGEST: [&str; 2] = ["it", "conformance"];
/// The tests of this folder run again only after a change in it.
const HARNESS: &str = "harness";
const TIMES_FILE: &str = "target/test-times.txt";

/// The arguments of `cargo xtask test`.
#[derive(Default)]
pub struct Request {
    pub selection: Selection,
    /// Arguments for the test binaries, such as a part of a test's name.
    arguments: Vec<String>,
    times: bool,
    all: bool,
}

impl Request {
    fn parse(words: &[&str]) -> Outcome<Request> {
        let mut request = Request::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a name"));
            match *word {
                "--" => break,
                "--times" => request.times = true,
                "--all" => request.all = true,
                "-p" => request.selection.packages.push((*value()?).to_owned()),
                "--test" => request.selection.targets.push((*value()?).to_owned()),
                _ => return Err(format!("unknown argument `{word}`").into()),
            }
        }
        request.arguments = words.map(|word| (*word).to_owned()).collect();
        Ok(request)
    }
}

/// A run that ends with a test result.
enum TestRun {
    Binary(TestBinary),
    DocTests,
}

impl TestRun {
    fn name(&self) -> String {
        match self {
            TestRun::Binary(binary) => binary.name(),
            TestRun::DocTests => "doc tests".to_owned(),
        }
    }

    fn command(&self) -> Command {
        match self {
            TestRun::Binary(binary) => binary.command(),
            TestRun::DocTests => cargo("test --doc --workspace --locked"),
        }
    }

    /// More threads for the longest binary, because it still runs after all others have ended.
    fn threads(&self) -> usize {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        match self {
            TestRun::Binary(binary) if binary.target == LONGEST[0] => 3 * cores,
            _ => cores,
        }
    }

    fn order(&self) -> usize {
        match self {
            TestRun::Binary(binary) => {
                LONGEST.iter().position(|longest| binary.target == *longest).unwrap_or(LONGEST.len())
            }
            TestRun::DocTests => LONGEST.len(),
        }
    }
}

pub fn run(words: &[&str]) -> Outcome {
    let parts = Parts::default();
    let outcome = run_parts(&parts, &Request::parse(words)?);
    parts.print();
    outcome
}

pub fn run_parts(parts: &Parts, request: &Request) -> Outcome {
    let is_everything = request.selection.is_everything();
    let (servers, binaries) = prepare(parts, &request.selection)?;
    let mut items: Vec<TestRun> = binaries.into_iter().map(TestRun::Binary).collect();
    if is_everything {
        items.push(TestRun::DocTests);
    }
    let harness = Fingerprint::of_harness()?;
    if is_everything && !request.all && harness.has_passed() {
        items.retain(|item| !matches!(item, TestRun::Binary(binary) if binary.package == HARNESS));
        println!(
            "tests of the harness: skipped, because the harness has not changed since they passed here (--all runs them)"
        );
    }
    items.sort_by_key(TestRun::order);
    if !request.arguments.is_empty() {
        return run_one_by_one(items, &servers, request);
    }
    run_in_parallel(items, &servers, request, parts)?;
    if is_everything {
        harness.save_passed()?;
    }
    Ok(())
}

/// Compiles the tests, starts all servers and installs all packages.
pub fn prepare(parts: &Parts, selection: &Selection) -> Outcome<(Servers, Vec<TestBinary>)> {
    thread::scope(|scope| {
        let servers = scope.spawn(|| {
            let began = Instant::now();
            // Tests that cut the power start separate servers.
            let in_memory = postgres::Options { fsync: false, ..postgres::Options::default() };
            let servers = Servers::start(&servers::NAMES, in_memory)?;
            parts.add("start the servers, while compiling", began.elapsed().as_secs_f64(), "");
            Outcome::Ok(servers)
        });
        let packages = selection.is_everything().then(|| {
            scope.spawn(|| {
                let began = Instant::now();
                packages::prepare()?;
                parts.add("install packages, while compiling", began.elapsed().as_secs_f64(), "");
                Outcome::Ok(())
            })
        });
        let binaries = parts.run("compile the tests", || test_binary::compile(selection))?;
        if let Some(packages) = packages {
            packages.join().map_err(|_| "a package could not be installed")??;
        }
        let servers = servers.join().map_err(|_| "a server could not be started")??;
        Ok((servers, binaries))
    })
}

/// One binary after the other, with all their output: for a person who debugs a test.
fn run_one_by_one(items: Vec<TestRun>, servers: &Servers, request: &Request) -> Outcome {
    for item in items {
        let mut command = item.command();
        command.envs(servers.environment()).env(TEST_THREADS, threads(&item)).args(&request.arguments);
        println!("\n== {}", item.name());
        let status = command.status()?;
        if !status.success() {
            return Err(format!("{} failed: {status}", item.name()).into());
        }
    }
    Ok(())
}

fn run_in_parallel(items: Vec<TestRun>, servers: &Servers, request: &Request, parts: &Parts) -> Outcome {
    let began = Instant::now();
    println!("\n== run {} test binaries, {PARALLEL_BINARIES} at a time", items.len());
    let waiting = Mutex::new(VecDeque::from(items));
    let ended: Mutex<Vec<(String, Run)>> = Mutex::default();
    thread::scope(|scope| {
        let worker = || {
            loop {
                let next = waiting.lock().map_err(|_| "a thread panicked")?.pop_front();
                let Some(item) = next else { return Outcome::Ok(()) };
                let mut command = item.command();
                command.envs(servers.environment()).env(TEST_THREADS, threads(&item));
                if let (true, TestRun::Binary(_)) = (request.times, &item) {
                    // Durations of tests are not stable yet.
                    command.env("RUSTC_BOOTSTRAP", "1").args(["-Zunstable-options", "--report-time"]);
                }
                let name = item.name();
                let run = test_binary::run(&name, command)?;
                report(&name, &run);
                parts.add(&name, run.seconds, run.summary());
                ended.lock().map_err(|_| "a thread panicked")?.push((name, run));
            }
        };
        let workers: Vec<_> = (0..PARALLEL_BINARIES).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a thread panicked")?)
    })?;
    parts.add("run all tests", began.elapsed().as_secs_f64(), "");
    let ended = ended.into_inner().map_err(|_| "a thread panicked")?;
    if request.times {
        write_times(&ended)?;
    }
    let failed: Vec<&str> =
        ended.iter().filter(|(_, run)| !run.passed).map(|(name, _)| name.as_str()).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("tests failed: {}", failed.join(", ")).into()) }
}

/// Prints the output of a failed binary, and only the result of the others.
fn report(name: &str, run: &Run) {
    if !run.passed {
        println!("\n== {name} FAILED");
        for line in run.lines.iter().filter(|line| !line.ends_with("... ok")) {
            println!("{line}");
        }
    }
    // Scripts that count tests read this line.
    println!("{name}\ntest result: {}", run.summary());
}

/// Writes the durations of all tests, the slowest first.
fn write_times(ended: &[(String, Run)]) -> Outcome {
    let mut times: Vec<(f64, String)> = ended
        .iter()
        .flat_map(|(name, run)| run.times().map(move |(seconds, test)| (seconds, format!("{name}: {test}"))))
        .collect();
    times.sort_by(|left, right| right.0.total_cmp(&left.0));
    let lines: Vec<String> = times.iter().map(|(seconds, test)| format!("{seconds:>9.3}  {test}")).collect();
    fs::write(TIMES_FILE, lines.join("\n"))?;
    println!("\nThe slowest tests (all are in {TIMES_FILE}):\n{}", lines[..lines.len().min(25)].join("\n"));
    Ok(())
}

fn threads(item: &TestRun) -> String {
    std::env::var(TEST_THREADS).unwrap_or_else(|_| item.threads().to_string())
}

/// A hash of the harness. It shows whether the harness has changed since its tests passed.
struct Fingerprint(String);

impl Fingerprint {
    fn of_harness() -> Outcome<Fingerprint> {
        let mut hasher = DefaultHasher::new();
        hash_folder(Path::new(HARNESS), &mut hasher)?;
        Ok(Fingerprint(format!("{:016x}", hasher.finish())))
    }

    fn has_passed(&self) -> bool {
        harness::packages::cache()
            .is_ok_and(|cache| fs::read_to_string(cache.join("tested")).is_ok_and(|tested| tested == self.0))
    }

    fn save_passed(&self) -> Outcome {
        Ok(fs::write(harness::packages::cache()?.join("tested"), &self.0)?)
    }
}

fn hash_folder(folder: &Path, hasher: &mut DefaultHasher) -> Outcome {
    let mut entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::path);
    for entry in entries {
        let path = entry.path();
        path.hash(hasher);
        if path.is_dir() {
            hash_folder(&path, hasher)?;
        } else {
            fs::read(&path)?.hash(hasher);
        }
    }
    Ok(())
}
