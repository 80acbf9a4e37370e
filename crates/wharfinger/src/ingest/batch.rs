//! The open batch: one thread appends what was accepted, makes it durable for all who wait at once, and closes the batch by
//! bytes, count or age. Others pack what is closed.

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
use wharfinger_engines::spool::{Contents, Segment, SegmentFolder};
use wharfinger_events::body::Piece;
use wharfinger_events::name::BatchName;
use wharfinger_events::pack::Packer;
use wharfinger_events::tenants::bytes_by_tenant;

use super::NotTaken;
use crate::clock::Clock;
use crate::memory_budget::{Hold, MemoryBudget};

/// What was accepted together.
pub(super) struct Append {
    pub(super) pieces: Vec<Piece>,
    pub(super) hold: Hold,
    pub(super) answer: Answer,
}

/// Who waits for what.
pub(super) enum Answer {
    Nobody,
    WhenOnDisk(oneshot::Sender<Result<(), NotTaken>>),
    WhenStored(Arc<Ticket>),
}

pub(super) enum Message {
    Append(Append),
    /// Nothing comes after it.
    Close,
}

/// Of one who waits until all batches that its events went to are stored.
pub(super) struct Ticket {
    batches_left: AtomicUsize,
    failed: AtomicBool,
    answer: Mutex<Option<oneshot::Sender<Result<(), NotTaken>>>>,
}

impl Ticket {
    /// For so many pieces.
    pub(super) fn new(pieces: usize) -> (Arc<Ticket>, oneshot::Receiver<Result<(), NotTaken>>) {
        let (sender, receiver) = oneshot::channel();
        let ticket = Ticket {
            batches_left: AtomicUsize::new(pieces),
            failed: AtomicBool::new(false),
            answer: Mutex::new(Some(sender)),
        };
        (Arc::new(ticket), receiver)
    }

    pub(super) fn punch(&self, is_stored: bool) {
        if !is_stored {
            self.failed.store(true, Ordering::SeqCst);
        }
        if self.batches_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let sender = self.answer.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
            let outcome = match self.failed.load(Ordering::SeqCst) {
                false => Ok(()),
                true => Err(NotTaken::StoreAway),
            };
            // Nobody may be waiting any more.
            let _ = sender.map(|sender| sender.send(outcome));
        }
    }
}

/// A batch that is not open any more.
pub(super) struct Packed {
    pub(super) name: BatchName,
    pub(super) gz: Bytes,
    pub(super) contents: Contents,
    /// On disk until the batch is elsewhere.
    pub(super) segment: Option<PathBuf>,
    pub(super) tickets: Vec<Arc<Ticket>>,
    pub(super) hold: Hold,
    pub(super) under_way: UnderWay,
}

/// Counts a batch that is closed and not at its end yet, whatever ends it.
pub(super) struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    fn one_more(all: &Arc<AtomicUsize>) -> UnderWay {
        all.fetch_add(1, Ordering::SeqCst);
        UnderWay(all.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Closed {
    name: BatchName,
    lines: Vec<u8>,
    events: u64,
    segment: Option<PathBuf>,
    tickets: Vec<Arc<Ticket>>,
    hold: Hold,
    under_way: UnderWay,
}

pub(super) struct WriterOptions {
    pub(super) batch_events: usize,
    pub(super) batch_bytes: usize,
    pub(super) batch_age: Duration,
    pub(super) instance: String,
    pub(super) segments: Arc<SegmentFolder>,
    /// Whether anything is put on disk before it is answered for.
    pub(super) writes_segments: bool,
    pub(super) clock: Clock,
    pub(super) budget: MemoryBudget,
    /// Where counting begins: unlike that of any process before.
    pub(super) counter: u64,
    /// Closed and not at its end yet.
    pub(super) under_way: Arc<AtomicUsize>,
}

/// Starts the threads; they end after `Close`.
pub(super) fn start(
    options: WriterOptions,
    packers: usize,
    packed: UnboundedSender<Packed>,
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

/// A batch whose packing panics is packed by a fresh packer; the thread goes on in any case.
fn pack_all(
    to_pack: &Mutex<Receiver<Closed>>,
    packed: &UnboundedSender<Packed>,
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
                    "packing a batch of events panicked, it is packed again"
                );
                Bytes::from(Packer::default().pack(&batch.lines))
            }
        };
        let contents = Contents { events: batch.events, tenants: bytes_by_tenant(&batch.lines) };
        drop(batch.lines);
        batch.hold.shrink_to(gz.len());
        let Closed { name, segment, tickets, hold, under_way, .. } = batch;
        if packed.send(Packed { name, gz, contents, segment, tickets, hold, under_way }).is_err() {
            return;
        }
    }
}

