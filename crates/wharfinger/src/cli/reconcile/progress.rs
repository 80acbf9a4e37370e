//! How far a comparison has come: a bar on a terminal, a line now and then otherwise, nothing beside JSON.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

pub(super) struct Progress {
    how: How,
    phase: &'static str,
    noun: &'static str,
    started: Instant,
    told: Instant,
    /// Where the phase began: an interrupted one not at nothing.
    first: Option<(u64, f64)>,
}

enum How {
    Bar(ProgressBar),
    Lines,
    Silent,
}

const BAR: &str = "{spinner} {prefix} {bar:24} {msg}";
/// The bar's own length.
const WHOLE: u64 = 1_000;
const DRAW_EVERY: Duration = Duration::from_millis(100);
const TELL_EVERY: Duration = Duration::from_secs(10);

impl Progress {
    pub(super) fn start(is_json: bool) -> Progress {
        let how = match (is_json, std::io::stderr().is_terminal()) {
            (true, _) => How::Silent,
            (false, false) => How::Lines,
            (false, true) => {
                let bar = ProgressBar::new(WHOLE);
                let style =
                    ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
                bar.set_style(style.progress_chars("█▉▊▋▌▍▎▏ "));
                How::Bar(bar)
            }
        };
        let now = Instant::now();
        Progress { how, phase: "", noun: "", started: now, told: now, first: None }
    }

    pub(super) fn phase(&mut self, phase: &'static str, noun: &'static str) {
        (self.phase, self.noun, self.first) = (phase, noun, None);
        (self.started, self.told) = (Instant::now(), Instant::now());
        if let How::Bar(bar) = &self.how {
            // It may have made room for a question.
            bar.reset();
            bar.set_prefix(phase);
            bar.set_position(0);
            bar.set_message("");
        }
    }

    /// So many are done, and this share of all, where that is known.
    pub(super) fn at(&mut self, done: u64, share: Option<f64>) {
        let (first, first_share) = *self.first.get_or_insert((done, share.unwrap_or(0.0)));
        let every = match &self.how {
            How::Bar(_) => DRAW_EVERY,
            How::Lines => TELL_EVERY,
            How::Silent => return,
        };
        if self.told.elapsed() < every {
            return;
        }
        self.told = Instant::now();
        let seconds = self.started.elapsed().as_secs_f64().max(0.001);
        let rate = done.saturating_sub(first) as f64 / seconds;
        let left = share.filter(|share| *share > first_share).map(|share| {
            let left = seconds * (1.0 - share).max(0.0) / (share - first_share);
            format!(", about {} left", in_words(left))
        });
        let told = format!("{done} {}, {rate:.0} a second{}", self.noun, left.unwrap_or_default());
        match &self.how {
            How::Bar(bar) => {
                bar.set_position((share.unwrap_or(0.0).clamp(0.0, 1.0) * WHOLE as f64) as u64);
                bar.set_message(told);
                bar.tick();
            }
            How::Lines => eprintln!("{}: {told}", self.phase),
            How::Silent => {}
        }
    }

    /// Something that should be known, whatever is shown.
    pub(super) fn say(&self, text: &str) {
        match &self.how {
            How::Bar(bar) => bar.println(text),
            How::Lines | How::Silent => eprintln!("{text}"),
        }
    }

    /// Leaves the terminal to a question.
    pub(super) fn pause(&self) {
        if let How::Bar(bar) = &self.how {
            bar.finish_and_clear();
        }
    }

    pub(super) fn end(&self) {
        self.pause();
    }
}

fn in_words(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match seconds {
        0..=99 => format!("{seconds} s"),
        100..=5_999 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h", seconds.div_ceil(3_600)),
    }
}
