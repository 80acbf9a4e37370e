//! Tests of the threads that write and compress events.

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;

struct Bench {
    folder: tempfile::TempDir,
    inbox: Sender<Message>,
    packed: UnboundedReceiver<PackedBatch>,
    budget: MemoryBudget,
}

fn bench() -> Bench {
    let folder = tempfile::tempdir().expect("a folder");
    let (segments, _) = SegmentFolder::open(folder.path()).expect("segments");
    let budget = MemoryBudget::new(1 << 20);
    let (sender, packed) = unbounded_channel();
    let options = WriterOptions {
        batch_events: 2,
        batch_bytes: 1_000,
        batch_age: Duration::from_secs(3_600),
        instance: "i".into(),
        segments: Arc::new(segments),
        writes_segments: true,
        clock: Clock::manual(1_000_000),
        budget: budget.clone(),
        counter: 1,
        in_flight: Arc::default(),
    };
    let inbox = start(options, 1, sender).expect("threads");
    Bench { folder, inbox, packed, budget }
}

fn piece(text: &str, events: usize) -> LineBatch {
    LineBatch { lines: format!("{text}\n").into_bytes(), events }
}

impl Bench {
    fn append(&self, pieces: Vec<LineBatch>) -> Result<Result<(), IngestError>, oneshot::error::RecvError> {
        let mut reservation = self.budget.reservation();
        assert!(reservation.grow(pieces.iter().map(|piece| piece.lines.len()).sum()));
        let (sender, answer) = oneshot::channel();
        let append = Append { pieces, reservation, waiter: Waiter::OnDisk(sender) };
        self.inbox.send(Message::Append(append)).expect("the thread lives");
        answer.blocking_recv()
    }

    fn batches(&mut self) -> Vec<u64> {
        self.inbox.send(Message::Close).expect("the thread lives");
        std::iter::from_fn(|| self.packed.blocking_recv()).map(|packed| packed.contents.events).collect()
    }

    /// Segments with something in them.
    fn files(&self) -> Vec<PathBuf> {
        let below = |path: &std::path::Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        let slots = below(self.folder.path()).map(|entry| entry.path()).collect::<Vec<_>>();
        let all = slots.iter().flat_map(|slot| below(slot)).filter(|entry| {
            entry.metadata().is_ok_and(|meta| meta.is_file() && meta.len() > 0)
                && entry.file_name().to_string_lossy().contains("jsonl")
        });
        all.map(|entry| entry.path()).collect()
    }
}

#[test]
fn a_body_of_several_batches_is_accepted_completely() {
    let mut bench = bench();
    assert!(bench.append(vec![piece("a", 1)]).expect("an answer").is_ok());
    let three = vec![piece("b", 2), piece("c", 2), piece("d", 1)];
    assert!(bench.append(three).expect("an answer").is_ok());
    assert!(bench.append(vec![piece("e", 1)]).expect("an answer").is_ok());
    assert_eq!(bench.batches(), [1, 2, 2, 2]);
    assert_eq!(bench.budget.free_bytes(), 1 << 20);
}

/// Its first batches are already on disk when writing the last one fails.
#[test]
fn a_body_whose_end_cannot_be_written_is_rejected_completely() {
    let mut bench = bench();
    assert!(bench.append(vec![piece("a", 1)]).expect("an answer").is_ok());
    let before = bench.files();
    let [first] = &before[..] else { panic!("{before:?}") };
    // The third batch from now cannot be created: a folder has its name.
    let third = BatchName::new(1_000, "i", 4).to_string();
    let third = third.strip_suffix(".gz").expect("a packed name");
    std::fs::create_dir(first.with_file_name(third)).expect("an obstacle");
    let five = vec![piece("b", 2), piece("c", 2), piece("d", 2)];
    assert!(bench.append(five).expect("an answer").is_err());
    assert_eq!(bench.files(), before, "nothing of it is left on disk");
    assert!(bench.append(vec![piece("e", 1)]).expect("an answer").is_ok(), "other bodies are accepted");
    assert_eq!(bench.batches(), [1, 1]);
    assert_eq!(bench.budget.free_bytes(), 1 << 20);
}

#[test]
fn the_writer_continues_after_a_panic() {
    let mut bench = bench();
    assert!(bench.append(vec![piece("a", 1)]).expect("an answer").is_ok());
    // A count that overflows when it is added.
    assert!(bench.append(vec![piece("b", usize::MAX)]).is_err(), "not acknowledged");
    assert!(bench.append(vec![piece("c", 1)]).expect("an answer").is_ok());
    assert_eq!(bench.batches(), [1, 1]);
}

#[test]
fn a_packer_continues_after_a_panic() {
    let (closed, to_pack) = channel();
    let (sender, mut packed) = unbounded_channel();
    let budget = MemoryBudget::new(1_000);
    for n in 1..=2 {
        let batch = ClosedBatch {
            name: BatchName::new(n, "i", 1),
            lines: b"{}\n".to_vec(),
            events: 1,
            segment: None,
            acks: Vec::new(),
            reservation: budget.reservation(),
            in_flight: InFlight::new(&Arc::default()),
        };
        closed.send(batch).expect("taken");
    }
    drop(closed);
    let mut calls = 0;
    pack_all(&Mutex::new(to_pack), &sender, |_| {
        calls += 1;
        assert_ne!(calls, 1, "the first one panics");
        vec![calls]
    });
    let packed: Vec<PackedBatch> = std::iter::from_fn(|| packed.try_recv().ok()).collect();
    assert_eq!(packed.len(), 2);
    assert_eq!(packed[0].gz, Packer::default().pack(b"{}\n"));
    assert_eq!(&packed[1].gz[..], [2]);
}
