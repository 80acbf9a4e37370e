//! The writer of the SQLite catalog. Writes that arrive together share one transaction and one fsync. Each of several
//! writes runs in a savepoint. All are answered after the commit.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures::FutureExt as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::sync::{mpsc, oneshot};

use crate::audit_log::{self, AuditEntry};
use crate::database::sql::{Tx, TxConnection};
use crate::error::CatalogError;
use crate::sweeps::Fence;
use wharfinger_calls::faults::Faults;

/// The answer of a write, and whether its changes are committed.
pub(crate) enum TxOutcome<T> {
    Commit(T),
    Rollback(T),
}

impl<T> TxOutcome<T> {
    pub(crate) fn into_inner(self) -> T {
        match self {
            TxOutcome::Commit(answer) | TxOutcome::Rollback(answer) => answer,
        }
    }
}

/// A write on the catalog, as data. On PostgreSQL it is one transaction; on SQLite several writes may share one.
pub(crate) trait Write: Send + Sync + 'static {
    type Answer: Send + 'static;

    fn write(
        &self,
        tx: &mut Tx<'_>,
    ) -> impl Future<Output = Result<TxOutcome<Self::Answer>, CatalogError>> + Send;
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A write without its type, so that the code that runs writes is compiled once for all types.
pub(crate) trait AnyWrite: Send {
    /// Runs the write and stores its answer. True: commit its changes.
    fn run<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> Boxed<'a, Result<bool, CatalogError>>;
}

/// One execution of a write, under a fence if a sweep writes, with a line of the audit log if a person asked for it.
pub(crate) struct WriteExecution<W: Write> {
    write: W,
    fence: Option<Fence>,
    audit: Option<Arc<AuditEntry>>,
    outcome: Option<TxOutcome<W::Answer>>,
}

impl<W: Write> WriteExecution<W> {
    pub(crate) fn new(write: W, fence: Option<Fence>, audit: Option<Arc<AuditEntry>>) -> WriteExecution<W> {
        WriteExecution { write, fence, audit, outcome: None }
    }

    /// The answer of the last run.
    pub(crate) fn into_answer(self) -> Result<W::Answer, CatalogError> {
        let missing = || CatalogError::Unavailable("the write was left out of its batch".into());
        self.outcome.map(TxOutcome::into_inner).ok_or_else(missing)
    }
}

impl<W: Write> AnyWrite for WriteExecution<W> {
    fn run<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> Boxed<'a, Result<bool, CatalogError>> {
        Box::pin(async move {
            if let Some(fence) = &self.fence {
                fence.check(tx).await?;
            }
            let outcome = self.write.write(tx).await?;
            let commits = matches!(outcome, TxOutcome::Commit(_));
            if let Some(entry) = self.audit.as_ref().filter(|_| commits) {
                audit_log::insert(tx, entry).await?;
            }
            self.outcome = Some(outcome);
            Ok(commits)
        })
    }
}

/// A write in the queue of the writer, with the caller that waits for its answer.
trait QueuedWrite: AnyWrite {
    fn answer(self: Box<Self>, result: Result<(), CatalogError>);
}

struct WriteRequest<W: Write> {
    execution: WriteExecution<W>,
    reply: oneshot::Sender<Result<W::Answer, CatalogError>>,
}

impl<W: Write> AnyWrite for WriteRequest<W> {
    fn run<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> Boxed<'a, Result<bool, CatalogError>> {
        self.execution.run(tx)
    }
}

impl<W: Write> QueuedWrite for WriteRequest<W> {
    fn answer(self: Box<Self>, result: Result<(), CatalogError>) {
        let WriteRequest { execution, reply } = *self;
        // The caller may not wait any more. Its write was completed anyway.
        let _ = reply.send(result.and_then(|()| execution.into_answer()));
    }
}

/// A write of the current batch, and its result. True: commit its changes.
struct BatchedWrite {
    write: Box<dyn QueuedWrite>,
    ran: Option<Result<bool, CatalogError>>,
}

