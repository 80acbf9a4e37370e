//! A list of the API that `tail` reads again and again: what is new in it since the last time.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::remote::{Answer, CallFailure, Reader};
use super::event::{Event, EventKind};
use crate::clock::{parse_rfc3339, rfc3339};
use crate::sweeps::Sweep;

/// An entry may become visible this long after its time: the time of a delete is taken before the delete, and
/// transactions of several processes do not commit in the order of their times.
const DELAY_MS_MAX: i64 = 300_000;
/// Most reads end at a page without new entries. One in this many reads all entries of the last DELAY_MS_MAX.
const THOROUGH_EVERY: u32 = 15;

pub(super) struct Source {
    kind: EventKind,
    pub(super) is_left_out: bool,
    reads: u32,
    /// Entries from before this time are printed, or too old. None before the first read.
    begin: Option<i64>,
    /// The printed entries since `begin`, with their times.
    seen: BTreeMap<String, i64>,
    /// Runs that had not ended when they were read last.
    unfinished: BTreeSet<String>,
}

impl Source {
    /// Every list that `tail` follows.
    pub(super) fn all() -> Vec<Source> {
        let runs = Sweep::ALL.map(EventKind::SweepRun);
        let kinds = [EventKind::Deletion].into_iter().chain(runs).chain([EventKind::Notification]);
        let source = |kind| Source {
            kind,
            is_left_out: false,
            reads: 0,
            begin: None,
            seen: BTreeMap::new(),
            unfinished: BTreeSet::new(),
        };
        kinds.map(source).collect()
    }

    /// What its entries are, for messages.
    pub(super) fn what(&self) -> &'static str {
        self.kind.what()
    }

    /// The new entries. If a call fails, nothing counts as printed. The first read without `since_ms` returns none: its
    /// entries are from before the start.
    pub(super) async fn read(
        &mut self,
        reader: &Reader,
        since_ms: Option<i64>,
    ) -> Result<Vec<Event>, CallFailure> {
        let is_thorough = self.reads.is_multiple_of(THOROUGH_EVERY);
        let mut begin = self.begin;
        let (mut fresh, mut unfinished) = (Vec::new(), BTreeSet::new());
        let mut not_met = self.unfinished.clone();
        let mut newest = i64::MIN;
        let mut cursor: Option<String> = None;
        loop {
            let Answer { body, server_time } = reader.get(&self.path(begin, cursor.as_deref())).await?;
            let entries = body[self.kind.list()].as_array().map_or(&[][..], Vec::as_slice);
            let from = *begin.get_or_insert_with(|| self.first_begin(entries, server_time, since_ms));
            let (known_before, mut is_past_begin) = (fresh.len(), false);
            for entry in entries {
                let id = self.kind.id_of(entry);
                not_met.remove(&id);
                match self.time_of(entry) {
                    None => drop(unfinished.insert(id)),
                    Some(at) if at < from => is_past_begin = true,
                    Some(at) => {
                        newest = newest.max(at);
                        if !self.seen.contains_key(&id) {
                            fresh.push((id, Event { kind: self.kind, at, entry: entry.clone() }));
                        }
                    }
                }
            }
            let has_new = fresh.len() > known_before;
            let is_enough = (is_past_begin && self.kind.is_sorted_by_time()) || !(has_new || is_thorough);
            cursor = body["nextCursor"].as_str().map(str::to_owned);
            if cursor.is_none() || (is_enough && not_met.is_empty()) {
                break;
            }
        }
        let is_before_start = self.begin.is_none() && since_ms.is_none();
        let from = begin.unwrap_or(i64::MIN).max(newest.saturating_sub(DELAY_MS_MAX));
        (self.begin, self.unfinished) = (Some(from), unfinished);
        self.reads = self.reads.wrapping_add(1);
        self.seen.extend(fresh.iter().map(|(id, event)| (id.clone(), event.at)));
        self.seen.retain(|_, at| *at >= from);
        let events = fresh.into_iter().map(|(_, event)| event);
        Ok(events.filter(|event| !is_before_start && !event.is_idle()).collect())
    }

    fn path(&self, begin: Option<i64>, cursor: Option<&str>) -> String {
        let mut path = self.kind.path();
        if let (EventKind::Deletion, Some(begin)) = (self.kind, begin.filter(|begin| *begin > 0)) {
            path += &format!("&since={}", rfc3339(begin));
        }
        if let Some(cursor) = cursor {
            path += &format!("&cursor={cursor}");
        }
        path
    }

    /// Where the first read begins. Without `since_ms` no clock is asked: what is in the list is known.
    fn first_begin(&self, entries: &[Value], server_time: Option<i64>, since_ms: Option<i64>) -> i64 {
        let newest = entries.iter().filter_map(|entry| self.time_of(entry)).max();
        match (since_ms, server_time) {
            (Some(since_ms), Some(now)) => now.saturating_sub(since_ms),
            (Some(_), None) => i64::MIN,
            (None, _) => newest.map_or(i64::MIN, |at| at.saturating_sub(DELAY_MS_MAX)),
        }
    }

    fn time_of(&self, entry: &Value) -> Option<i64> {
        parse_rfc3339(entry[self.kind.time()].as_str()?)
    }
}
