//! Brings events to the object store: accepts them, makes them durable, batches, compresses and uploads them. While the store
//! does not accept a batch, the batch waits on disk and is sent later.

pub mod accept;
pub mod archive;
mod batch;
mod health;
pub mod recover;
pub mod upload;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use wharfinger_engines::spool::{BatchContents, LeftoverSegment, SegmentFolder, Spool, SpoolStatus};
use wharfinger_events::body::{Envelope, Limits, LineBatch};
use wharfinger_events::name::BatchName;
use wharfinger_lifecycle::key::{EventsFolder, ObjectKey};
use wharfinger_stores::{BlobError, BlobStore, WriteMode};

use crate::clock::Clock;
use crate::config::{Ack, IngestSettings};
use crate::memory_budget::{MemoryBudget, Reservation};
use crate::telemetry::events::{self as metric};
use batch::{Append, Message, PackedBatch, PendingAck, Waiter, WriterOptions};
use health::Health;

/// The largest event, without the fields that are added to it.
const EVENT_BYTES_MAX: usize = 1 << 20;
const EVENT_DEPTH_MAX: usize = 64;
/// The timeout of one upload, without the time for its bytes.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout grows by the time that the bytes take at this rate.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;
/// The most threads that compress batches.
const PACKERS_MAX: usize = 4;

pub struct Ingest {
    settings: IngestSettings,
    instance: String,
    clock: Clock,
    store: Arc<dyn BlobStore>,
    spool: Arc<Spool>,
    budget: MemoryBudget,
    health: Health,
    inbox: Sender<Message>,
    packed: tokio::sync::Mutex<UnboundedReceiver<PackedBatch>>,
    /// Segments without a batch in memory: left by an earlier process, or not accepted by the store or the spool.
    pending_segments: Mutex<VecDeque<PendingSegment>>,
    /// The number of closed batches that are neither stored nor in the spool yet.
    in_flight: Arc<AtomicUsize>,
    /// Notified when there may be a batch on disk to upload.
    recovery_wakeup: Notify,
    /// The batch from disk that the store rejected last, if it has accepted nothing since.
    last_rejected_batch: Mutex<Option<BatchName>>,
    /// True when no more events are accepted.
    is_closed: RwLock<bool>,
    /// Holds the lock of our segment folder, so that no other process recovers our segments.
    _segments: Arc<SegmentFolder>,
}

struct PendingSegment {
    segment: LeftoverSegment,
    retry_at: Instant,
}

impl PendingSegment {
    fn now(segment: LeftoverSegment) -> PendingSegment {
        PendingSegment { segment, retry_at: Instant::now() }
    }
}

/// Why events were not accepted. The client may send them again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IngestError {
    #[error("Too many events wait to be stored. Try again later.")]
    MemoryFull,
    #[error(
        "The disk space for waiting events is nearly full and this tenant uses more than its share. \
         Events are accepted again when the object store has accepted some of them."
    )]
    OverTenantShare,
    #[error("The object store does not accept events now. Try again later.")]
    StoreDown,
    #[error("The server cannot write events to its disk. Try again later.")]
    DiskError,
    #[error("The server is stopping. Send the events again.")]
    Stopping,
}

impl Ingest {
    /// Finds what earlier processes left, and starts to accept events.
    pub fn open(
        settings: &IngestSettings,
        instance: &str,
        clock: Clock,
        store: Arc<dyn BlobStore>,
    ) -> Result<Ingest, String> {
        let spool = Spool::open(&settings.spool_dir, settings.spool_bytes_max)
            .map_err(|error| format!("DLQ_DIR: {}: {error}", settings.spool_dir.display()))?;
        // Opened in every mode, because an earlier process may have run with `INGEST_ACK=disk`.
        let (segments, left) = SegmentFolder::open(&settings.segments_dir)
            .map_err(|error| format!("WHARFINGER_DATA_DIR: {}: {error}", settings.segments_dir.display()))?;
        let segments = Arc::new(segments);
        let budget = MemoryBudget::new(settings.memory_bytes);
        let in_flight = Arc::new(AtomicUsize::new(0));
        let (packed_sender, packed) = unbounded_channel();
        let options = WriterOptions {
            batch_events: settings.batch_events,
            batch_bytes: settings.batch_bytes,
            batch_age: Duration::from_millis(settings.batch_age_ms),
            instance: instance.to_owned(),
            writes_segments: settings.ack == Ack::Disk,
            segments: segments.clone(),
            clock: clock.clone(),
            budget: budget.clone(),
            // Random, because two processes with the same numbers would overwrite each other's batches.
            counter: rand::random::<u64>() >> 16,
            in_flight: in_flight.clone(),
        };
        let packers = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
        let inbox = batch::start(options, packers.min(PACKERS_MAX), packed_sender)
            .map_err(|error: io::Error| format!("cannot start a thread for events: {error}"))?;
        if !left.is_empty() {
            tracing::info!(segments = left.len(), "events of an earlier process found, uploading them");
        }
        metric::begin();
        Ok(Ingest {
            settings: settings.clone(),
            instance: instance.to_owned(),
            clock,
            store,
            spool: Arc::new(spool),
            budget,
            health: Health::default(),
            inbox,
            packed: tokio::sync::Mutex::new(packed),
            pending_segments: Mutex::new(left.into_iter().map(PendingSegment::now).collect()),
            in_flight,
            recovery_wakeup: Notify::new(),
            last_rejected_batch: Mutex::new(None),
            is_closed: RwLock::new(false),
            _segments: segments,
        })
    }