impl BatchedWrite {
    fn answer(self, committed: Result<(), String>) {
        let result = match (self.ran, committed) {
            (Some(Ok(_)), Ok(())) => Ok(()),
            // It may have read what other writes of its batch had written, and these did not commit.
            (Some(Ok(false)), Err(why)) => Err(CatalogError::Unavailable(why)),
            (Some(Ok(true)), Err(why)) => Err(CatalogError::Unknown(why)),
            (Some(Err(error)), _) => Err(error),
            (None, Ok(())) => Err(CatalogError::Unavailable("the write was left out of its batch".into())),
            (None, Err(why)) => Err(CatalogError::Unavailable(why)),
        };
        self.write.answer(result);
    }
}

/// The first write of a transaction waits for all others in it.
const WRITES_PER_COMMIT_MAX: usize = 256;
/// Beyond this many queued writes, callers wait to send.
const QUEUE_MAX: usize = 4_096;

#[derive(Clone)]
pub(crate) struct Writer {
    queue: mpsc::Sender<Box<dyn QueuedWrite>>,
}

impl Writer {
    /// `options` reopen the connection after a failed transaction.
    pub(crate) fn start(
        connection: SqliteConnection,
        options: SqliteConnectOptions,
        faults: Faults,
    ) -> Writer {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(write_until_closed(connection, options, waiting, faults));
        Writer { queue }
    }

    pub(crate) async fn write<W: Write>(
        &self,
        execution: WriteExecution<W>,
    ) -> Result<W::Answer, CatalogError> {
        let (reply, answer) = oneshot::channel();
        let request = Box::new(WriteRequest { execution, reply });
        let closed = || CatalogError::Unavailable("the catalog is closed".into());
        self.queue.send(request).await.map_err(|_| closed())?;
        answer.await.map_err(|_| CatalogError::Unknown("the writer stopped".into()))?
    }
}

async fn write_until_closed(
    first: SqliteConnection,
    options: SqliteConnectOptions,
    mut waiting: mpsc::Receiver<Box<dyn QueuedWrite>>,
    faults: Faults,
) {
    let mut connection = Some(first);
    let mut received: Vec<Box<dyn QueuedWrite>> = Vec::new();
    while waiting.recv_many(&mut received, WRITES_PER_COMMIT_MAX).await > 0 {
        let mut batch: Vec<BatchedWrite> =
            received.drain(..).map(|write| BatchedWrite { write, ran: None }).collect();
        let committed = match connection.take() {
            Some(open) => Ok(open),
            None => options.connect().await.map_err(|error| error.to_string()),
        };
        let committed = match committed {
            Ok(mut open) => {
                let written =
                    AssertUnwindSafe(write_batch(&mut open, &mut batch, &faults)).catch_unwind().await;
                match written.unwrap_or_else(|_| Err("a write panicked".into())) {
                    Ok(()) => {
                        connection = Some(open);
                        Ok(())
                    }
                    // The state of the connection is unknown. Closing it rolls the transaction back.
                    Err(why) => {
                        let _ = open.close().await;
                        Err(why)
                    }
                }
            }
            Err(why) => Err(why),
        };
        if let Err(why) = &committed {
            tracing::error!(error = %why, writes = batch.len(), "catalog transaction failed");
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
    batch: &mut [BatchedWrite],
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
        control(connection, faults, "statement", "SAVEPOINT one_write").await?;
        if !run_entry(entry, connection, faults).await {
            control(connection, faults, "statement", "ROLLBACK TO one_write").await?;
        }
        control(connection, faults, "statement", "RELEASE one_write").await?;
    }
    control(connection, faults, "commit", "COMMIT").await
}

async fn run_entry(entry: &mut BatchedWrite, connection: &mut SqliteConnection, faults: &Faults) -> bool {
    let ran = entry.write.run(&mut Tx { connection: TxConnection::Sqlite(connection), faults }).await;
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
    let mut tx = Tx { connection: TxConnection::Sqlite(connection), faults };
    tx.control(call, sql).await.map_err(|error| format!("{sql}: {error}"))
}
