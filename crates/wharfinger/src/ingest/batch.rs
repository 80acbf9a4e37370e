//! The open batch. One thread appends accepted events, makes them durable for all waiting clients at once, and closes the batch
//! by bytes, count or age. Other threads compress closed batches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use wharfinger_engines::spool::{BatchContents, Segment, SegmentFolder};
use wharfinger_events::body::LineBatch;
use wharfinger_events::name::BatchName;
use wharfinger_events::pack::Packer;
use wharfinger_events::tenants::bytes_by_tenant;

use super::IngestError;
use crate::clock::Clock;
use crate::memory_budget::{MemoryBudget, Reservation};

/// The events of one request.
pub(super) struct Append {
    pub(super) pieces: Vec<LineBatch>,
    pub(super) reservation: Reservation,
    pub(super) waiter: Waiter,
}

/// What a client waits for.
pub(super) enum Waiter {
    None,
    OnDisk(oneshot::Sender<Result<(), IngestError>>),
    OnStored(Arc<PendingAck>),
}

pub(super) enum Message {
    Append(Append),
    /// Nothing comes after it.
    Close,
}

/// The answer to a client that waits until all batches with its events are stored.
pub(super) struct PendingAck {
    batches_left: AtomicUsize,
    failed: AtomicBool,
    answer: Mutex<Option<oneshot::Sender<Result<(), IngestError>>>>,
}

impl PendingAck {
    /// For this many batches.
    pub(super) fn new(pieces: usize) -> (Arc<PendingAck>, oneshot::Receiver<Result<(), IngestError>>) {
        let (sender, receiver) = oneshot::channel();
        let ack = PendingAck {
            batches_left: AtomicUsize::new(pieces),
            failed: AtomicBool::new(false),
            answer: Mutex::new(Some(sender)),
        };
        (Arc::new(ack), receiver)
    }

    pub(super) fn batch_ended(&self, is_stored: bool) {
        if !is_stored {
            self.failed.store(true, Ordering::SeqCst);
        }
        if self.batches_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let sender = self.answer.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
            let outcome = match self.failed.load(Ordering::SeqCst) {
                false => Ok(()),
                true => Err(IngestError::StoreDown),
            };
            // The client may have disconnected.
            let _ = sender.map(|sender| sender.send(outcome));
        }
    }
}

/// A closed and compressed batch.
pub(super) struct PackedBatch {
    pub(super) name: BatchName,
    pub(super) gz: Bytes,
    pub(super) contents: BatchContents,
    /// The file on disk, until the batch is stored or in the spool.
    pub(super) segment: Option<PathBuf>,
    pub(super) acks: Vec<Arc<PendingAck>>,
    pub(super) reservation: Reservation,
    pub(super) in_flight: InFlight,
}

