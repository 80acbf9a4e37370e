//! Events on their way to the object store: accepted, made durable, batched, packed and stored. What the store does not take
//! waits on disk and goes on when it does.

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
use wharfinger_engines::spool::{Contents, Leftover, SegmentFolder, Spool, SpoolStatus};
use wharfinger_events::body::{Envelope, Limits, Piece};
use wharfinger_events::name::BatchName;
use wharfinger_lifecycle::key::{EventsFolder, ObjectKey};
use wharfinger_stores::{BlobError, BlobStore, WriteMode};

use crate::clock::Clock;
use crate::config::{Ack, IngestSettings};
use crate::memory_budget::{Hold, MemoryBudget};
use crate::telemetry::events::{self as metric, Dropped};
use batch::{Answer, Append, Message, Packed, Ticket, WriterOptions};
use health::Health;

/// An event, without what is added to it.
const EVENT_BYTES_MAX: usize = 1 << 20;
const EVENT_DEPTH_MAX: usize = 64;
/// A store that does not answer in this time has not answered.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// And the time that the bytes take on a slow line.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;
/// Threads that pack.
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
    packed: tokio::sync::Mutex<UnboundedReceiver<Packed>>,
    /// Segments without a batch in memory: of a process that is no more, or that neither store nor spool would take.
    parked: Mutex<VecDeque<Parked>>,
    /// Batches that are closed and neither stored nor on disk yet.
    under_way: Arc<AtomicUsize>,
    /// There may be something to recover.
    recovery_wakeup: Notify,
    /// The batch from disk that the store refused last, and has taken nothing since.
    last_refused: Mutex<Option<BatchName>>,
    /// Nothing is sent to the inbox any more.
    is_closed: RwLock<bool>,
    /// Ours as long as we live: what lies there is nobody else's to take up.
    _segments: Arc<SegmentFolder>,
}

struct Parked {
    segment: Leftover,
    rests_until: Instant,
}

impl Parked {
    fn now(segment: Leftover) -> Parked {
        Parked { segment, rests_until: Instant::now() }
    }
}

/// Why events were not taken. Nothing was promised; they may be sent again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    #[error("as many events as may be held are waiting to be stored")]
    NoRoom,
    #[error(
        "The disk space for waiting events is nearly full and this tenant uses more than its share. \
         Events are accepted again when the store has taken some."
    )]
    OverShare,
    #[error("the store does not take events at this moment")]
    StoreAway,
    #[error("this machine's disk does not take events at this moment")]
    DiskFails,
    #[error("this process is stopping")]
    Stopping,
}

