//! What waits on disk goes to the store, the oldest first, one at a time: while there is nothing newer to do back to back,
//! under load for a small share of the time, and while the store is down not at all but for a trial now and then.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wharfinger_engines::spool::{Contents, Held, Leftover};
use wharfinger_events::examine::{Examined, examine, whole_lines};
use wharfinger_events::name::BatchName;
use wharfinger_events::pack::Packer;
use wharfinger_events::tenants::bytes_by_tenant;
use wharfinger_lifecycle::key::{EventsFolder, ObjectKey};
use wharfinger_stores::BlobError;

use super::{ATTEMPT_TIMEOUT, Ingest, Parked, remove_segment};
use crate::telemetry::events as metric;

/// Of something to do, if nobody wakes it.
const PAUSE: Duration = Duration::from_secs(1);
/// Under load a turn comes after so many times what the last one took: a fifth of the time, beside four that upload what
/// is new, so that a twentieth of what the store can take goes to what waits.
const SHARE: u32 = 4;
const SHARE_PAUSE_MIN: Duration = Duration::from_millis(20);
/// One that the store refuses is offered again after this; the others go on meanwhile.
const REFUSED_MS: i64 = 10_000;
/// What cannot be read or removed is looked at again after this.
const ASIDE_MS: i64 = 60_000;
/// The same, for segments.
pub(super) const PARKED_PAUSE: Duration = Duration::from_secs(10);
const AGE_PAUSE_MS: i64 = 10_000;

pub async fn run(ingest: &Ingest, stop: &CancellationToken) {
    let mut share_due = Instant::now();
    while !stop.is_cancelled() {
        if ingest.health.is_down() {
            ingest.spool_parked().await;
        }
        let wait_until = match (ingest.has_work(), ingest.health.rests_until()) {
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
            let is_tried = match (ingest.take_parked(), ingest.spool.oldest(ingest.clock.now())) {
                (Some(segment), _) => ingest.recover_segment(segment).await,
                (None, Some(held)) => {
                    ingest.spool.send(Some(&held.name));
                    let is_tried = ingest.recover_batch(held).await;
                    ingest.spool.send(None);
                    is_tried
                }
                (None, None) => false,
            };
            if !is_tried {
                ingest.health.was_not_tried();
            }
            share_due = Instant::now() + (started.elapsed() * SHARE).max(SHARE_PAUSE_MIN);
        }
    }
}

/// Removes what has waited for too long, but nothing that the store would take: what was down for a week comes up, and
/// first of all offers what it has.
pub async fn limit_age(ingest: &Ingest, stop: &CancellationToken) {
    while !stop.is_cancelled() {
        let before = (ingest.clock.now() - ingest.settings.spool_age_ms_max).div_euclid(1_000);
        let spool = ingest.spool.clone();
        if ingest.may_give_up()
            && let Ok(gone) = tokio::task::spawn_blocking(move || spool.expire(before)).await
            && gone.files > 0
        {
            metric::expired(gone.files, gone.events);
            tracing::error!(
                files = gone.files,
                events = gone.events,
                "events that waited for too long were dropped (DLQ_MAX_AGE)"
            );
        }
        let next = ingest.clock.now() + AGE_PAUSE_MS;
        stop.run_until_cancelled(ingest.clock.sleep_until(next)).await;
    }
}

/// What came of one batch.
enum Outcome {
    Stored,
    /// Again later.
    NotNow(BlobError),
}

impl Ingest {
    /// Whether all that waits was offered, in vain: the store is down, or what is left rests because it was refused.
    fn may_give_up(&self) -> bool {
        self.health.is_down() || self.spool.oldest(self.clock.now()).is_none()
    }

    fn has_work(&self) -> bool {
        let now = Instant::now();
        self.parked().iter().any(|parked| parked.rests_until <= now)
            || self.spool.oldest(self.clock.now()).is_some()
    }

    /// Answers whether the store was asked.
    async fn recover_batch(&self, held: Held) -> bool {
        if !held.is_stored {
            let Some(gz) = self.read_batch(&held).await else { return false };
            match self.store_examined(&held.name, gz).await {
                Outcome::Stored => metric::reuploaded(held.events),
                Outcome::NotNow(error) => {
                    self.spool.set_aside(&held.name, self.clock.now() + REFUSED_MS, false);
                    self.refused(&held.name, &error);
                    return true;
                }
            }
        }
        let (spool, name) = (self.spool.clone(), held.name.clone());
        let removed = tokio::task::spawn_blocking(move || spool.remove(&name)).await;
        if let Ok(Err(error)) = removed {
            tracing::error!(file = %held.name, error = %error,
                "a batch is stored and could not be removed from the spool");
            self.spool.set_aside(&held.name, self.clock.now() + ASIDE_MS, true);
        }
        !held.is_stored
    }

    /// Something may be wrong with this one alone; if another was refused just before, it is the store.
    fn refused(&self, name: &BatchName, error: &BlobError) {
        tracing::warn!(file = %name, error = %error, "a batch was not taken by the store and is offered again");
        let before = self.last_refused().replace(name.clone());
        if before.is_some_and(|before| before != *name) || self.health.is_down() {
            self.give_up_for_now(error);
        }
    }