/// Counts a closed batch until it is dropped.
pub(super) struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    fn new(all: &Arc<AtomicUsize>) -> InFlight {
        all.fetch_add(1, Ordering::SeqCst);
        InFlight(all.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct ClosedBatch {
    name: BatchName,
    lines: Vec<u8>,
    events: u64,
    segment: Option<PathBuf>,
    acks: Vec<Arc<PendingAck>>,
    reservation: Reservation,
    in_flight: InFlight,
}

pub(super) struct WriterOptions {
    pub(super) batch_events: usize,
    pub(super) batch_bytes: usize,
    pub(super) batch_age: Duration,
    pub(super) instance: String,
    pub(super) segments: Arc<SegmentFolder>,
    /// Whether events are written to disk before they are acknowledged.
    pub(super) writes_segments: bool,
    pub(super) clock: Clock,
    pub(super) budget: MemoryBudget,
    /// The first number for batch names. Random, so that processes do not share numbers.
    pub(super) counter: u64,
    /// The number of closed batches that are not stored or in the spool yet.
    pub(super) in_flight: Arc<AtomicUsize>,
}

/// Starts the threads. They end after `Close`.
pub(super) fn start(
    options: WriterOptions,
    packers: usize,
    packed: UnboundedSender<PackedBatch>,
) -> std::io::Result<Sender<Message>> {
    let (inbox, messages) = channel();
    let (closed, to_pack) = channel();
    let to_pack = Arc::new(Mutex::new(to_pack));
    for _ in 0..packers.max(1) {
        let (to_pack, packed) = (to_pack.clone(), packed.clone());
        let mut packer = Packer::default();
        let pack = move |lines: &[u8]| packer.pack(lines);
        thread::Builder::new().name("pack-events".into()).spawn(move || pack_all(&to_pack, &packed, pack))?;
    }
    let writer = Writer { options, open: None, closed };
    thread::Builder::new().name("write-events".into()).spawn(move || writer.run(&messages))?;
    Ok(inbox)
}

/// Compresses batches. If this panics, a new packer compresses the batch again and the thread continues.
fn pack_all(
    to_pack: &Mutex<Receiver<ClosedBatch>>,
    packed: &UnboundedSender<PackedBatch>,
    mut pack: impl FnMut(&[u8]) -> Vec<u8>,
) {
    loop {
        let next = to_pack.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).recv();
        let Ok(mut batch) = next else { return };
        let gz = match catch_unwind(AssertUnwindSafe(|| pack(&batch.lines))) {
            Ok(gz) => Bytes::from(gz),
            Err(_) => {
                tracing::error!(
                    events = batch.events,
                    "compressing a batch of events panicked, trying again"
                );
                Bytes::from(Packer::default().pack(&batch.lines))
            }
        };
        let contents = BatchContents { events: batch.events, tenants: bytes_by_tenant(&batch.lines) };
        drop(batch.lines);
        batch.reservation.shrink_to(gz.len());
        let ClosedBatch { name, segment, acks, reservation, in_flight, .. } = batch;
        if packed.send(PackedBatch { name, gz, contents, segment, acks, reservation, in_flight }).is_err() {
            return;
        }
    }
}

/// The most bytes that are made durable together before the clients are answered.
const GROUP_BYTES_MAX: usize = 16 << 20;

struct Writer {
    options: WriterOptions,
    open: Option<OpenBatch>,
    closed: Sender<ClosedBatch>,
}

struct OpenBatch {
    name: BatchName,
    since: Instant,
    lines: Vec<u8>,
    events: usize,
    segment: Option<Segment>,
    /// How many bytes and events of it are on disk.
    durable_bytes: usize,
    durable_events: usize,
    /// Indexes of the requests with events that are not on disk yet.
    waiting: Vec<usize>,
    acks: Vec<Arc<PendingAck>>,
    reservation: Reservation,
}

impl Writer {
    fn run(mut self, messages: &Receiver<Message>) {
        loop {
            let message = match &self.open {
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(open) => {
                    let left = self.options.batch_age.saturating_sub(open.since.elapsed());
                    messages.recv_timeout(left)
                }
            };
            match message {
                Ok(Message::Append(first)) => {
                    let taken = catch_unwind(AssertUnwindSafe(|| self.append_group(first, messages)));
                    match taken {
                        Ok(LoopControl::Continue) => {}
                        Ok(LoopControl::Stop) => break,
                        Err(_) => self.recover_from_panic(),
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::Close) | Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.open.as_ref().is_some_and(|open| open.since.elapsed() >= self.options.batch_age) {
                self.close();
            }
        }
        self.close();
    }

    /// Drops the events of the current group, which were not acknowledged. Durable events stay in the batch.
    fn recover_from_panic(&mut self) {
        tracing::error!("writing events panicked, the events of some requests were not accepted");
        if let Some(open) = &mut self.open {
            open.lines.truncate(open.durable_bytes);
            open.events = open.durable_events;
            open.waiting.clear();
        }
        self.close();
    }

    /// Appends all waiting requests and makes them durable together.
    fn append_group(&mut self, first: Append, messages: &Receiver<Message>) -> LoopControl {
        let mut next = LoopControl::Continue;
        let mut waiters = Vec::new();
        let mut failed = Vec::new();
        let mut bytes = 0;
        let mut append = Some(first);
        while let Some(taken) = append.take() {
            bytes += taken.pieces.iter().map(|piece| piece.lines.len()).sum::<usize>();
            failed.push(None);
            self.append_to_batch(taken.pieces, taken.reservation, &taken.waiter, &mut failed);
            waiters.push(taken.waiter);
            if bytes < GROUP_BYTES_MAX {
                match messages.try_recv() {
                    Ok(Message::Append(another)) => append = Some(another),
                    Ok(Message::Close) => next = LoopControl::Stop,
                    Err(_) => {}
                }
            }
        }
        self.make_durable(&mut failed);
        for (waiter, failed) in waiters.into_iter().zip(failed) {
            match (waiter, failed) {
                (Waiter::OnDisk(sender), None) => drop(sender.send(Ok(()))),
                (Waiter::OnDisk(sender), Some(problem)) => drop(sender.send(Err(problem))),
                (Waiter::None | Waiter::OnStored(_), _) => {}
            }
        }
        next
    }

    /// Appends a request that needs several batches. All of them are durable before one of them is closed, or none is kept.
    fn append_batches(
        &mut self,
        pieces: Vec<LineBatch>,
        reservation: Reservation,
        waiter: &Waiter,
        failed: &mut [Option<IngestError>],
    ) {
        self.make_durable(failed);
        self.close();
        let mut batches = Vec::with_capacity(pieces.len());
        if let Err(problem) = self.write_all(pieces, reservation, waiter, &mut batches) {
            for segment in batches.into_iter().filter_map(|open: OpenBatch| open.segment) {
                if let Err(error) = std::fs::remove_file(segment.path()) {
                    tracing::error!(file = %segment.path().display(), error = %error,
                        "cannot remove rejected events from disk, the next start may store them");
                }
            }
            if let Some(failed) = failed.last_mut() {
                *failed = Some(problem);
            }
            return;
        }
        for open in batches {
            self.close();
            self.open = Some(open);
        }
        self.close_if_full();
    }

    /// Writes each piece as a durable batch. If this fails, the caller removes them.
    fn write_all(
        &mut self,
        pieces: Vec<LineBatch>,
        mut reservation: Reservation,
        waiter: &Waiter,
        batches: &mut Vec<OpenBatch>,
    ) -> Result<(), IngestError> {
        let mut left: usize = pieces.iter().map(|piece| piece.lines.len()).sum();
        for piece in pieces {
            let mut open = self.open_batch()?;
            open.events = piece.events;
            left -= piece.lines.len();
            open.reservation.absorb(reservation.split_off(left));
            open.lines = piece.lines;
            if let Waiter::OnStored(ack) = waiter {
                open.acks.push(ack.clone());
            }
            batches.push(open);
            let Some(open) = batches.last_mut() else { continue };
            if let Some(segment) = &mut open.segment {
                segment.append(&open.lines).map_err(|error| disk_error(&error))?;
                sync_or_exit(segment);
            }
            open.durable_bytes = open.lines.len();
            open.durable_events = open.events;
        }
        Ok(())
    }

    fn close_if_full(&mut self) {
        let is_full = self.open.as_ref().is_some_and(|open| {
            open.events >= self.options.batch_events || open.lines.len() >= self.options.batch_bytes
        });
        if is_full {
            self.close();
        }
    }

    fn append_to_batch(
        &mut self,
        pieces: Vec<LineBatch>,
        mut reservation: Reservation,
        waiter: &Waiter,
        failed: &mut [Option<IngestError>],
    ) {
        let me = failed.len() - 1;
        if pieces.len() > 1 {
            return self.append_batches(pieces, reservation, waiter, failed);
        }
        let mut left: usize = pieces.iter().map(|piece| piece.lines.len()).sum();
        for piece in pieces {
            let has_room = self.open.as_ref().is_none_or(|open| {
                open.events + piece.events <= self.options.batch_events
                    && open.lines.len() + piece.lines.len() <= self.options.batch_bytes
            });
            if !has_room {
                self.make_durable(failed);
                self.close();
            }
            let open = match &mut self.open {
                Some(open) => open,
                None => match self.open_batch() {
                    Ok(open) => self.open.insert(open),
                    Err(problem) => {
                        failed[me] = Some(problem);
                        return;
                    }
                },
            };
            open.lines.extend_from_slice(&piece.lines);
            open.events += piece.events;
            left -= piece.lines.len();
            open.reservation.absorb(reservation.split_off(left));
            open.waiting.push(me);
            if let Waiter::OnStored(ack) = waiter {
                open.acks.push(ack.clone());
            }
            if open.events >= self.options.batch_events || open.lines.len() >= self.options.batch_bytes {
                self.make_durable(failed);
                self.close();
            }
        }
    }

    fn open_batch(&mut self) -> Result<OpenBatch, IngestError> {
        let unix = self.options.clock.now().div_euclid(1_000);
        let name = BatchName::new(unix, &self.options.instance, self.options.counter);
        self.options.counter += 1;
        let segment = match self.options.writes_segments {
            false => None,
            true => Some(self.options.segments.create(&name).map_err(|error| disk_error(&error))?),
        };
        Ok(OpenBatch {
            name,
            since: Instant::now(),
            lines: Vec::new(),
            events: 0,
            segment,
            durable_bytes: 0,
            durable_events: 0,
            waiting: Vec::new(),
            acks: Vec::new(),
            reservation: self.options.budget.reservation(),
        })
    }

    /// Writes the batch to disk. Events that cannot be written are removed from the batch, and their requests fail.
    fn make_durable(&mut self, failed: &mut [Option<IngestError>]) {
        let Some(open) = &mut self.open else { return };
        let waiting = std::mem::take(&mut open.waiting);
        let Some(segment) = &mut open.segment else { return };
        if open.durable_bytes == open.lines.len() {
            return;
        }
        if let Err(error) = segment.append(&open.lines[open.durable_bytes..]) {
            let problem = disk_error(&error);
            for index in waiting {
                failed[index] = Some(problem.clone());
            }
            open.lines.truncate(open.durable_bytes);
            open.events = open.durable_events;
            open.reservation.shrink_to(open.durable_bytes);
            if segment.is_broken() {
                self.close();
            }
            return;
        }
        sync_or_exit(segment);
        open.durable_bytes = open.lines.len();
        open.durable_events = open.events;
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let segment = open.segment.map(|segment| segment.path().to_path_buf());
        if open.events == 0 {
            let _ = segment.map(std::fs::remove_file);
            return;
        }
        let closed = ClosedBatch {
            name: open.name,
            lines: open.lines,
            events: open.events as u64,
            segment,
            acks: open.acks,
            reservation: open.reservation,
            in_flight: InFlight::new(&self.options.in_flight),
        };
        // The packers live as long as the writer.
        let _ = self.closed.send(closed);
    }
}

/// Ends the process after a failed fsync: it is then unknown what is on disk, and the next start reads the files.
fn sync_or_exit(segment: &Segment) {
    if let Err(error) = segment.sync() {
        tracing::error!(error = %error, "fsync of events failed, the process exits");
        std::process::exit(1);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoopControl {
    Continue,
    Stop,
}

fn disk_error(error: &std::io::Error) -> IngestError {
    tracing::error!(error = %error, "cannot write events to disk, they were not accepted");
    IngestError::DiskError
}

#[cfg(test)]
mod tests;
