//! Closed batches to the store, several at a time, again after failures; what it does not take goes to the spool.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wharfinger_engines::spool::Leftover;
use wharfinger_lifecycle::key::EventsFolder;
use wharfinger_stores::BlobError;

use super::batch::Packed;
use super::recover::PARKED_PAUSE;
use super::{Ingest, remove_segment};
use crate::config::Ack;
use crate::telemetry::events::{self as metric, Dropped};

const UPLOADS_MAX: usize = 4;
/// After this a batch waits on disk.
const DEADLINE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// A process that stops uploads for so long; the rest goes to disk.
const STOPPING_UPLOADS: Duration = Duration::from_secs(4);
/// Of an attempt that is under way when the process is told to stop.
const LAST_ATTEMPT: Duration = Duration::from_secs(3);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// Until nothing is taken any more and all that was is stored or on disk.
pub async fn run(ingest: &Ingest, stop: &CancellationToken) {
    let mut packed = ingest.packed.lock().await;
    let mut under_way = FuturesUnordered::new();
    let (mut is_open, mut hurries_at): (bool, Option<Instant>) = (true, None);
    while is_open || !under_way.is_empty() {
        let hurries = hurries_at.is_some_and(|at| Instant::now() >= at);
        let is_full = under_way.len() >= UPLOADS_MAX;
        let may_take = is_open && (!is_full || hurries || ingest.spills());
        tokio::select! {
            batch = packed.recv(), if may_take => match batch {
                Some(batch) => {
                    under_way.push(ingest.store_or_spool(batch, is_full || hurries, stop));
                }
                None => is_open = false,
            },
            Some(()) = under_way.next() => {}
            // Meanwhile there may be another way for it.
            () = tokio::time::sleep(LOOK_AGAIN), if is_open && !may_take => {}
            () = stop.cancelled(), if hurries_at.is_none() => {
                hurries_at = Some(Instant::now() + STOPPING_UPLOADS);
                ingest.close();
            }
        }
    }
    stop.cancelled().await;
}

impl Ingest {
    /// A store that is down gets nothing but trials. One that only failed is waited for while there is room.
    fn spills(&self) -> bool {
        self.health.is_down()
            || (self.health.is_in_doubt() && self.budget.free_bytes() < self.settings.memory_bytes / 2)
    }

    /// Brings a batch to the store or, as a rule, to disk; whoever waits for it is told.
    async fn store_or_spool(&self, batch: Packed, goes_to_disk: bool, stop: &CancellationToken) {
        let stored = !goes_to_disk && self.upload(&batch, stop).await;
        if stored {
            metric::stored(batch.contents.events);
        }
        for ticket in &batch.tickets {
            ticket.punch(stored);
        }
        match (stored, self.settings.ack) {
            (true, _) => {
                if let Some(segment) = batch.segment.clone() {
                    remove_segment(segment).await;
                }
            }
            // They were told that it is not stored, and send it again.
            (false, Ack::Stored) => {}
            (false, Ack::Memory | Ack::Disk) => self.spool(&batch).await,
        }
        // Only now is there room for others.
        drop((batch.hold, batch.under_way));
        if self.is_idle() {
            self.recovery_wakeup.notify_one();
        }
    }

    async fn upload(&self, batch: &Packed, stop: &CancellationToken) -> bool {
        let is_trial = self.health.is_down();
        if is_trial && !(self.settings.ack == Ack::Stored || self.health.may_try()) {
            return false;
        }
        let deadline = Instant::now() + DEADLINE;
        let mut pause = PAUSE_MIN;
        loop {
            let no_time_left = async {
                stop.cancelled().await;
                tokio::time::sleep(LAST_ATTEMPT).await;
            };
            let attempt = self.put(EventsFolder::Raw, &batch.name, batch.gz.clone());
            let error = tokio::select! {
                stored = attempt => match stored {
                    Ok(()) => return true,
                    Err(error) => error,
                },
                () = no_time_left => BlobError::Unavailable("the process is stopping".into()),
            };
            let goes_on = !is_trial
                && !stop.is_cancelled()
                && !self.health.is_down()
                && Instant::now() + pause < deadline;
            if !goes_on {
                self.give_up_for_now(&error);
                return false;
            }
            let jitter = 0.5 + rand::random::<f64>();
            stop.run_until_cancelled(tokio::time::sleep(pause.mul_f64(jitter))).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn spool(&self, batch: &Packed) {
        let Err(problem) = self.save(&batch.name, batch.gz.clone(), batch.contents.clone()).await else {
            if let Some(segment) = batch.segment.clone() {
                remove_segment(segment).await;
            }
            return;
        };
        let events = batch.contents.events;
        match &batch.segment {
            // It is on disk already, if not where it should be.
            Some(segment) => {
                tracing::error!(error = %problem, events,
                    "a batch could not be put into the spool and waits in its segment");
                self.park(Leftover { name: batch.name.clone(), path: segment.clone() }, PARKED_PAUSE);
            }
            None => {
                metric::dropped(Dropped::NowhereToStore, events);
                tracing::error!(error = %problem, events, file = %batch.name,
                    "neither the store nor the disk took a batch: its events are dropped");
            }
        }
    }
}
