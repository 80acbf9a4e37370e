//! Uploads what waits on disk, oldest first, one batch at a time. It runs without pauses while there are no new batches, and
//! for a small share of the time under load. While the store is down, it only tries one batch from time to time.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wharfinger_engines::spool::{BatchContents, LeftoverSegment, SpooledBatch};
use wharfinger_events::inspect::{Inspection, complete_lines, inspect};
use wharfinger_events::name::BatchName;
use wharfinger_events::pack::Packer;
use wharfinger_events::tenants::bytes_by_tenant;
use wharfinger_lifecycle::key::{EventsFolder, ObjectKey};
use wharfinger_stores::BlobError;

use super::{ATTEMPT_TIMEOUT, Ingest, PendingSegment, remove_segment};
use crate::telemetry::events as metric;

/// The longest sleep while there is nothing to do.
const PAUSE: Duration = Duration::from_secs(1);
/// Under load, the pause after a batch is this many times the duration of its upload. So this loop uses a fifth of the time of
/// one upload, beside the four uploads of new batches: about a twentieth of the upload capacity.
const SHARE: u32 = 4;
const SHARE_PAUSE_MIN: Duration = Duration::from_millis(20);
/// The pause before a rejected batch is tried again. Other batches continue in the meantime.
const REFUSED_MS: i64 = 10_000;
/// The pause before a batch that could not be read or removed is tried again.
const UNREADABLE_RETRY_MS: i64 = 60_000;
/// The same, for segments.
pub(super) const SEGMENT_RETRY_PAUSE: Duration = Duration::from_secs(10);
const AGE_PAUSE_MS: i64 = 10_000;

pub async fn run(ingest: &Ingest, stop: &CancellationToken) {
    let mut share_due = Instant::now();
    while !stop.is_cancelled() {
        if ingest.health.is_down() {
            ingest.spool_pending_segments().await;
        }
        let wait_until = match (ingest.has_work(), ingest.health.retry_at()) {
            (false, _) => Some(Instant::now() + PAUSE),
            (true, Some(until)) => Some(until),
            (true, None) if ingest.is_idle() => None,
            (true, None) => Some(share_due),
        };
        if let Some(until) = wait_until.filter(|until| *until > Instant::now()) {
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = ingest.recovery_wakeup.notified() => {}
                () = stop.cancelled() => {}
            }
        } else if ingest.health.may_try() {
            let started = Instant::now();
            let was_tried = match (ingest.take_pending_segment(), ingest.spool.oldest(ingest.clock.now())) {
                (Some(segment), _) => ingest.recover_segment(segment).await,
                (None, Some(batch)) => {
                    ingest.spool.set_sending(Some(&batch.name));
                    let was_tried = ingest.recover_batch(batch).await;
                    ingest.spool.set_sending(None);
                    was_tried
                }
                (None, None) => false,
            };
            if !was_tried {
                ingest.health.trial_unused();
            }
            share_due = Instant::now() + (started.elapsed() * SHARE).max(SHARE_PAUSE_MIN);
        }
    }
}

/// Removes batches that are older than `DLQ_MAX_AGE`, but only while the store is down or has rejected all that are
/// left. A server that was down for a week first uploads what it has.
pub async fn limit_age(ingest: &Ingest, stop: &CancellationToken) {
    while !stop.is_cancelled() {
        let before = (ingest.clock.now() - ingest.settings.spool_age_ms_max).div_euclid(1_000);
        let spool = ingest.spool.clone();
        if ingest.may_expire()
            && let Ok(gone) = tokio::task::spawn_blocking(move || spool.expire(before)).await
            && gone.files > 0
        {
            metric::expired(gone.files, gone.events);
            tracing::error!(
                files = gone.files,
                events = gone.events,
                "events that waited too long were dropped (DLQ_MAX_AGE)"
            );
        }
        let next = ingest.clock.now() + AGE_PAUSE_MS;
        stop.run_until_cancelled(ingest.clock.sleep_until(next)).await;
    }
}