    async fn read_batch(&self, held: &Held) -> Option<Vec<u8>> {
        let (spool, name) = (self.spool.clone(), held.name.clone());
        match tokio::task::spawn_blocking(move || spool.read(&name)).await.ok()? {
            Ok(gz) => Some(gz),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                tracing::warn!(file = %held.name, "a batch of the spool was taken away by somebody else");
                let (spool, name) = (self.spool.clone(), held.name.clone());
                let _ = tokio::task::spawn_blocking(move || spool.remove(&name)).await;
                None
            }
            Err(error) => {
                tracing::error!(file = %held.name, error = %error, "a batch of the spool cannot be read");
                self.spool.set_aside(&held.name, self.clock.now() + ASIDE_MS, false);
                None
            }
        }
    }

    /// Only what is in it decides whether it is damaged, never what the store says.
    async fn store_examined(&self, name: &BatchName, gz: Vec<u8>) -> Outcome {
        let gz = Bytes::from(gz);
        let looking = gz.clone();
        let examined = tokio::task::spawn_blocking(move || examine(&looking)).await;
        let examined = match examined {
            Ok(examined) => examined,
            Err(error) => return Outcome::NotNow(BlobError::Unavailable(error.to_string())),
        };
        let stored = match examined {
            Examined::Sound { lines } => self.put(EventsFolder::Raw, name, gz).await.map(|()| lines),
            Examined::Damaged { why, readable, lines } => {
                tracing::error!(file = %name, problem = why, readable = lines,
                    "a batch of the spool is damaged: what can be read is stored, and the whole under RAW_DLQ");
                self.store_damaged(name, gz, readable).await.map(|()| lines)
            }
        };
        match stored {
            Ok(events) => {
                metric::stored(events);
                Outcome::Stored
            }
            Err(error) => Outcome::NotNow(error),
        }
    }

    async fn store_damaged(
        &self,
        name: &BatchName,
        gz: Bytes,
        readable: Option<Vec<u8>>,
    ) -> Result<(), BlobError> {
        // What is in RAW counts as done: it comes last.
        self.put(EventsFolder::Damaged, name, gz).await?;
        if let Some(readable) = readable {
            self.put(EventsFolder::Raw, name, readable.into()).await?;
        }
        metric::damaged();
        Ok(())
    }

    /// Answers whether the store was asked.
    async fn recover_segment(&self, segment: Leftover) -> bool {
        let Some((gz, Contents { events, .. })) = self.pack_segment(&segment).await else { return false };
        if self.is_stored(&segment.name).await {
            self.health.succeeded();
            remove_segment(segment.path).await;
            return true;
        }
        match self.store_examined(&segment.name, gz).await {
            Outcome::Stored => {
                tracing::info!(file = %segment.name, events, "a segment was taken up and stored");
                remove_segment(segment.path).await;
            }
            Outcome::NotNow(error) => {
                self.refused(&segment.name, &error);
                self.park(segment, PARKED_PAUSE);
            }
        }
        true
    }

    /// A batch is stored whole, as it was in memory. What a disk that lied has left of its segment is less than that.
    async fn is_stored(&self, name: &BatchName) -> bool {
        let Ok(key) = ObjectKey::events(EventsFolder::Raw, &name.place()) else { return false };
        let asked = tokio::time::timeout(ATTEMPT_TIMEOUT, self.store.head(&key, None)).await;
        // Who may only write here is told no, and writes over it.
        matches!(asked, Ok(Ok(_)))
    }

    /// None: there is nothing in it, or it cannot be read now.
    async fn pack_segment(&self, segment: &Leftover) -> Option<(Vec<u8>, Contents)> {
        let path = segment.path.clone();
        let packing = tokio::task::spawn_blocking(move || -> std::io::Result<Option<(Vec<u8>, Contents)>> {
            let mut lines = std::fs::read(path)?;
            let (end, events) = whole_lines(&lines);
            lines.truncate(end);
            let contents = Contents { events, tenants: bytes_by_tenant(&lines) };
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
                tracing::error!(file = %segment.path.display(), error = %error, "a segment cannot be read");
                self.park(segment.clone(), PARKED_PAUSE);
                None
            }
        }
    }

    /// A segment that is looked at again after this: its batch is not in memory any more.
    pub(super) fn park(&self, segment: Leftover, rest: Duration) {
        self.parked().push_back(Parked { segment, rests_until: Instant::now() + rest });
        self.recovery_wakeup.notify_one();
    }

    fn take_parked(&self) -> Option<Leftover> {
        let now = Instant::now();
        let mut parked = self.parked();
        let at = parked.iter().position(|parked| parked.rests_until <= now)?;
        parked.remove(at).map(|parked| parked.segment)
    }

    /// While the store is down segments become batches of the spool, where they are counted and packed.
    async fn spool_parked(&self) {
        while let Some(segment) = self.take_parked() {
            let Some((gz, contents)) = self.pack_segment(&segment).await else { continue };
            match self.save(&segment.name, gz.into(), contents).await {
                Ok(()) => remove_segment(segment.path).await,
                Err(problem) => {
                    tracing::error!(error = %problem, "a segment could not be put into the spool");
                    self.park(segment, PARKED_PAUSE);
                }
            }
        }
    }
}
