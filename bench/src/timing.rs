//! Latencies and rates, printed as one line.

use std::time::Duration;

#[derive(Default)]
pub(crate) struct Timing(Vec<Duration>);

impl Timing {
    pub(crate) fn add(&mut self, took: Duration) {
        self.0.push(took);
    }

    pub(crate) fn merge(&mut self, other: Timing) {
        self.0.extend(other.0);
    }

    pub(crate) fn line(mut self, name: &str) -> String {
        self.0.sort();
        let at = |share: f64| {
            let index = ((self.0.len() as f64 * share) as usize).min(self.0.len().saturating_sub(1));
            self.0.get(index).copied().unwrap_or_default().as_secs_f64() * 1_000.0
        };
        format!("  {name:<20} p50 {:>7.2} ms   p99 {:>7.2} ms", at(0.50), at(0.99))
    }
}

pub(crate) fn rate(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

/// Prints one line of a measurement.
pub(crate) fn say(line: impl AsRef<str>) {
    println!("{}", line.as_ref());
}
