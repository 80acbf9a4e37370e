//! What a person sees: a bar for each file and one for all on a terminal, plain lines otherwise, JSON on demand.

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::super::output::line;
use super::client::{Carried, Ended};
use super::files::LocalFile;
use crate::config::format_size;

pub(super) struct Progress {
    json: bool,
    bars: Option<(MultiProgress, ProgressBar)>,
}

const FILE_BAR: &str = "{spinner} {prefix:<28!} {bar:24} {bytes:>10} / {total_bytes:<10} {msg}";
const TOTAL_BAR: &str =
    "{spinner} {prefix:<28!} {bar:24} {bytes:>10} / {total_bytes:<10} {bytes_per_sec} {eta}";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("█▉▊▋▌▍▎▏ ")
}

impl Progress {
    pub(super) fn start(files: &[LocalFile], json: bool) -> Progress {
        let bars = (!json && std::io::stderr().is_terminal()).then(|| {
            let all = MultiProgress::new();
            let total = all.add(ProgressBar::new(files.iter().map(|file| file.size).sum()));
            total.set_style(style(TOTAL_BAR));
            total.set_prefix(format!("total, {} files", files.len()));
            (all, total)
        });
        Progress { json, bars }
    }

    pub(super) fn file(&self, file: &LocalFile) -> FileProgress {
        let bars = self.bars.as_ref().map(|(all, total)| {
            let bar = all.insert_before(total, ProgressBar::new(file.size));
            bar.set_style(style(FILE_BAR));
            bar.set_prefix(file.name.clone());
            (bar, total.clone())
        });
        FileProgress { bars }
    }

    fn say(&self, text: &str) {
        match &self.bars {
            // A terminal that went away has nobody to tell.
            Some((all, _)) => drop(all.println(text)),
            None => line(text),
        }
    }

    pub(super) fn uploaded(&self, file: &LocalFile, carried: &Carried) {
        let path = file.path.display();
        let Carried { id, batch, status, unchanged } = carried;
        if self.json {
            let outcome = if *unchanged { "unchanged" } else { "uploaded" };
            let outcome_line = serde_json::json!({
                "path": path.to_string(), "fileId": id, "size": file.size, "status": status, "outcome": outcome,
                "batchId": batch,
            });
            line(outcome_line.to_string());
        } else {
            let word = if *unchanged { "there already" } else { "uploaded" };
            self.say(&format!("{word}  {path}  {}  {id}  {status}", format_size(file.size)));
        }
    }

    pub(super) fn failed(&self, path: &Path, problem: &str) {
        if self.json {
            let outcome_line = serde_json::json!({
                "path": path.display().to_string(), "outcome": "failed", "error": problem,
            });
            line(outcome_line.to_string());
        } else {
            self.say(&format!("FAILED  {}  {problem}", path.display()));
        }
    }

    pub(super) fn summary(&self, ended: &[Ended], unreadable: usize) {
        let count = |wanted: Ended| ended.iter().filter(|ended| **ended == wanted).count();
        let (uploaded, unchanged) = (count(Ended::Uploaded), count(Ended::Unchanged));
        let failed = count(Ended::Failed) + unreadable;
        if let Some((all, total)) = &self.bars {
            total.finish_and_clear();
            drop(all.clear());
        }
        if self.json {
            line(format!(
                "{}",
                serde_json::json!({ "uploaded": uploaded, "unchanged": unchanged, "failed": failed })
            ));
        } else {
            line(format!("{uploaded} uploaded, {unchanged} there already, {failed} failed"));
        }
    }
}

/// Counts the bytes of one request, so that they can be taken back.
#[derive(Clone)]
pub(super) struct Counter {
    progress: FileProgress,
    counted: Arc<AtomicU64>,
}

impl Counter {
    pub(super) fn sent(&self, bytes: u64) {
        self.counted.fetch_add(bytes, Ordering::Relaxed);
        if let Some((bar, total)) = &self.progress.bars {
            bar.inc(bytes);
            total.inc(bytes);
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }

    /// The request was cut off: its bytes do not count.
    pub(super) fn take_back(&self) {
        let bytes = self.counted.swap(0, Ordering::Relaxed);
        if let Some((bar, total)) = &self.progress.bars {
            bar.set_position(bar.position().saturating_sub(bytes));
            total.set_position(total.position().saturating_sub(bytes));
        }
    }
}

#[derive(Clone)]
pub(super) struct FileProgress {
    bars: Option<(ProgressBar, ProgressBar)>,
}

impl FileProgress {
    pub(super) fn says(&self, what: &str) {
        if let Some((bar, _)) = &self.bars {
            bar.set_message(what.to_owned());
        }
    }

    /// What counts when an attempt begins: an earlier one's bytes do not, unless the store has them.
    pub(super) fn starts_at(&self, bytes: u64) {
        if let Some((bar, total)) = &self.bars {
            total.set_position(total.position().saturating_sub(bar.position()) + bytes);
            bar.set_position(bytes);
        }
    }

    pub(super) fn counter(&self) -> Counter {
        Counter { progress: self.clone(), counted: Arc::default() }
    }

    pub(super) fn ends(&self, whole: bool) {
        if let Some((bar, total)) = &self.bars {
            if whole {
                let rest = bar.length().unwrap_or(0).saturating_sub(bar.position());
                total.inc(rest);
            }
            bar.finish_and_clear();
        }
    }
}