/// The result of uploading one batch.
enum Outcome {
    /// With the number of events that are under RAW now.
    Stored { events: u64 },
    /// To be tried again later.
    Failed(BlobError),
}

impl Ingest {
    /// Whether old batches may be removed: the store is down, or it has rejected all batches that are left.
    fn may_expire(&self) -> bool {
        self.health.is_down() || self.spool.oldest(self.clock.now()).is_none()
    }

    fn has_work(&self) -> bool {
        let now = Instant::now();
        self.pending_segments().iter().any(|pending_segments| pending_segments.retry_at <= now)
            || self.spool.oldest(self.clock.now()).is_some()
    }

    /// Uploads a batch from the spool. Returns whether the store was tried.
    async fn recover_batch(&self, batch: SpooledBatch) -> bool {
        if !batch.is_stored {
            let Some(gz) = self.read_batch(&batch).await else { return false };
            match self.store_inspected(&batch.name, gz).await {
                Outcome::Stored { events } => metric::reuploaded(events),
                Outcome::Failed(error) => {
                    self.spool.defer(&batch.name, self.clock.now() + REFUSED_MS, false);
                    self.rejected(&batch.name, &error);
                    return true;
                }
            }
        }
        let (spool, name) = (self.spool.clone(), batch.name.clone());
        let removed = tokio::task::spawn_blocking(move || spool.remove(&name)).await;
        if let Ok(Err(error)) = removed {
            tracing::error!(file = %batch.name, error = %error,
                "cannot remove a stored batch from the spool");
            self.spool.defer(&batch.name, self.clock.now() + UNREADABLE_RETRY_MS, true);
        }
        !batch.is_stored
    }

    /// Handles a rejected batch. The cause may be this batch alone; if another was rejected just before, the store is down.
    fn rejected(&self, name: &BatchName, error: &BlobError) {
        tracing::warn!(file = %name, error = %error, "object store rejected a batch, trying again later");
        let before = self.last_rejected_batch().replace(name.clone());
        if before.is_some_and(|before| before != *name) || self.health.is_down() {
            self.mark_store_down(error);
        }
    }

