//! The progress of a comparison: a bar on a terminal, otherwise a line every few seconds, and nothing with JSON.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

pub(super) struct Progress {
    output: Output,
    phase: &'static str,
    noun: &'static str,
    started: Instant,
    printed: Instant,
    /// The count and the share at the start of the phase. A resumed phase does not start at 0.
    first: Option<(u64, f64)>,
}

enum Output {
    Bar(ProgressBar),
    Lines,
    Silent,
}

const BAR: &str = "{spinner} {prefix} {bar:24} {msg}";
const BAR_LENGTH: u64 = 1_000;
const DRAW_EVERY: Duration = Duration::from_millis(100);
const PRINT_EVERY: Duration = Duration::from_secs(10);

impl Progress {
    pub(super) fn start(is_json: bool) -> Progress {
        let output = match (is_json, std::io::stderr().is_terminal()) {
            (true, _) => Output::Silent,
            (false, false) => Output::Lines,
            (false, true) => {
                let bar = ProgressBar::new(BAR_LENGTH);
                let style =
                    ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
                bar.set_style(style.progress_chars("█▉▊▋▌▍▎▏ "));
                Output::Bar(bar)
            }
        };
        let now = Instant::now();
        Progress { output, phase: "", noun: "", started: now, printed: now, first: None }
    }

    pub(super) fn phase(&mut self, phase: &'static str, noun: &'static str) {
        (self.phase, self.noun, self.first) = (phase, noun, None);
        (self.started, self.printed) = (Instant::now(), Instant::now());
        if let Output::Bar(bar) = &self.output {
            // A question may have cleared the bar.
            bar.reset();
            bar.set_prefix(phase);
            bar.set_position(0);
            bar.set_message("");
        }
    }

    /// Shows the count, and the share of the whole if it is known.
    pub(super) fn update(&mut self, done: u64, share: Option<f64>) {
        let (first, first_share) = *self.first.get_or_insert((done, share.unwrap_or(0.0)));
        let every = match &self.output {
            Output::Bar(_) => DRAW_EVERY,
            Output::Lines => PRINT_EVERY,
            Output::Silent => return,
        };
        if self.printed.elapsed() < every {
            return;
        }
        self.printed = Instant::now();
        let seconds = self.started.elapsed().as_secs_f64().max(0.001);
        let rate = done.saturating_sub(first) as f64 / seconds;
        let left = share.filter(|share| *share > first_share).map(|share| {
            let left = seconds * (1.0 - share).max(0.0) / (share - first_share);
            format!(", about {} left", format_seconds(left))
        });
        let text = format!("{done} {}, {rate:.0} per second{}", self.noun, left.unwrap_or_default());
        match &self.output {
            Output::Bar(bar) => {
                bar.set_position((share.unwrap_or(0.0).clamp(0.0, 1.0) * BAR_LENGTH as f64) as u64);
                bar.set_message(text);
                bar.tick();
            }
            Output::Lines => eprintln!("{}: {text}", self.phase),
            Output::Silent => {}
        }
    }

    /// Prints a line in every output mode.
    pub(super) fn print(&self, text: &str) {
        match &self.output {
            Output::Bar(bar) => bar.println(text),
            Output::Lines | Output::Silent => eprintln!("{text}"),
        }
    }

    /// Clears the bar, for example before a question.
    pub(super) fn pause(&self) {
        if let Output::Bar(bar) = &self.output {
            bar.finish_and_clear();
        }
    }

    pub(super) fn end(&self) {
        self.pause();
    }
}

fn format_seconds(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match seconds {
        0..=99 => format!("{seconds} s"),
        100..=5_999 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h", seconds.div_ceil(3_600)),
    }
}
