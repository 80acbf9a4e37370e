//! `cargo xtask prove`: runs the long random tests in turn until the time is over, each time with another seed.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::parts::Parts;
use super::test_binary::{self, Selection, TestBinary};
use super::{Outcome, test};

/// Read by the long tests.
const SEED: &str = "WHARFINGER_TEST_SEED";
const MINUTES: u64 = 10;
/// The packages and test binaries with long tests.
const PACKAGES: [&str; 2] = ["wharfinger", "quota-model"];
const TARGETS: [&str; 2] = ["it", "checks"];

struct Request {
    time: Duration,
    seed: u64,
    only: Option<String>,
}

impl Request {
    fn parse(words: &[&str]) -> Outcome<Request> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let mut request = Request { time: Duration::from_secs(60 * MINUTES), seed: now, only: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match *word {
                "--minutes" => request.time = Duration::from_secs(60 * value()?.parse::<u64>()?),
                "--seed" => request.seed = value()?.parse()?,
                "--only" => request.only = Some((*value()?).to_owned()),
                _ => return Err(format!("unknown argument `{word}`").into()),
            }
        }
        Ok(request)
    }
}

pub fn run(words: &[&str]) -> Outcome {
    let request = Request::parse(words)?;
    let parts = Parts::default();
    let selection = Selection {
        packages: PACKAGES.map(str::to_owned).to_vec(),
        targets: TARGETS.map(str::to_owned).to_vec(),
    };
    let (servers, binaries) = test::prepare(&parts, &selection)?;
    let tests = long_tests(&binaries, request.only.as_deref())?;
    println!(
        "{} long tests for {} minutes, first seed {}",
        tests.len(),
        request.time.as_secs() / 60,
        request.seed
    );
    let until = Instant::now() + request.time;
    for (seed, (binary, test)) in (request.seed..).zip(tests.iter().cycle()) {
        if Instant::now() >= until {
            break;
        }
        let mut command = binary.command();
        command.envs(servers.environment()).env(SEED, seed.to_string());
        command.args(["--ignored", "--exact", test.as_str(), "--nocapture"]);
        let run = test_binary::run(test, command)?;
        println!("{:>8.1} s  {test} --seed {seed}: {}", run.seconds, run.summary());
        parts.add(test, run.seconds, &format!("seed {seed}"));
        if !run.passed {
            println!("{}", run.lines.join("\n"));
            return Err(format!("to repeat it: cargo xtask prove --only {test} --seed {seed}").into());
        }
    }
    parts.print();
    Ok(())
}

/// The tests that only `cargo xtask prove` runs.
fn long_tests<'b>(binaries: &'b [TestBinary], only: Option<&str>) -> Outcome<Vec<(&'b TestBinary, String)>> {
    let mut tests = Vec::new();
    for binary in binaries {
        let listed = binary.command().args(["--ignored", "--list", "--format", "terse"]).output()?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        let wanted = names.filter(|name| only.is_none_or(|only| name.contains(only)));
        tests.extend(wanted.map(|name| (binary, name.to_owned())));
    }
    if tests.is_empty() {
        return Err(format!("no long test has `{}` in its name", only.unwrap_or_default()).into());
    }
    Ok(tests)
}
