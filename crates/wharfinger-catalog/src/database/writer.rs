//! The one writer of the SQLite catalog. Verbs that arrive together share one transaction and one fsync: each
//! runs in a savepoint of its own, and each is answered after the commit.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use futures::FutureExt as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::sync::{mpsc, oneshot};

use crate::database::sql::{Link, Tx};
use crate::error::CatalogError;
use crate::sweeps::Fence;
use wharfinger_calls::faults::Faults;

/// What a verb leaves behind: its answer, with its writes or without them.
pub(crate) enum Verdict<T> {
    Commit(T),
    Rollback(T),
}

impl<T> Verdict<T> {
    pub(crate) fn into_inner(self) -> T {
        match self {
            Verdict::Commit(answer) | Verdict::Rollback(answer) => answer,
        }
    }
}

/// One change of the catalog, as data: the same on both databases.
pub(crate) trait Write: Send + Sync + 'static {
    type Answer: Send + 'static;

    fn write(
        &self,
        tx: &mut Tx<'_>,
    ) -> impl Future<Output = Result<Verdict<Self::Answer>, CatalogError>> + Send;
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A write without its type: the code that runs writes is compiled once, not once for each type.
pub(crate) trait AnyWrite: Send {
    /// Runs the write and keeps its answer; true if its changes are to be committed.
    fn run<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> Boxed<'a, Result<bool, CatalogError>>;
}

/// A write on its way through a transaction, perhaps under the fence of a sweep.
pub(crate) struct Running<W: Write> {
    verb: W,
    fence: Option<Fence>,
    verdict: Option<Verdict<W::Answer>>,
}

impl<W: Write> Running<W> {
    pub(crate) fn new(verb: W, fence: Option<Fence>) -> Running<W> {
        Running { verb, fence, verdict: None }
    }

    /// The answer of the last run.
    pub(crate) fn into_answer(self) -> Result<W::Answer, CatalogError> {
        let missing = || CatalogError::Unavailable("the write was not run".into());
        self.verdict.map(Verdict::into_inner).ok_or_else(missing)
    }
}

impl<W: Write> AnyWrite for Running<W> {
    fn run<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> Boxed<'a, Result<bool, CatalogError>> {
        Box::pin(async move {
            if let Some(fence) = &self.fence {
                fence.hold(tx).await?;
            }
            let verdict = self.verb.write(tx).await?;
            let commits = matches!(verdict, Verdict::Commit(_));
            self.verdict = Some(verdict);
            Ok(commits)
        })
    }
}

/// A write that waits for the writer, and the caller that waits for its answer.
trait Waiting: AnyWrite {
    fn answer(self: Box<Self>, result: Result<(), CatalogError>);
}

struct Pending<W: Write> {
    running: Running<W>,
    reply: oneshot::Sender<Result<W::Answer, CatalogError>>,
}

impl<W: Write> AnyWrite for Pending<W> {
    fn run<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> Boxed<'a, Result<bool, CatalogError>> {
        self.running.run(tx)
    }
}

impl<W: Write> Waiting for Pending<W> {
    fn answer(self: Box<Self>, result: Result<(), CatalogError>) {
        let Pending { running, reply } = *self;
        // The caller may have hung up. Its write has run to its end all the same.
        let _ = reply.send(result.and_then(|()| running.into_answer()));
    }
}

/// A write of the current batch, and how it went: true if its changes are to be committed.
struct Entry {
    write: Box<dyn Waiting>,
    ran: Option<Result<bool, CatalogError>>,
}

impl Entry {
    fn answer(self, committed: Result<(), String>) {
        let result = match (self.ran, committed) {
            (Some(Ok(_)), Ok(())) => Ok(()),
            // Other writes of its batch may have written what it read, and they did not commit.
            (Some(Ok(false)), Err(why)) => Err(CatalogError::Unavailable(why)),
            (Some(Ok(true)), Err(why)) => Err(CatalogError::Unknown(why)),
            (Some(Err(error)), _) => Err(error),
            (None, Ok(())) => Err(CatalogError::Unavailable("the write was not run".into())),
            (None, Err(why)) => Err(CatalogError::Unavailable(why)),
        };
        self.write.answer(result);
    }
}

