//! `cargo xtask test`: compiles the tests while their servers start, then runs the test binaries side by side.

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
/// Binaries that run at the same time. Most tests wait for servers and disks for a part of their time.
const LANES: usize = 2;
/// They take longest, so they begin first.
const LONGEST: [&str; 2] = ["it", "conformance"];
/// Tests of the harness itself are run again only after a change of these.
const HARNESS: &str = "harness";
const TIMES_FILE: &str = "target/test-times.txt";

/// What `cargo xtask test` was asked for.
#[derive(Default)]
pub struct Request {
    pub selection: Selection,
    /// Arguments of the test binaries, such as a part of a test's name.
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

/// Something that prints a test result at its end.
enum Item {
    Binary(TestBinary),
    DocTests,
}

impl Item {
    fn name(&self) -> String {
        match self {
            Item::Binary(binary) => binary.name(),
            Item::DocTests => "doc tests".to_owned(),
        }
    }

    fn command(&self) -> Command {
        match self {
            Item::Binary(binary) => binary.command(),
            Item::DocTests => cargo("test --doc --workspace --locked"),
        }
    }

    /// The longest runs last beyond all others: it may use the time in which its neighbour waits.
    fn threads(&self) -> usize {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        match self {
            Item::Binary(binary) if binary.target == LONGEST[0] => 3 * cores,
            _ => cores,
        }
    }

    fn place(&self) -> usize {
        match self {
            Item::Binary(binary) => {
                LONGEST.iter().position(|longest| binary.target == *longest).unwrap_or(LONGEST.len())
            }
            Item::DocTests => LONGEST.len(),
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
    let is_whole = request.selection.is_whole();
    let (servers, binaries) = prepare(parts, &request.selection)?;
    let mut items: Vec<Item> = binaries.into_iter().map(Item::Binary).collect();
    if is_whole {
        items.push(Item::DocTests);
    }
    let harness = Fingerprint::of_harness()?;
    if is_whole && !request.all && harness.has_passed() {
        items.retain(|item| !matches!(item, Item::Binary(binary) if binary.package == HARNESS));
        println!(
            "tests of the harness: skipped, it is as it was when they last passed here (--all runs them)"
        );
    }
    items.sort_by_key(Item::place);
    if !request.arguments.is_empty() {
        return run_in_turn(items, &servers, request);
    }
    run_side_by_side(items, &servers, request, parts)?;
    if is_whole {
        harness.passed()?;
    }
    Ok(())
}

/// The compiled tests, with all servers running and all packages installed.
pub fn prepare(parts: &Parts, selection: &Selection) -> Outcome<(Servers, Vec<TestBinary>)> {
    thread::scope(|scope| {
        let servers = scope.spawn(|| {
            let began = Instant::now();
            // Servers of tests that cut the power are their own.
            let in_memory = postgres::Options { fsync: false, ..postgres::Options::default() };
            let servers = Servers::start(&servers::NAMES, in_memory)?;
            parts.add("start the servers, while compiling", began.elapsed().as_secs_f64(), "");
            Outcome::Ok(servers)
        });
        let packages = selection.is_whole().then(|| {
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

/// For a person who looks for something: one after the other, with all that they print.
fn run_in_turn(items: Vec<Item>, servers: &Servers, request: &Request) -> Outcome {
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

fn run_side_by_side(items: Vec<Item>, servers: &Servers, request: &Request, parts: &Parts) -> Outcome {
    let began = Instant::now();
    println!("\n== run {} test binaries, {LANES} side by side", items.len());
    let waiting = Mutex::new(VecDeque::from(items));
    let ended: Mutex<Vec<(String, Run)>> = Mutex::default();
    thread::scope(|scope| {
        let lane = || {
            loop {
                let next = waiting.lock().map_err(|_| "a lane panicked")?.pop_front();
                let Some(item) = next else { return Outcome::Ok(()) };
                let mut command = item.command();
                command.envs(servers.environment()).env(TEST_THREADS, threads(&item));
                if let (true, Item::Binary(_)) = (request.times, &item) {
                    // Durations of tests are not stable yet.
                    command.env("RUSTC_BOOTSTRAP", "1").args(["-Zunstable-options", "--report-time"]);
                }
                let name = item.name();
                let run = test_binary::run(&name, command)?;
                report(&name, &run);
                parts.add(&name, run.seconds, run.summary());
                ended.lock().map_err(|_| "a lane panicked")?.push((name, run));
            }
        };
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().map_err(|_| "a lane panicked")?)
    })?;
    parts.add("run all tests", began.elapsed().as_secs_f64(), "");
    let ended = ended.into_inner().map_err(|_| "a lane panicked")?;
    if request.times {
        write_times(&ended)?;
    }
    let failed: Vec<&str> =
        ended.iter().filter(|(_, run)| !run.passed).map(|(name, _)| name.as_str()).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("tests failed: {}", failed.join(", ")).into()) }
}

/// All that a failed binary printed; of the others how they ended.
fn report(name: &str, run: &Run) {
    if !run.passed {
        println!("\n== {name} FAILED");
        for line in run.lines.iter().filter(|line| !line.ends_with("... ok")) {
            println!("{line}");
        }
    }
    // Who counts tests reads this line.
    println!("{name}\ntest result: {}", run.summary());
}

/// The slowest first.
fn write_times(ended: &[(String, Run)]) -> Outcome {
    let mut times: Vec<(f64, String)> = ended
        .iter()
        .flat_map(|(name, run)| run.times().map(move |(seconds, test)| (seconds, format!("{name}: {test}"))))
        .collect();
    times.sort_by(|left, right| right.0.total_cmp(&left.0));
    let lines: Vec<String> = times.iter().map(|(seconds, test)| format!("{seconds:>9.3}  {test}")).collect();
    fs::write(TIMES_FILE, lines.join("\n"))?;
    println!(
        "\nThe slowest tests, all of them in {TIMES_FILE}:\n{}",
        lines[..lines.len().min(25)].join("\n")
    );
    Ok(())
}

fn threads(item: &Item) -> String {
    std::env::var(TEST_THREADS).unwrap_or_else(|_| item.threads().to_string())
}

/// What the harness consists of, to know whether it is still what was tested.
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

    fn passed(&self) -> Outcome {
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
