//! An event that `tail` prints, as a line for people and as JSON.

use indicatif::HumanBytes;
use serde_json::{Value, json};

use crate::clock::rfc3339;
use crate::sweeps::{SCHEDULE, Sweep};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    Deletion,
    SweepRun(Sweep),
    Notification,
}

impl EventKind {
    /// What they are, for messages.
    pub(super) fn what(self) -> &'static str {
        match self {
            EventKind::Deletion => "deleted objects",
            EventKind::SweepRun(_) => "runs of sweeps",
            EventKind::Notification => "notifications",
        }
    }

    /// The path of the list, with the size of a page.
    pub(super) fn path(self) -> String {
        match self {
            EventKind::Deletion => "/api/v2/maintenance/deletions?limit=100".into(),
            EventKind::SweepRun(sweep) => {
                format!("/api/v2/maintenance/sweeps/{}/runs?limit=20", sweep.name())
            }
            EventKind::Notification => "/api/v2/notifications?limit=100".into(),
        }
    }

    /// The member of the answer that has the list.
    pub(super) fn list(self) -> &'static str {
        match self {
            EventKind::Deletion => "deletions",
            EventKind::SweepRun(_) => "runs",
            EventKind::Notification => "notifications",
        }
    }

    /// The member of an entry that has its time.
    pub(super) fn time(self) -> &'static str {
        match self {
            EventKind::Deletion => "deletedAt",
            EventKind::SweepRun(_) => "endedAt",
            EventKind::Notification => "createdAt",
        }
    }

    /// Runs are listed by their start.
    pub(super) fn is_sorted_by_time(self) -> bool {
        !matches!(self, EventKind::SweepRun(_))
    }

    pub(super) fn id_of(self, entry: &Value) -> String {
        let text = |member: &str| entry[member].as_str().unwrap_or_default();
        match self {
            // A line of derived objects is written again when more of them are deleted.
            EventKind::Deletion => format!("{} {}", text("deletedAt"), text("key")),
            EventKind::SweepRun(_) => text("runId").to_owned(),
            EventKind::Notification => text("id").to_owned(),
        }
    }
}

pub(super) struct Event {
    pub(super) kind: EventKind,
    pub(super) at: i64,
    /// The entry as the server sent it.
    pub(super) entry: Value,
}

impl Event {
    /// A run that found nothing to do.
    pub(super) fn is_idle(&self) -> bool {
        self.entry["idle"] == true
    }

    /// The entry with its `type`; a run also with the name of its sweep.
    pub(super) fn json(&self) -> String {
        let mut entry = self.entry.clone();
        match self.kind {
            EventKind::Deletion => entry["type"] = json!("deletion"),
            EventKind::SweepRun(sweep) => {
                entry["type"] = json!("sweepRun");
                entry["sweep"] = json!(sweep.name());
            }
            EventKind::Notification => entry["type"] = json!("notification"),
        }
        entry.to_string()
    }

    pub(super) fn text(&self) -> String {
        let text = match self.kind {
            EventKind::Deletion => self.deletion(),
            EventKind::SweepRun(sweep) => self.run(sweep),
            EventKind::Notification => {
                format!("notification  {}: {}", self.member("kind"), self.member("message"))
            }
        };
        // A file name may have control characters, which a terminal would obey.
        let plain = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        format!("{}  {}", rfc3339(self.at), text.chars().map(plain).collect::<String>())
    }

    fn member(&self, name: &str) -> &str {
        self.entry[name].as_str().unwrap_or("-")
    }

    fn deletion(&self) -> String {
        let size = HumanBytes(self.entry["size"].as_u64().unwrap_or(0));
        let amount = match self.entry["objects"].as_u64() {
            Some(0) => "an unfinished upload".to_owned(),
            Some(1) | None => size.to_string(),
            Some(objects) => format!("{objects} objects, {size}"),
        };
        let by = self.entry["by"].as_str().map(|by| format!(", by {by}")).unwrap_or_default();
        format!("deleted       {} ({amount}): {}{by}", self.member("key"), self.member("reason"))
    }

    fn run(&self, sweep: Sweep) -> String {
        let name = sweep.name();
        let what = if self.entry["dryRun"] == true { format!("dry run of {name}") } else { name.to_owned() };
        let by = Some(self.member("by")).filter(|by| *by != SCHEDULE);
        let by = by.map(|by| format!(", by {by}")).unwrap_or_default();
        let ended = match self.entry["error"].as_str() {
            Some(error) => format!("failed: {error}"),
            None => "finished".to_owned(),
        };
        let mut figures = Vec::new();
        collect_figures("", &self.entry["result"], &mut figures);
        let figures = if figures.is_empty() { String::new() } else { format!(": {}", figures.join(", ")) };
        let duration_ms = self.entry["duration"].as_i64().unwrap_or(0);
        format!("sweep         {what}{by}, {duration_ms} ms, {ended}{figures}")
    }
}

/// The numbers of a result that are not zero, nested ones with their path.
fn collect_figures(path: &str, value: &Value, figures: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                collect_figures(&path, member, figures);
            }
        }
        Value::Number(number) if number.as_f64() != Some(0.0) => figures.push(format!("{path} {number}")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: EventKind, entry: Value) -> String {
        Event { kind, at: 1_750_000_000_000, entry }.text()
    }

    #[test]
    fn events_are_shown_in_one_line() {
        let deletion = json!({ "key": "uploads/t/u/1", "size": 2048, "objects": 1, "reason": "orphan_blob", "by": "orphan-cleanup" });
        assert_eq!(
            text(EventKind::Deletion, deletion),
            "2025-06-15T15:06:40.000Z  deleted       uploads/t/u/1 (2.00 KiB): orphan_blob, by orphan-cleanup"
        );
        let run = json!({
            "dryRun": true, "by": "operator:olga", "duration": 12, "error": null,
            "result": { "orphanBlobs": { "total": 2, "deleted": 0, "samples": ["a"] }, "executionTime": 12 },
        });
        assert_eq!(
            text(EventKind::SweepRun(Sweep::OrphanCleanup), run),
            "2025-06-15T15:06:40.000Z  sweep         dry run of orphan-cleanup, by operator:olga, 12 ms, finished: \
             executionTime 12, orphanBlobs.total 2"
        );
        let attack = json!({ "kind": "file-ready", "message": "a\u{1b}[2Jb\nc is ready" });
        assert_eq!(
            text(EventKind::Notification, attack),
            "2025-06-15T15:06:40.000Z  notification  file-ready: a\u{fffd}[2Jb\u{fffd}c is ready"
        );
    }
}