/// More than this many verbs in one transaction only make the first wait.
const VERBS_PER_COMMIT_MAX: usize = 256;
/// Verbs that may wait before senders are held back.
const QUEUE_MAX: usize = 4_096;

#[derive(Clone)]
pub(crate) struct Writer {
    queue: mpsc::Sender<Box<dyn Waiting>>,
}

impl Writer {
    /// `options` open the connection again after a transaction that failed.
    pub(crate) fn start(
        connection: SqliteConnection,
        options: SqliteConnectOptions,
        faults: Faults,
    ) -> Writer {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(write_until_closed(connection, options, waiting, faults));
        Writer { queue }
    }

    pub(crate) async fn write<W: Write>(&self, running: Running<W>) -> Result<W::Answer, CatalogError> {
        let (reply, answer) = oneshot::channel();
        let pending = Box::new(Pending { running, reply });
        let closed = || CatalogError::Unavailable("the catalog is closed".into());
        self.queue.send(pending).await.map_err(|_| closed())?;
        answer.await.map_err(|_| CatalogError::Unknown("the writer ended".into()))?
    }
}

async fn write_until_closed(
    first: SqliteConnection,
    options: SqliteConnectOptions,
    mut waiting: mpsc::Receiver<Box<dyn Waiting>>,
    faults: Faults,
) {
    let mut connection = Some(first);
    let mut received: Vec<Box<dyn Waiting>> = Vec::new();
    while waiting.recv_many(&mut received, VERBS_PER_COMMIT_MAX).await > 0 {
        let mut batch: Vec<Entry> = received.drain(..).map(|write| Entry { write, ran: None }).collect();
        let committed = match connection.take() {
            Some(open) => Ok(open),
            None => options.connect().await.map_err(|error| error.to_string()),
        };
        let committed = match committed {
            Ok(mut open) => {
                let written =
                    AssertUnwindSafe(write_batch(&mut open, &mut batch, &faults)).catch_unwind().await;
                match written.unwrap_or_else(|_| Err("a verb panicked".into())) {
                    Ok(()) => {
                        connection = Some(open);
                        Ok(())
                    }
                    // Nobody knows what state the connection is in: closing it rolls back for sure.
                    Err(why) => {
                        let _ = open.close().await;
                        Err(why)
                    }
                }
            }
            Err(why) => Err(why),
        };
        if let Err(why) = &committed {
            tracing::error!(error = %why, verbs = batch.len(), "a catalog transaction failed");
        }
        for entry in batch {
            entry.answer(committed.clone());
        }
    }
    if let Some(open) = connection {
        let _ = open.close().await;
    }
}

async fn write_batch(
    connection: &mut SqliteConnection,
    batch: &mut [Entry],
    faults: &Faults,
) -> Result<(), String> {
    control(connection, faults, "begin", "BEGIN IMMEDIATE").await?;
    if let [only] = batch {
        let commits = run_entry(only, connection, faults).await;
        return if commits {
            control(connection, faults, "commit", "COMMIT").await
        } else {
            control(connection, faults, "rollback", "ROLLBACK").await
        };
    }
    for entry in batch.iter_mut() {
        control(connection, faults, "statement", "SAVEPOINT verb").await?;
        if !run_entry(entry, connection, faults).await {
            control(connection, faults, "statement", "ROLLBACK TO verb").await?;
        }
        control(connection, faults, "statement", "RELEASE verb").await?;
    }
    control(connection, faults, "commit", "COMMIT").await
}

async fn run_entry(entry: &mut Entry, connection: &mut SqliteConnection, faults: &Faults) -> bool {
    let ran = entry.write.run(&mut Tx { link: Link::Sqlite(connection), faults }).await;
    let commits = matches!(ran, Ok(true));
    entry.ran = Some(ran);
    commits
}

async fn control(
    connection: &mut SqliteConnection,
    faults: &Faults,
    call: &'static str,
    sql: &'static str,
) -> Result<(), String> {
    let mut tx = Tx { link: Link::Sqlite(connection), faults };
    tx.control(call, sql).await.map_err(|error| format!("{sql}: {error}"))
}
