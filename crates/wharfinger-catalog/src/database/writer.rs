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

/// A verb that waits for the writer, its type forgotten.
trait Waiting: Send {
    /// Runs the verb; true if its writes are to be kept.
    fn run<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> Boxed<'a, bool>;
    fn answer(self: Box<Self>, committed: Result<(), String>);
}

struct Pending<W: Write> {
    verb: W,
    outcome: Option<Result<Verdict<W::Answer>, CatalogError>>,
    reply: oneshot::Sender<Result<W::Answer, CatalogError>>,
}

impl<W: Write> Waiting for Pending<W> {
    fn run<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> Boxed<'a, bool> {
        Box::pin(async move {
            let outcome = self.verb.write(tx).await;
            let keep = matches!(outcome, Ok(Verdict::Commit(_)));
            self.outcome = Some(outcome);
            keep
        })
    }

    fn answer(self: Box<Self>, committed: Result<(), String>) {
        let answer = match (self.outcome, committed) {
            (Some(Ok(Verdict::Commit(answer) | Verdict::Rollback(answer))), Ok(())) => Ok(answer),
            // What it read may have been written by others of its batch, and they did not commit.
            (Some(Ok(Verdict::Rollback(_))), Err(why)) => Err(CatalogError::Unavailable(why)),
            (Some(Ok(Verdict::Commit(_))), Err(why)) => Err(CatalogError::Unknown(why)),
            (Some(Err(error)), _) => Err(error),
            (None, Ok(())) => Err(CatalogError::Unavailable("the writer passed the verb over".into())),
            (None, Err(why)) => Err(CatalogError::Unavailable(why)),
        };
        // The caller may have hung up: the verb has run to its end all the same.
        let _ = self.reply.send(answer);
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

    pub(crate) async fn write<W: Write>(&self, verb: W) -> Result<W::Answer, CatalogError> {
        let (reply, answer) = oneshot::channel();
        let pending = Box::new(Pending { verb, outcome: None, reply });
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
    let mut batch: Vec<Box<dyn Waiting>> = Vec::new();
    while waiting.recv_many(&mut batch, VERBS_PER_COMMIT_MAX).await > 0 {
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
        for verb in batch.drain(..) {
            verb.answer(committed.clone());
        }
    }
    if let Some(open) = connection {
        let _ = open.close().await;
    }
}

async fn write_batch(
    connection: &mut SqliteConnection,
    batch: &mut [Box<dyn Waiting>],
    faults: &Faults,
) -> Result<(), String> {
    control(connection, faults, "begin", "BEGIN IMMEDIATE").await?;
    if let [only] = batch {
        let keep = only.run(&mut Tx { link: Link::Sqlite(&mut *connection), faults }).await;
        return if keep {
            control(connection, faults, "commit", "COMMIT").await
        } else {
            control(connection, faults, "rollback", "ROLLBACK").await
        };
    }
    for verb in batch.iter_mut() {
        control(connection, faults, "statement", "SAVEPOINT verb").await?;
        let keep = verb.run(&mut Tx { link: Link::Sqlite(&mut *connection), faults }).await;
        if !keep {
            control(connection, faults, "statement", "ROLLBACK TO verb").await?;
        }
        control(connection, faults, "statement", "RELEASE verb").await?;
    }
    control(connection, faults, "commit", "COMMIT").await
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