impl Ingest {
    /// Takes up what earlier processes left, and begins to take events.
    pub fn open(
        settings: &IngestSettings,
        instance: &str,
        clock: Clock,
        store: Arc<dyn BlobStore>,
    ) -> Result<Ingest, String> {
        let spool = Spool::open(&settings.spool_dir, settings.spool_bytes_max)
            .map_err(|error| format!("DLQ_DIR: {}: {error}", settings.spool_dir.display()))?;
        // Looked through in every mode: what was left may be of another.
        let (segments, left) = SegmentFolder::open(&settings.segments_dir)
            .map_err(|error| format!("WHARFINGER_DATA_DIR: {}: {error}", settings.segments_dir.display()))?;
        let segments = Arc::new(segments);
        let budget = MemoryBudget::new(settings.memory_bytes);
        let under_way = Arc::new(AtomicUsize::new(0));
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
            // Two processes that count from the same number would write over each other's batches.
            counter: rand::random::<u64>() >> 16,
            under_way: under_way.clone(),
        };
        let packers = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
        let inbox = batch::start(options, packers.min(PACKERS_MAX), packed_sender)
            .map_err(|error: io::Error| format!("no thread for events: {error}"))?;
        if !left.is_empty() {
            tracing::info!(segments = left.len(), "events of an earlier process are taken up");
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
            parked: Mutex::new(left.into_iter().map(Parked::now).collect()),
            under_way,
            recovery_wakeup: Notify::new(),
            last_refused: Mutex::new(None),
            is_closed: RwLock::new(false),
            _segments: segments,
        })
    }

    fn limits(&self) -> Limits {
        Limits {
            event_bytes_max: EVENT_BYTES_MAX.min(self.settings.inflated_bytes_max),
            depth_max: EVENT_DEPTH_MAX,
            lines_bytes_max: 2 * self.settings.inflated_bytes_max,
            piece_bytes: self.settings.batch_bytes,
            piece_events: self.settings.batch_events,
        }
    }

    fn envelope(&self, tenant: &str) -> Envelope {
        Envelope::new(self.clock.now().div_euclid(1_000), tenant, &self.instance)
    }

    /// Answers when the events are where the settings promise them to be.
    async fn append(&self, pieces: Vec<Piece>, hold: Hold) -> Result<(), NotTaken> {
        if pieces.is_empty() {
            return Ok(());
        }
        let (answer, answered) = match self.settings.ack {
            Ack::Memory => (Answer::Nobody, None),
            Ack::Disk => {
                let (sender, receiver) = oneshot::channel();
                (Answer::WhenOnDisk(sender), Some(receiver))
            }
            Ack::Stored if !self.health.is_down() || self.health.may_try() => {
                let (ticket, receiver) = Ticket::new(pieces.len());
                (Answer::WhenStored(ticket), Some(receiver))
            }
            Ack::Stored => return Err(NotTaken::StoreAway),
        };
        let append = Message::Append(Append { pieces, hold, answer });
        {
            let is_closed = self.is_closed.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            if *is_closed || self.inbox.send(append).is_err() {
                return Err(NotTaken::Stopping);
            }
        }
        match answered {
            None => Ok(()),
            Some(answered) => answered.await.unwrap_or(Err(NotTaken::Stopping)),
        }
    }

    /// Nothing is taken any more; what was taken goes its way.
    fn close(&self) {
        let mut is_closed = self.is_closed.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        *is_closed = true;
        // A second time nobody listens.
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

    /// Whether the store took the last batch it was offered.
    pub fn store_is_up(&self) -> bool {
        !self.health.is_down()
    }

    pub fn store_kind(&self) -> &'static str {
        self.store.kind()
    }

    fn parked(&self) -> MutexGuard<'_, VecDeque<Parked>> {
        self.parked.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn last_refused(&self) -> MutexGuard<'_, Option<BatchName>> {
        self.last_refused.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) == 0
    }

    /// One attempt; any answer but success means: again later, under the same key.
    async fn put(&self, folder: EventsFolder, name: &BatchName, gz: Bytes) -> Result<(), BlobError> {
        let key = ObjectKey::events(folder, &name.place())
            .map_err(|bad| BlobError::Refused(format!("{name}: {bad}")))?;
        let patience = ATTEMPT_TIMEOUT + Duration::from_secs(gz.len() as u64 / BYTES_PER_SECOND_MIN);
        let put = self.store.put(&key, gz, WriteMode::Overwrite);
        let late = |_| Err(BlobError::Unavailable("no answer in time".into()));
        let outcome = tokio::time::timeout(patience, put).await.unwrap_or_else(late);
        match &outcome {
            Ok(()) => {
                *self.last_refused() = None;
                if self.health.succeeded() {
                    tracing::info!("the store takes events again");
                    self.recovery_wakeup.notify_one();
                }
            }
            Err(_) => {
                metric::put_failed();
                self.health.failed();
            }
        }
        outcome
    }

    fn give_up_for_now(&self, error: &BlobError) {
        if self.health.gave_up(rand::random()) {
            tracing::error!(error = %error, "the store does not take events: they wait on disk");
        }
    }

    /// Puts a batch on disk to wait there.
    async fn save(&self, name: &BatchName, gz: Bytes, contents: Contents) -> Result<(), String> {
        let (spool, batch, events) = (self.spool.clone(), name.clone(), contents.events);
        let saving = tokio::task::spawn_blocking(move || spool.save(&batch, &gz, &contents));
        let saved = saving.await.map_err(|error| error.to_string())?;
        let evicted = saved.map_err(|error| error.to_string())?;
        metric::spooled(events);
        if evicted.files > 0 {
            metric::dropped(Dropped::SpoolFull, evicted.events);
            tracing::error!(
                files = evicted.files,
                events = evicted.events,
                "the spool is full: the oldest events were dropped (DLQ_MAX_SIZE_BYTES)"
            );
        }
        self.recovery_wakeup.notify_one();
        Ok(())
    }
}

/// A segment whose batch is elsewhere.
async fn remove_segment(path: PathBuf) {
    let removing = tokio::task::spawn_blocking(move || {
        if let Err(error) = std::fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            // At the next start its batch is stored again, under the same key.
            tracing::warn!(file = %path.display(), error = %error, "a segment could not be removed");
        }
    });
    let _ = removing.await;
}