/// So many bytes are taken together at most before somebody is answered.
const GROUP_BYTES_MAX: usize = 16 << 20;

struct Writer {
    options: WriterOptions,
    open: Option<Open>,
    closed: Sender<Closed>,
}

struct Open {
    name: BatchName,
    since: Instant,
    lines: Vec<u8>,
    events: usize,
    segment: Option<Segment>,
    /// How much of it is on disk.
    durable_bytes: usize,
    durable_events: usize,
    /// Which of the group have a part in what is not.
    waiting: Vec<usize>,
    tickets: Vec<Arc<Ticket>>,
    hold: Hold,
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
                    let taken = catch_unwind(AssertUnwindSafe(|| self.take_group(first, messages)));
                    match taken {
                        Ok(Next::GoOn) => {}
                        Ok(Next::End) => break,
                        Err(_) => self.go_on_after_panic(),
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

    /// Those of the group are not answered for. What was durable before stays in its batch.
    fn go_on_after_panic(&mut self) {
        tracing::error!("writing events panicked: those that came together were not accepted");
        if let Some(open) = &mut self.open {
            open.lines.truncate(open.durable_bytes);
            open.events = open.durable_events;
            open.waiting.clear();
        }
        self.close();
    }

    /// Everything that has come meanwhile becomes durable together.
    fn take_group(&mut self, first: Append, messages: &Receiver<Message>) -> Next {
        let mut next = Next::GoOn;
        let mut answers = Vec::new();
        let mut failed = Vec::new();
        let mut bytes = 0;
        let mut append = Some(first);
        while let Some(taken) = append.take() {
            bytes += taken.pieces.iter().map(|piece| piece.lines.len()).sum::<usize>();
            failed.push(None);
            self.take(taken.pieces, taken.hold, &taken.answer, &mut failed);
            answers.push(taken.answer);
            if bytes < GROUP_BYTES_MAX {
                match messages.try_recv() {
                    Ok(Message::Append(another)) => append = Some(another),
                    Ok(Message::Close) => next = Next::End,
                    Err(_) => {}
                }
            }
        }
        self.make_durable(&mut failed);
        for (answer, failed) in answers.into_iter().zip(failed) {
            match (answer, failed) {
                (Answer::WhenOnDisk(sender), None) => drop(sender.send(Ok(()))),
                (Answer::WhenOnDisk(sender), Some(problem)) => drop(sender.send(Err(problem))),
                (Answer::Nobody | Answer::WhenStored(_), _) => {}
            }
        }
        next
    }

    /// More than fits into one batch: all of it is durable before any batch of it is closed, or nothing is kept.
    fn take_whole(
        &mut self,
        pieces: Vec<Piece>,
        hold: Hold,
        answer: &Answer,
        failed: &mut [Option<NotTaken>],
    ) {
        self.make_durable(failed);
        self.close();
        let mut batches = Vec::with_capacity(pieces.len());
        if let Err(problem) = self.write_all(pieces, hold, answer, &mut batches) {
            for segment in batches.into_iter().filter_map(|open: Open| open.segment) {
                if let Err(error) = std::fs::remove_file(segment.path()) {
                    tracing::error!(error = %error, "a part of refused events could not be removed from disk");
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

    /// Each piece becomes a durable batch; the caller removes them where this fails.
    fn write_all(
        &mut self,
        pieces: Vec<Piece>,
        mut hold: Hold,
        answer: &Answer,
        batches: &mut Vec<Open>,
    ) -> Result<(), NotTaken> {
        let mut left: usize = pieces.iter().map(|piece| piece.lines.len()).sum();
        for piece in pieces {
            let mut open = self.begin()?;
            open.events = piece.events;
            left -= piece.lines.len();
            open.hold.absorb(hold.split_off(left));
            open.lines = piece.lines;
            if let Answer::WhenStored(ticket) = answer {
                open.tickets.push(ticket.clone());
            }
            batches.push(open);
            let Some(open) = batches.last_mut() else { continue };
            if let Some(segment) = &mut open.segment {
                segment.append(&open.lines).map_err(|error| not_on_disk(&error))?;
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

    fn take(&mut self, pieces: Vec<Piece>, mut hold: Hold, answer: &Answer, failed: &mut [Option<NotTaken>]) {
        let me = failed.len() - 1;
        if pieces.len() > 1 {
            return self.take_whole(pieces, hold, answer, failed);
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
                None => match self.begin() {
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
            open.hold.absorb(hold.split_off(left));
            open.waiting.push(me);
            if let Answer::WhenStored(ticket) = answer {
                open.tickets.push(ticket.clone());
            }
            if open.events >= self.options.batch_events || open.lines.len() >= self.options.batch_bytes {
                self.make_durable(failed);
                self.close();
            }
        }
    }

    fn begin(&mut self) -> Result<Open, NotTaken> {
        let unix = self.options.clock.now().div_euclid(1_000);
        let name = BatchName::new(unix, &self.options.instance, self.options.counter);
        self.options.counter += 1;
        let segment = match self.options.writes_segments {
            false => None,
            true => Some(self.options.segments.create(&name).map_err(|error| not_on_disk(&error))?),
        };
        Ok(Open {
            name,
            since: Instant::now(),
            lines: Vec::new(),
            events: 0,
            segment,
            durable_bytes: 0,
            durable_events: 0,
            waiting: Vec::new(),
            tickets: Vec::new(),
            hold: self.options.budget.hold(),
        })
    }

    /// What cannot be written is not part of the batch, and those it came from are told.
    fn make_durable(&mut self, failed: &mut [Option<NotTaken>]) {
        let Some(open) = &mut self.open else { return };
        let waiting = std::mem::take(&mut open.waiting);
        let Some(segment) = &mut open.segment else { return };
        if open.durable_bytes == open.lines.len() {
            return;
        }
        if let Err(error) = segment.append(&open.lines[open.durable_bytes..]) {
            let problem = not_on_disk(&error);
            for index in waiting {
                failed[index] = Some(problem.clone());
            }
            open.lines.truncate(open.durable_bytes);
            open.events = open.durable_events;
            open.hold.shrink_to(open.durable_bytes);
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
        let closed = Closed {
            name: open.name,
            lines: open.lines,
            events: open.events as u64,
            segment,
            tickets: open.tickets,
            hold: open.hold,
            under_way: UnderWay::one_more(&self.options.under_way),
        };
        // Who packs lives as long as we do.
        let _ = self.closed.send(closed);
    }
}

/// After a failed fsync it is unknown what is on disk: the next start finds out.
fn sync_or_exit(segment: &Segment) {
    if let Err(error) = segment.sync() {
        tracing::error!(error = %error, "events could not be made durable: the process ends");
        std::process::exit(1);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    GoOn,
    End,
}

fn not_on_disk(error: &std::io::Error) -> NotTaken {
    tracing::error!(error = %error, "events could not be written to disk and were not accepted");
    NotTaken::DiskFails
}

#[cfg(test)]
mod tests;
