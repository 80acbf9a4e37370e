//! Uploads closed batches, several concurrently, with retries. Batches that the store does not accept go to the spool.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wharfinger_engines::spool::LeftoverSegment;
use wharfinger_lifecycle::key::EventsFolder;
use wharfinger_stores::BlobError;

use super::batch::PackedBatch;
use super::recover::SEGMENT_RETRY_PAUSE;
use super::{Ingest, remove_segment};
use crate::config::Ack;
use crate::telemetry::events::{self as metric, Dropped};

const UPLOADS_MAX: usize = 4;
/// After this time without success a batch goes to the spool.
const DEADLINE: Duration = Duration::from_secs(10);
const RECHECK_PAUSE: Duration = Duration::from_millis(100);
/// How long a stopping process still uploads. Later batches go to the spool.
const UPLOADS_WHILE_STOPPING: Duration = Duration::from_secs(4);
/// The timeout of an attempt that is running when the process is told to stop.
const LAST_ATTEMPT: Duration = Duration::from_secs(3);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// Runs until no more events are accepted and all accepted events are stored or on disk.
pub async fn run(ingest: &Ingest, stop: &CancellationToken) {
    let mut packed = ingest.packed.lock().await;
    let mut in_flight = FuturesUnordered::new();
    let (mut is_open, mut disk_only_at): (bool, Option<Instant>) = (true, None);
    while is_open || !in_flight.is_empty() {
        let is_disk_only = disk_only_at.is_some_and(|at| Instant::now() >= at);
        let is_full = in_flight.len() >= UPLOADS_MAX;
        let may_take = is_open && (!is_full || is_disk_only || ingest.may_spill());
        tokio::select! {
            batch = packed.recv(), if may_take => match batch {
                Some(batch) => {
                    in_flight.push(ingest.store_or_spool(batch, is_full || is_disk_only, stop));
                }
                None => is_open = false,
            },
            Some(()) = in_flight.next() => {}
            // Check again: an upload may have ended, or the store may be down now.
            () = tokio::time::sleep(RECHECK_PAUSE), if is_open && !may_take => {}
            () = stop.cancelled(), if disk_only_at.is_none() => {
                disk_only_at = Some(Instant::now() + UPLOADS_WHILE_STOPPING);
                ingest.close();
            }
        }
    }
    stop.cancelled().await;
}

impl Ingest {
    /// Whether more batches are accepted than can be uploaded, so that they go to the spool: if the store is down, or if it
    /// has failed and memory is low.
    fn may_spill(&self) -> bool {
        self.health.is_down()
            || (self.health.is_in_doubt() && self.budget.free_bytes() < self.settings.memory_bytes / 2)
    }

    /// Uploads a batch, or writes it to the spool, and answers the clients that wait for it.
    async fn store_or_spool(&self, batch: PackedBatch, skip_store: bool, stop: &CancellationToken) {
        let stored = !skip_store && self.upload(&batch, stop).await;
        if stored {
            metric::stored(batch.contents.events);
        }
        for ack in &batch.acks {
            ack.batch_ended(stored);
        }
        match (stored, self.settings.ack) {
            (true, _) => {
                if let Some(segment) = batch.segment.clone() {
                    remove_segment(segment).await;
                }
            }
            // The clients got an error and send the events again.
            (false, Ack::Stored) => {}
            (false, Ack::Memory | Ack::Disk) => self.spool(&batch).await,
        }
        // Release the memory only when the batch is stored or on disk.
        drop((batch.reservation, batch.in_flight));
        if self.is_idle() {
            self.recovery_wakeup.notify_one();
        }
    }

    async fn upload(&self, batch: &PackedBatch, stop: &CancellationToken) -> bool {
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
            let retries = !is_trial
                && !stop.is_cancelled()
                && !self.health.is_down()
                && Instant::now() + pause < deadline;
            if !retries {
                self.mark_store_down(&error);
                return false;
            }
            let jitter = 0.5 + rand::random::<f64>();
            stop.run_until_cancelled(tokio::time::sleep(pause.mul_f64(jitter))).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn spool(&self, batch: &PackedBatch) {
        let Err(problem) = self.save_to_spool(&batch.name, batch.gz.clone(), batch.contents.clone()).await
        else {
            if let Some(segment) = batch.segment.clone() {
                remove_segment(segment).await;
            }
            return;
        };
        let events = batch.contents.events;
        match &batch.segment {
            // The batch is still on disk, in its segment.
            Some(segment) => {
                tracing::error!(error = %problem, events,
                    "cannot write a batch to the spool, it waits in its segment");
                self.retry_segment_later(
                    LeftoverSegment { name: batch.name.clone(), path: segment.clone() },
                    SEGMENT_RETRY_PAUSE,
                );
            }
            None => {
                metric::dropped(Dropped::NowhereToStore, events);
                tracing::error!(error = %problem, events, file = %batch.name,
                    "cannot write a batch to the store or to disk, its events are dropped");
            }
        }
    }
}