    async fn read_batch(&self, batch: &SpooledBatch) -> Option<Vec<u8>> {
        let (spool, name) = (self.spool.clone(), batch.name.clone());
        match tokio::task::spawn_blocking(move || spool.read(&name)).await.ok()? {
            Ok(gz) => Some(gz),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                tracing::warn!(file = %batch.name, "a batch of the spool was removed by another program");
                let (spool, name) = (self.spool.clone(), batch.name.clone());
                let _ = tokio::task::spawn_blocking(move || spool.remove(&name)).await;
                None
            }
            Err(error) => {
                tracing::error!(file = %batch.name, error = %error, "cannot read an event file on disk, it is tried again later");
                self.spool.defer(&batch.name, self.clock.now() + UNREADABLE_RETRY_MS, false);
                None
            }
        }
    }

    /// Uploads a batch from disk. Only its content decides whether it is damaged, never an error of the store.
    async fn store_inspected(&self, name: &BatchName, gz: Vec<u8>) -> Outcome {
        let gz = Bytes::from(gz);
        let content = gz.clone();
        let inspected = tokio::task::spawn_blocking(move || inspect(&content)).await;
        let inspected = match inspected {
            Ok(inspected) => inspected,
            Err(error) => return Outcome::Failed(BlobError::Unavailable(error.to_string())),
        };
        let stored = match inspected {
            Inspection::Intact { lines } => self.put(EventsFolder::Raw, name, gz).await.map(|()| lines),
            Inspection::Damaged { why, readable, lines } => {
                tracing::error!(file = %name, problem = why, readable = lines,
                    "a batch of the spool is damaged, its readable lines are stored and the original is kept in RAW_DLQ");
                self.store_damaged(name, gz, readable).await.map(|()| lines)
            }
        };
        match stored {
            Ok(events) => {
                metric::stored(events);
                Outcome::Stored { events }
            }
            Err(error) => Outcome::Failed(error),
        }
    }

    async fn store_damaged(
        &self,
        name: &BatchName,
        gz: Bytes,
        readable: Option<Vec<u8>>,
    ) -> Result<(), BlobError> {
        // RAW comes last, because a batch that is in RAW counts as done.
        self.put(EventsFolder::Damaged, name, gz).await?;
        if let Some(readable) = readable {
            self.put(EventsFolder::Raw, name, readable.into()).await?;
        }
        metric::damaged();
        Ok(())
    }

    /// Uploads a segment. Returns whether the store was tried.
    async fn recover_segment(&self, segment: LeftoverSegment) -> bool {
        let Some((gz, BatchContents { events, .. })) = self.pack_segment(&segment).await else {
            return false;
        };
        if self.is_stored(&segment.name).await {
            self.health.record_success();
            remove_segment(segment.path).await;
            return true;
        }
        match self.store_inspected(&segment.name, gz).await {
            Outcome::Stored { .. } => {
                tracing::info!(file = %segment.name, events, "segment recovered and stored");
                remove_segment(segment.path).await;
            }
            Outcome::Failed(error) => {
                self.rejected(&segment.name, &error);
                self.retry_segment_later(segment, SEGMENT_RETRY_PAUSE);
            }
        }
        true
    }

    /// Whether the batch is already stored. The stored batch is complete, while a faulty disk may have lost a part of the segment.
    async fn is_stored(&self, name: &BatchName) -> bool {
        let Ok(key) = ObjectKey::events(EventsFolder::Raw, &name.object_path()) else { return false };
        let asked = tokio::time::timeout(ATTEMPT_TIMEOUT, self.store.head(&key, None)).await;
        // Without the right to read, the answer is an error and the batch is uploaded again.
        matches!(asked, Ok(Ok(_)))
    }

    /// Compresses a segment. None: it is empty, or it cannot be read now.
    async fn pack_segment(&self, segment: &LeftoverSegment) -> Option<(Vec<u8>, BatchContents)> {
        let path = segment.path.clone();
        let packing =
            tokio::task::spawn_blocking(move || -> std::io::Result<Option<(Vec<u8>, BatchContents)>> {
                let mut lines = std::fs::read(path)?;
                let (end, events) = complete_lines(&lines);
                lines.truncate(end);
                let contents = BatchContents { events, tenants: bytes_by_tenant(&lines) };
                Ok((end > 0).then(|| (Packer::default().pack(&lines), contents)))
            });
        match packing.await.ok()? {
            Ok(Some(packed)) => Some(packed),
            Ok(None) => {
                remove_segment(segment.path.clone()).await;
                None
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::error!(file = %segment.path.display(), error = %error, "cannot read a segment");
                self.retry_segment_later(segment.clone(), SEGMENT_RETRY_PAUSE);
                None
            }
        }
    }

    /// Adds a segment to be tried again after this time.
    pub(super) fn retry_segment_later(&self, segment: LeftoverSegment, rest: Duration) {
        self.pending_segments().push_back(PendingSegment { segment, retry_at: Instant::now() + rest });
        self.recovery_wakeup.notify_one();
    }

    fn take_pending_segment(&self) -> Option<LeftoverSegment> {
        let now = Instant::now();
        let mut pending_segments = self.pending_segments();
        let at = pending_segments.iter().position(|pending_segments| pending_segments.retry_at <= now)?;
        pending_segments.remove(at).map(|pending_segments| pending_segments.segment)
    }

    /// Moves segments to the spool while the store is down. There they are compressed and counted.
    async fn spool_pending_segments(&self) {
        while let Some(segment) = self.take_pending_segment() {
            let Some((gz, contents)) = self.pack_segment(&segment).await else { continue };
            match self.save_to_spool(&segment.name, gz.into(), contents).await {
                Ok(()) => remove_segment(segment.path).await,
                Err(problem) => {
                    tracing::error!(error = %problem, "cannot write a segment to the spool");
                    self.retry_segment_later(segment, SEGMENT_RETRY_PAUSE);
                }
            }
        }
    }
}