    fn limits(&self) -> Limits {
        Limits {
            event_bytes_max: EVENT_BYTES_MAX.min(self.settings.inflated_bytes_max),
            depth_max: EVENT_DEPTH_MAX,
            lines_bytes_max: 2 * self.settings.inflated_bytes_max,
            batch_bytes: self.settings.batch_bytes,
            batch_events: self.settings.batch_events,
        }
    }

    fn envelope(&self, tenant: &str) -> Envelope {
        Envelope::new(self.clock.now().div_euclid(1_000), tenant, &self.instance)
    }

    /// Returns when the events are stored as `INGEST_ACK` says.
    async fn append(&self, pieces: Vec<LineBatch>, reservation: Reservation) -> Result<(), IngestError> {
        if pieces.is_empty() {
            return Ok(());
        }
        let (waiter, done) = match self.settings.ack {
            Ack::Memory => (Waiter::None, None),
            Ack::Disk => {
                let (sender, receiver) = oneshot::channel();
                (Waiter::OnDisk(sender), Some(receiver))
            }
            Ack::Stored if !self.health.is_down() || self.health.may_try() => {
                let (ack, receiver) = PendingAck::new(pieces.len());
                (Waiter::OnStored(ack), Some(receiver))
            }
            Ack::Stored => return Err(IngestError::StoreDown),
        };
        let append = Message::Append(Append { pieces, reservation, waiter });
        {
            let is_closed = self.is_closed.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            if *is_closed || self.inbox.send(append).is_err() {
                return Err(IngestError::Stopping);
            }
        }
        match done {
            None => Ok(()),
            Some(done) => done.await.unwrap_or(Err(IngestError::Stopping)),
        }
    }

    /// Stops accepting events. Accepted events are still stored.
    fn close(&self) {
        let mut is_closed = self.is_closed.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        *is_closed = true;
        // The writer has ended if this is the second call.
        let _ = self.inbox.send(Message::Close);
    }

    pub fn spool_status(&self) -> SpoolStatus {
        self.spool.status()
    }

    pub fn spool_bytes_max(&self) -> u64 {
        self.settings.spool_bytes_max
    }

    pub fn spool_age_ms_max(&self) -> i64 {
        self.settings.spool_age_ms_max
    }

    pub fn free_bytes(&self) -> usize {
        self.budget.free_bytes()
    }

    pub fn spool_folder(&self) -> &std::path::Path {
        self.spool.folder()
    }

    /// False after the store has rejected batches, until it accepts one.
    pub fn store_is_up(&self) -> bool {
        !self.health.is_down()
    }

    pub fn store_kind(&self) -> &'static str {
        self.store.kind()
    }

    fn pending_segments(&self) -> MutexGuard<'_, VecDeque<PendingSegment>> {
        self.pending_segments.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn last_rejected_batch(&self) -> MutexGuard<'_, Option<BatchName>> {
        self.last_rejected_batch.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) == 0
    }

    /// Tries one upload. A batch that is uploaded again has the same key.
    async fn put(&self, folder: EventsFolder, name: &BatchName, gz: Bytes) -> Result<(), BlobError> {
        let key = ObjectKey::events(folder, &name.object_path())
            .map_err(|bad| BlobError::Refused(format!("{name}: {bad}")))?;
        let timeout = ATTEMPT_TIMEOUT + Duration::from_secs(gz.len() as u64 / BYTES_PER_SECOND_MIN);
        let put = self.store.put(&key, gz, WriteMode::Overwrite);
        let late = |_| Err(BlobError::Unavailable("no answer in time".into()));
        let outcome = tokio::time::timeout(timeout, put).await.unwrap_or_else(late);
        match &outcome {
            Ok(()) => {
                *self.last_rejected_batch() = None;
                if self.health.record_success() {
                    tracing::info!("object store accepts events again");
                    self.recovery_wakeup.notify_one();
                }
            }
            Err(_) => {
                metric::put_failed();
                self.health.record_failure();
            }
        }
        outcome
    }

    fn mark_store_down(&self, error: &BlobError) {
        if self.health.mark_down(rand::random()) {
            tracing::error!(error = %error, "object store does not accept events, they wait on disk");
        }
    }

    /// Writes a batch to the spool on disk.
    async fn save_to_spool(
        &self,
        name: &BatchName,
        gz: Bytes,
        contents: BatchContents,
    ) -> Result<(), String> {
        let (spool, batch, events) = (self.spool.clone(), name.clone(), contents.events);
        let saving = tokio::task::spawn_blocking(move || spool.save(&batch, &gz, &contents));
        let saved = saving.await.map_err(|error| error.to_string())?;
        let evicted = saved.map_err(|error| error.to_string())?;
        metric::spooled(events);
        if evicted.files > 0 {
            metric::evicted(evicted.files, evicted.events);
            tracing::error!(
                files = evicted.files,
                events = evicted.events,
                "spool is full, oldest events dropped (DLQ_MAX_SIZE_BYTES)"
            );
        }
        self.recovery_wakeup.notify_one();
        Ok(())
    }
}

/// Removes a segment whose batch is stored or in the spool.
async fn remove_segment(path: PathBuf) {
    let removing = tokio::task::spawn_blocking(move || {
        if let Err(error) = std::fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            // The next start uploads its batch again, under the same key.
            tracing::warn!(file = %path.display(), error = %error, "cannot remove a segment");
        }
    });
    let _ = removing.await;
}
