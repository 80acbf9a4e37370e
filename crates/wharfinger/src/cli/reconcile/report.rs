//! What was found, for people and for machines.

use serde_json::{Value, json};
use wharfinger_reconcile::{Count, Entry};

use super::super::output::line;
use super::Format;
use super::bucket::Bucket;
use super::export::quoted;
use super::state::State;
use crate::clock::rfc3339;
use crate::config::format_size;

pub(super) struct Report<'s> {
    bucket: &'s Bucket,
    state: &'s State,
    is_delete: bool,
    refused: Option<String>,
}

impl<'s> Report<'s> {
    pub(super) fn of(
        bucket: &'s Bucket,
        state: &'s State,
        is_delete: bool,
        refused: Option<String>,
    ) -> Report<'s> {
        Report { bucket, state, is_delete, refused }
    }

    pub(super) fn show(&self, format: Format) {
        match format {
            Format::Json => line(self.json().to_string()),
            Format::Csv => self.csv(),
            Format::Table => self.table(),
        }
    }

    fn json(&self) -> Value {
        let at = &self.state.at;
        let totals = &at.totals;
        let (prefixes, others) = totals.by_prefix();
        let ages: Vec<Value> = totals
            .by_age()
            .map(|(age, count)| json!({ "age": age, "objects": count.objects, "bytes": count.bytes }))
            .collect();
        let looked = at.looked_again.unwrap_or_default();
        json!({
            "bucket": self.bucket.shown,
            "keys": {
                "count": at.list.entries,
                "duplicates": at.list.duplicates,
                "outside": at.list.outside,
                "unstripped": at.list.unstripped,
                "skipped": at.list.skipped,
                "asOf": rfc3339(at.list.as_of),
            },
            "inventoryOf": at.listing.made_at().map(rfc3339),
            "graceMs": totals.times().grace_ms,
            "listed": totals.listed,
            "kept": totals.kept,
            "orphans": {
                "objects": totals.orphans.objects,
                "bytes": totals.orphans.bytes,
                "byAge": ages,
                "byPrefix": prefixes,
                "otherPrefixes": others,
                "samples": totals.orphan_samples.iter().map(sample).collect::<Vec<Value>>(),
            },
            "young": totals.young,
            "folders": totals.folders,
            "resized": { "objects": totals.resized.objects, "samples": totals.resized_samples },
            "missing": {
                "keys": totals.missing,
                "lookedAgain": looked.asked,
                "foundThen": looked.found,
                "unknown": looked.unknown,
                "samples": totals.missing_samples,
            },
            "dryRun": !self.is_delete,
            "deletion": at.deletion.as_ref().map(|deletion| json!({
                "objects": deletion.deleted.objects,
                "bytes": deletion.deleted.bytes,
                "gone": deletion.gone,
                "changed": deletion.changed,
                "known": deletion.known,
                "unnamable": deletion.unnamable,
                "failed": deletion.failed,
                "olderVersionsStay": deletion.keeps_versions,
                "log": deletion.log.display().to_string(),
            })),
            "refused": self.refused,
        })
    }

    /// `part,name,objects,bytes`: one shape for all, so that it can be read as one table.
    fn csv(&self) {
        let totals = &self.state.at.totals;
        let row = |part: &str, name: &str, count: Count| {
            line(format!("{part},{},{},{}", quoted(name), count.objects, count.bytes));
        };
        line("part,name,objects,bytes");
        row("total", "listed", totals.listed);
        row("total", "kept", totals.kept);
        row("total", "orphans", totals.orphans);
        row("total", "young", totals.young);
        row("total", "missing", Count { objects: totals.missing, bytes: 0 });
        for (age, count) in totals.by_age() {
            row("age", age, count);
        }
        let (prefixes, others) = totals.by_prefix();
        for total in &prefixes {
            row("prefix", &total.prefix, total.count);
        }
        row("prefix", "(others)", others);
        if let Some(deletion) = &self.state.at.deletion {
            row("deletion", "deleted", deletion.deleted);
        }
    }

    fn table(&self) {
        let at = &self.state.at;
        let totals = &at.totals;
        let row = |name: &str, count: Count, note: &str| {
            line(
                format!("  {name:<10} {:>12}  {:>10}  {note}", count.objects, format_size(count.bytes))
                    .trim_end(),
            );
        };
        line(format!("{} and {} keys as of {}", self.bucket.shown, at.list.entries, rfc3339(at.list.as_of)));
        line(format!("  {:<10} {:>12}  {:>10}", "", "objects", "bytes"));
        row("listed", totals.listed, "");
        row("kept", totals.kept, "");
        row("orphans", totals.orphans, "no key answers for them");
        row("young", totals.young, "no key yet, and younger than the grace: left alone");
        line(
            format!("  {:<10} {:>12}  {:>10}  {}", "missing", totals.missing, "", self.missing_note())
                .trim_end(),
        );
        self.notes();
        if totals.orphans.objects > 0 {
            self.wasted();
        }
        if !totals.missing_samples.is_empty() {
            line("missing, for example:");
            for key in totals.missing_samples.iter().take(10) {
                line(format!("  {key:?}"));
            }
        }
        self.ending();
    }

    fn missing_note(&self) -> String {
        match self.state.at.looked_again {
            Some(looked) if looked.asked < self.state.at.totals.missing + looked.found => {
                format!("keys without an object; {} were looked for once more", looked.asked)
            }
            _ => "keys without an object".into(),
        }
    }

    fn notes(&self) {
        let (list, totals) = (&self.state.at.list, &self.state.at.totals);
        let note = |count: u64, what: &str| {
            if count > 0 {
                line(format!("  {count} {what}"));
            }
        };
        note(list.duplicates, "keys were in the list more than once");
        note(list.outside, "keys of the list lie outside and were left out");
        note(list.unstripped, "keys of the list do not begin with --strip-prefix and were left out");
        note(list.skipped, "rows of the list were without a key");
        note(list.multiline_rows, "rows of the list go over several lines: is a quote missing?");
        note(totals.folders, "empty objects stand for folders and were left alone");
        note(totals.resized.objects, "objects have another size than the list says");
        if totals.missing > 0
            && let Some(at) = self.state.at.listing.made_at()
        {
            line(format!("  the objects are those of {}: what was stored since is missing too", rfc3339(at)));
        }
        let unknown = self.state.at.looked_again.map_or(0, |looked| looked.unknown);
        note(unknown, "missing keys could not be looked for once more: the store did not answer");
    }

    fn wasted(&self) {
        let totals = &self.state.at.totals;
        let row = |count: Count, name: &str| {
            line(format!("  {:>12}  {:>10}  {name}", count.objects, format_size(count.bytes)));
        };
        line("orphans by age:");
        for (age, count) in totals.by_age().filter(|(_, count)| count.objects > 0) {
            row(count, age);
        }
        line("orphans by prefix:");
        let (prefixes, others) = totals.by_prefix();
        for total in &prefixes {
            row(total.count, &shown(&total.prefix));
        }
        if others.objects > 0 {
            row(others, "(others)");
        }
        line("for example:");
        for orphan in totals.orphan_samples.iter().take(10) {
            let at = orphan.modified_at.map(rfc3339).unwrap_or_default();
            line(format!("  {at}  {:>10}  {:?}", format_size(orphan.size.unwrap_or(0)), orphan.key));
        }
    }

    fn ending(&self) {
        match &self.state.at.deletion {
            Some(deletion) => line(format!(
                "deleted {} objects, {}; {} were gone already, {} had changed, {} have a key by now, {} cannot be named, \
                 {} failed: see {}",
                deletion.deleted.objects,
                format_size(deletion.deleted.bytes),
                deletion.gone,
                deletion.changed,
                deletion.known,
                deletion.unnamable,
                deletion.failed,
                deletion.log.display()
            )),
            None if !self.is_delete => line("nothing was changed"),
            None => {}
        }
        if self.state.at.deletion.as_ref().is_some_and(|deletion| deletion.keeps_versions) {
            line(
                "the bucket keeps older versions, and they stay with their bytes: --all-versions deletes them too",
            );
        }
    }
}

/// A prefix as a terminal can show it.
fn shown(prefix: &str) -> String {
    match prefix {
        "" => "(top)".into(),
        odd if odd.contains(char::is_control) => format!("{odd:?}"),
        plain => plain.into(),
    }
}

fn sample(orphan: &Entry) -> Value {
    json!({ "key": orphan.key, "size": orphan.size, "modifiedAt": orphan.modified_at.map(rfc3339) })
}
