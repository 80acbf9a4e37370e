//! Prints the report as a table, CSV or JSON.

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
        let checkpoint = &self.state.checkpoint;
        let totals = &checkpoint.totals;
        let (prefixes, others) = totals.by_prefix();
        let ages: Vec<Value> = totals
            .by_age()
            .map(|(age, count)| json!({ "age": age, "objects": count.objects, "bytes": count.bytes }))
            .collect();
        let rechecked = checkpoint.rechecked.unwrap_or_default();
        json!({
            "bucket": self.bucket.url,
            "keys": {
                "count": checkpoint.list.entries,
                "duplicates": checkpoint.list.duplicates,
                "outside": checkpoint.list.outside,
                "unstripped": checkpoint.list.unstripped,
                "skipped": checkpoint.list.skipped,
                "asOf": rfc3339(checkpoint.list.as_of),
            },
            "inventoryCreatedAt": checkpoint.listing.created_at().map(rfc3339),
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
                "rechecked": rechecked.checked,
                "foundByRecheck": rechecked.found,
                "unknown": rechecked.unknown,
                "samples": totals.missing_samples,
            },
            "dryRun": !self.is_delete,
            "deletion": checkpoint.deletion.as_ref().map(|deletion| json!({
                "objects": deletion.deleted.objects,
                "bytes": deletion.deleted.bytes,
                "alreadyDeleted": deletion.already_deleted,
                "changed": deletion.changed,
                "keyAdded": deletion.key_added,
                "invalidName": deletion.invalid_name,
                "failed": deletion.failed,
                "olderVersionsKept": deletion.keeps_versions,
                "log": deletion.log.display().to_string(),
            })),
            "refused": self.refused,
        })
    }

    /// All rows have the columns `part,name,objects,bytes`, so that programs can read them as one table.
    fn csv(&self) {
        let totals = &self.state.checkpoint.totals;
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
        if let Some(deletion) = &self.state.checkpoint.deletion {
            row("deletion", "deleted", deletion.deleted);
        }
    }

    fn table(&self) {
        let checkpoint = &self.state.checkpoint;
        let totals = &checkpoint.totals;
        let row = |name: &str, count: Count, note: &str| {
            line(
                format!("  {name:<10} {:>12}  {:>10}  {note}", count.objects, format_size(count.bytes))
                    .trim_end(),
            );
        };
        let list = &checkpoint.list;
        line(format!("{} and {} keys as of {}", self.bucket.url, list.entries, rfc3339(list.as_of)));
        line(format!("  {:<10} {:>12}  {:>10}", "", "objects", "bytes"));
        row("listed", totals.listed, "");
        row("kept", totals.kept, "");
        row("orphans", totals.orphans, "not on the list");
        row("young", totals.young, "not on the list, and younger than --grace");
        line(
            format!("  {:<10} {:>12}  {:>10}  {}", "missing", totals.missing, "", self.missing_note())
                .trim_end(),
        );
        self.notes();
        if totals.orphans.objects > 0 {
            self.orphans();
        }
        if !totals.missing_samples.is_empty() {
            line("examples of missing keys:");
            for key in totals.missing_samples.iter().take(10) {
                line(format!("  {key:?}"));
            }
        }
        self.deletion();
    }

    fn missing_note(&self) -> String {
        match self.state.checkpoint.rechecked {
            Some(rechecked) if rechecked.checked < self.state.checkpoint.totals.missing + rechecked.found => {
                format!("keys without an object; {} were checked again", rechecked.checked)
            }
            _ => "keys without an object".into(),
        }
    }

    fn notes(&self) {
        let (list, totals) = (&self.state.checkpoint.list, &self.state.checkpoint.totals);
        let note = |count: u64, what: &str| {
            if count > 0 {
                line(format!("  {count} {what}"));
            }
        };
        note(list.duplicates, "keys are on the list more than once");
        note(list.outside, "keys of the list are outside the prefix and were skipped");
        note(list.unstripped, "keys of the list do not begin with --strip-prefix and were skipped");
        note(list.skipped, "rows of the list have no key");
        note(list.multiline_rows, "rows of the list have several lines: is a quote missing?");
        note(totals.folders, "empty objects mark folders and were skipped");
        note(totals.resized.objects, "objects have another size than on the list");
        if totals.missing > 0
            && let Some(at) = self.state.checkpoint.listing.created_at()
        {
            line(format!(
                "  the inventory was made at {}: objects that were stored later count as missing",
                rfc3339(at)
            ));
        }
        let unknown = self.state.checkpoint.rechecked.map_or(0, |rechecked| rechecked.unknown);
        note(unknown, "missing keys could not be checked again: the store did not answer");
    }

    fn orphans(&self) {
        let totals = &self.state.checkpoint.totals;
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
            row(total.count, &printable(&total.prefix));
        }
        if others.objects > 0 {
            row(others, "(others)");
        }
        line("examples of orphans:");
        for orphan in totals.orphan_samples.iter().take(10) {
            let at = orphan.modified_at.map(rfc3339).unwrap_or_default();
            line(format!("  {at}  {:>10}  {:?}", format_size(orphan.size.unwrap_or(0)), orphan.key));
        }
    }

    fn deletion(&self) {
        match &self.state.checkpoint.deletion {
            Some(deletion) => line(format!(
                "deleted {} objects, {}; {} were already deleted, {} have changed, {} have a key now, {} have an \
                 invalid name, {} failed: see {}",
                deletion.deleted.objects,
                format_size(deletion.deleted.bytes),
                deletion.already_deleted,
                deletion.changed,
                deletion.key_added,
                deletion.invalid_name,
                deletion.failed,
                deletion.log.display()
            )),
            None if !self.is_delete => line("nothing was changed"),
            None => {}
        }
        if self.state.checkpoint.deletion.as_ref().is_some_and(|deletion| deletion.keeps_versions) {
            line("the bucket keeps the older versions of deleted objects: --all-versions deletes them too");
        }
    }
}

/// A prefix without control characters.
fn printable(prefix: &str) -> String {
    match prefix {
        "" => "(no folder)".into(),
        odd if odd.contains(char::is_control) => format!("{odd:?}"),
        plain => plain.into(),
    }
}

fn sample(orphan: &Entry) -> Value {
    json!({ "key": orphan.key, "size": orphan.size, "modifiedAt": orphan.modified_at.map(rfc3339) })
}
