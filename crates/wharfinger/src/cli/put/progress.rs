//! The output of `put`: progress bars on a terminal, plain lines otherwise, or JSON.

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::super::output::line;
use super::client::{PutOutcome, ServerFile};
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

    fn print(&self, text: &str) {
        match &self.bars {
            // Fails only if the terminal is gone.
            Some((all, _)) => drop(all.println(text)),
            None => line(text),
        }
    }

    pub(super) fn uploaded(&self, file: &LocalFile, on_server: &ServerFile) {
        let path = file.path.display();
        let ServerFile { id, batch, status, unchanged } = on_server;
        if self.json {
            let outcome = if *unchanged { "unchanged" } else { "uploaded" };
            let outcome_line = serde_json::json!({
                "path": path.to_string(), "fileId": id, "size": file.size, "status": status, "outcome": outcome,
                "batchId": batch,
            });
            line(outcome_line.to_string());
        } else {
            let word = if *unchanged { "unchanged" } else { "uploaded" };
            self.print(&format!("{word}  {path}  {}  {id}  {status}", format_size(file.size)));
        }
    }

    pub(super) fn failed(&self, path: &Path, problem: &str) {
        if self.json {
            let outcome_line = serde_json::json!({
                "path": path.display().to_string(), "outcome": "failed", "error": problem,
            });
            line(outcome_line.to_string());
        } else {
            self.print(&format!("FAILED  {}  {problem}", path.display()));
        }
    }

    pub(super) fn summary(&self, outcomes: &[PutOutcome], unreadable: usize) {
        let count = |wanted: PutOutcome| outcomes.iter().filter(|outcome| **outcome == wanted).count();
        let (uploaded, unchanged) = (count(PutOutcome::Uploaded), count(PutOutcome::Unchanged));
        let failed = count(PutOutcome::Failed) + unreadable;
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
            line(format!("{uploaded} uploaded, {unchanged} unchanged, {failed} failed"));
        }
    }
}

/// Counts the bytes of one request, so that they can be subtracted if it fails.
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

    /// The request failed: subtracts its bytes.
    pub(super) fn subtract(&self) {
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
    pub(super) fn message(&self, text: &str) {
        if let Some((bar, _)) = &self.bars {
            bar.set_message(text.to_owned());
        }
    }

    /// For a new attempt: only the bytes that the store already has count.
    pub(super) fn restart_at(&self, bytes: u64) {
        if let Some((bar, total)) = &self.bars {
            total.set_position(total.position().saturating_sub(bar.position()) + bytes);
            bar.set_position(bytes);
        }
    }

    pub(super) fn counter(&self) -> Counter {
        Counter { progress: self.clone(), counted: Arc::default() }
    }

    pub(super) fn finish(&self, is_complete: bool) {
        if let Some((bar, total)) = &self.bars {
            if is_complete {
                let rest = bar.length().unwrap_or(0).saturating_sub(bar.position());
                total.inc(rest);
            }
            bar.finish_and_clear();
        }
    }
}
