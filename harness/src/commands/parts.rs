//! The duration of each part of a command, printed as a table at its end.

use std::sync::Mutex;
use std::time::Instant;

use super::Outcome;

struct Part {
    name: String,
    seconds: f64,
    remark: String,
}

/// The parts that have ended, in this order.
#[derive(Default)]
pub struct Parts(Mutex<Vec<Part>>);

impl Parts {
    /// Runs one part. Prints a heading before it, and its result and duration after it.
    pub fn run<T>(&self, name: &str, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        println!("\n== {name}");
        let began = Instant::now();
        let outcome = work();
        let seconds = began.elapsed().as_secs_f64();
        println!("-- {} in {seconds:.1} s: {name}", if outcome.is_ok() { "passed" } else { "FAILED" });
        self.add(name, seconds, if outcome.is_ok() { "" } else { "FAILED" });
        outcome
    }

    pub fn add(&self, name: &str, seconds: f64, remark: &str) {
        let part = Part { name: name.to_owned(), seconds, remark: remark.to_owned() };
        self.0.lock().expect("no part panicked while it was added").push(part);
    }

    pub fn print(&self) {
        println!("\n   seconds  part");
        for part in &*self.0.lock().expect("no part panicked while it was added") {
            println!("{:>10.1}  {}  {}", part.seconds, part.name, part.remark);
        }
    }
}
