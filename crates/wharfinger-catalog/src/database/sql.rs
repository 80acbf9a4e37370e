//! SQL for both databases. Most statements have one text, with the parameters `$1…`. Bound values are 64-bit integers,
//! text and bytes. Where a part of a text differs, [`Dialect::pick`] chooses.

use std::sync::atomic::Ordering;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool, PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _, SqlSafeStr as _, SqlStr};

use crate::database::connect::{ReconnectTimer, is_disconnected};
use crate::error::CatalogError;
use wharfinger_calls::faults::Faults;

/// SQLite reports its steps in units of this many.
const STEPS_COUNTED: i32 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
}

impl Dialect {
    pub(crate) fn pick<T>(self, sqlite: T, postgres: T) -> T {
        match self {
            Dialect::Sqlite => sqlite,
            Dialect::Postgres => postgres,
        }
    }

    /// How many rows of a long list go into one statement. SQLite searches its list of parameters for each one, so a
    /// statement costs the square of its values.
    pub(crate) fn rows_max(self) -> usize {
        self.pick(25, 500)
    }
}

/// A bound value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Arg {
    Int(i64),
    MaybeInt(Option<i64>),
    Text(String),
    MaybeText(Option<String>),
    Bytes(Vec<u8>),
}

impl From<Vec<u8>> for Arg {
    fn from(value: Vec<u8>) -> Self {
        Arg::Bytes(value)
    }
}

impl From<i64> for Arg {
    fn from(value: i64) -> Self {
        Arg::Int(value)
    }
}

impl From<Option<i64>> for Arg {
    fn from(value: Option<i64>) -> Self {
        Arg::MaybeInt(value)
    }
}

impl From<&str> for Arg {
    fn from(value: &str) -> Self {
        Arg::Text(value.to_owned())
    }
}

impl From<String> for Arg {
    fn from(value: String) -> Self {
        Arg::Text(value)
    }
}

impl From<Option<&str>> for Arg {
    fn from(value: Option<&str>) -> Self {
        Arg::MaybeText(value.map(str::to_owned))
    }
}

impl From<Option<String>> for Arg {
    fn from(value: Option<String>) -> Self {
        Arg::MaybeText(value)
    }
}

/// Collects arguments of mixed types: `args![id, now, None::<i64>]`.
macro_rules! args {
    ($($value:expr),* $(,)?) => { vec![$($crate::database::sql::Arg::from($value)),*] };
}
pub(crate) use args;

pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

macro_rules! getter {
    ($name:ident, $type:ty) => {
        pub(crate) fn $name(&self, column: &str) -> Result<$type, CatalogError> {
            Ok(match self {
                Row::Sqlite(row) => row.try_get::<$type, _>(column)?,
                Row::Postgres(row) => row.try_get::<$type, _>(column)?,
            })
        }
    };
}

impl Row {
    getter!(int, i64);
    getter!(maybe_int, Option<i64>);
    getter!(text, String);
    getter!(maybe_text, Option<String>);
    getter!(blob, Vec<u8>);
    getter!(maybe_blob, Option<Vec<u8>>);
    getter!(maybe_real, Option<f64>);

    pub(crate) fn bytes(&self, column: &str) -> Result<u64, CatalogError> {
        u64::try_from(self.int(column)?).map_err(|_| CatalogError::Corrupt(format!("{column} is negative")))
    }

    /// A text column whose type has a parser.
    pub(crate) fn parsed<T: std::str::FromStr>(&self, column: &str) -> Result<T, CatalogError> {
        let text = self.text(column)?;
        text.parse().map_err(|_| CatalogError::Corrupt(format!("{column} holds {text:?}")))
    }
}

pub(crate) enum TxConnection<'c> {
    Sqlite(&'c mut SqliteConnection),
    Postgres(&'c mut PgConnection),
    /// Outside a transaction: a read whose connection breaks is repeated on another.
    PostgresReads {
        connection: &'c mut PoolConnection<Postgres>,
        pool: &'c PgPool,
    },
}

/// A connection on which statements run. Writes run in a transaction; reads, and the index builds of a migration, run
/// without one.
pub(crate) struct Tx<'c> {
    pub(crate) connection: TxConnection<'c>,
    pub(crate) faults: &'c Faults,
}

macro_rules! bound {
    ($db:ty, $sql:expr, $args:expr, $persistent:expr) => {{
        let mut query = sqlx::query::<$db>($sql).persistent($persistent);
        for arg in $args {
            query = match arg {
                Arg::Int(value) => query.bind(value),
                Arg::MaybeInt(value) => query.bind(value),
                Arg::Text(value) => query.bind(value),
                Arg::MaybeText(value) => query.bind(value),
                Arg::Bytes(value) => query.bind(value),
            };
        }
        query
    }};
}

impl Tx<'_> {
    pub(crate) fn dialect(&self) -> Dialect {
        match self.connection {
            TxConnection::Sqlite(_) => Dialect::Sqlite,
            TxConnection::Postgres(_) | TxConnection::PostgresReads { .. } => Dialect::Postgres,
        }
    }

    /// Runs a statement; returns how many rows it changed.
    pub(crate) async fn run(&mut self, sql: &'static str, args: Vec<Arg>) -> Result<u64, CatalogError> {
        self.run_sql("statement", Text::Fixed(sql), args, true).await
    }

    /// A statement that begins or ends a transaction or a savepoint. `call` is its name for injected faults.
    pub(crate) async fn control(
        &mut self,
        call: &'static str,
        sql: &'static str,
    ) -> Result<(), CatalogError> {
        self.run_sql(call, Text::Fixed(sql), Vec::new(), true).await.map(drop)
    }

    /// A statement whose text was built at run time.
    pub(crate) async fn run_built(&mut self, sql: String, args: Vec<Arg>) -> Result<u64, CatalogError> {
        let persistent = is_worth_preparing(&args);
        self.run_sql("statement", Text::Built(sql), args, persistent).await
    }

    /// For tests that compare the work of a call on small and large tables.
    async fn count_steps(&mut self) -> Result<(), CatalogError> {
        if let (TxConnection::Sqlite(connection), Some(steps)) =
            (&mut self.connection, self.faults.step_counter())
        {
            let steps = steps.clone();
            connection.lock_handle().await?.set_progress_handler(STEPS_COUNTED, move || {
                steps.fetch_add(STEPS_COUNTED as u64, Ordering::SeqCst);
                true
            });
        }
        Ok(())
    }

    async fn run_sql(
        &mut self,
        call: &'static str,
        text: Text,
        args: Vec<Arg>,
        persistent: bool,
    ) -> Result<u64, CatalogError> {
        self.faults.record_statement(|| text.text().to_owned());
        self.count_steps().await?;
        let connection = &mut self.connection;
        self.faults
            .around(call, async move {
                Ok(match connection {
                    TxConnection::Sqlite(c) => bound!(Sqlite, text.for_sqlite(), args, persistent)
                        .execute(&mut **c)
                        .await?
                        .rows_affected(),
                    TxConnection::Postgres(c) => bound!(Postgres, text.for_postgres(), args, persistent)
                        .execute(&mut **c)
                        .await?
                        .rows_affected(),
                    TxConnection::PostgresReads { .. } => {
                        return Err(CatalogError::Corrupt("a write was sent outside a transaction".into()));
                    }
                })
            })
            .await
    }

    pub(crate) async fn rows(&mut self, sql: &'static str, args: Vec<Arg>) -> Result<Vec<Row>, CatalogError> {
        self.rows_sql(Text::Fixed(sql), args, true).await
    }

    pub(crate) async fn rows_built(&mut self, sql: String, args: Vec<Arg>) -> Result<Vec<Row>, CatalogError> {
        let persistent = is_worth_preparing(&args);
        self.rows_sql(Text::Built(sql), args, persistent).await
    }

    /// The same without a prepared statement. PostgreSQL keeps the plan of a prepared one; a plan made for an empty table
    /// reads all of a large one.
    pub(crate) async fn rows_unprepared(
        &mut self,
        sql: String,
        args: Vec<Arg>,
    ) -> Result<Vec<Row>, CatalogError> {
        self.rows_sql(Text::Built(sql), args, false).await
    }

    async fn rows_sql(
        &mut self,
        text: Text,
        args: Vec<Arg>,
        persistent: bool,
    ) -> Result<Vec<Row>, CatalogError> {
        self.faults.record_statement(|| text.text().to_owned());
        self.count_steps().await?;
        let connection = &mut self.connection;
        self.faults
            .around("query", async move {
                Ok(match connection {
                    TxConnection::Sqlite(c) => bound!(Sqlite, text.for_sqlite(), args, persistent)
                        .fetch_all(&mut **c)
                        .await?
                        .into_iter()
                        .map(Row::Sqlite)
                        .collect(),
                    TxConnection::Postgres(c) => bound!(Postgres, text.for_postgres(), args, persistent)
                        .fetch_all(&mut **c)
                        .await?
                        .into_iter()
                        .map(Row::Postgres)
                        .collect(),
                    TxConnection::PostgresReads { connection, pool } => {
                        read_with_retries(connection, pool, &text, &args, persistent).await?
                    }
                })
            })
            .await
    }

    pub(crate) async fn row(
        &mut self,
        sql: &'static str,
        args: Vec<Arg>,
    ) -> Result<Option<Row>, CatalogError> {
        Ok(self.rows(sql, args).await?.into_iter().next())
    }
}

/// Repeats a read on other connections for a short time if its connection breaks. The broken one is closed.
async fn read_with_retries(
    connection: &mut PoolConnection<Postgres>,
    pool: &PgPool,
    text: &Text,
    args: &[Arg],
    persistent: bool,
) -> Result<Vec<Row>, CatalogError> {
    let mut reconnect = None;
    loop {
        let query = bound!(Postgres, text.for_postgres(), args.iter().cloned(), persistent);
        let error = match query.fetch_all(&mut **connection).await {
            Ok(rows) => return Ok(rows.into_iter().map(Row::Postgres).collect()),
            Err(error) if is_disconnected(&error) => error,
            Err(error) => return Err(error.into()),
        };
        connection.close_on_drop();
        if !reconnect.get_or_insert_with(ReconnectTimer::start).wait_before_retry().await {
            return Err(error.into());
        }
        *connection = pool.acquire().await?;
    }
}

/// A statement that can be sent more than once.
enum Text {
    Fixed(&'static str),
    Built(String),
}

impl Text {
    fn text(&self) -> &str {
        match self {
            Text::Fixed(text) => text,
            Text::Built(text) => text,
        }
    }

    /// A built text gets `?7` for `$7`: for SQLite `$7` is a name, and to find names costs more. A fixed text is
    /// prepared once, so it stays as it is.
    fn for_sqlite(&self) -> SqlStr {
        match self {
            Text::Fixed(text) => text.into_sql_str(),
            Text::Built(text) => AssertSqlSafe(text.replace('$', "?")).into_sql_str(),
        }
    }

    fn for_postgres(&self) -> SqlStr {
        match self {
            Text::Fixed(text) => text.into_sql_str(),
            Text::Built(text) => AssertSqlSafe(text.clone()).into_sql_str(),
        }
    }
}

/// Long lists differ in length. Their prepared statements would only evict others from the cache.
fn is_worth_preparing(args: &[Arg]) -> bool {
    args.len() <= 19
}

/// The databases have signed integers. Sizes were checked against `QUOTA_BYTES_MAX`, which is far below `i64::MAX`.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// `$from, $from+1, …` for a list of `count` values.
pub(crate) fn places(from: usize, count: usize) -> String {
    let list: Vec<String> = (from..from + count).map(|n| format!("${n}")).collect();
    list.join(", ")
}

/// `(CAST($from AS …), …), (…), …`: `count` rows. Types in the first row give the columns their types.
pub(crate) fn typed_rows(from: usize, types: &[&str], count: usize) -> String {
    let first: Vec<String> =
        types.iter().enumerate().map(|(i, kind)| format!("CAST(${} AS {kind})", from + i)).collect();
    let mut rows = format!("({})", first.join(", "));
    for n in 1..count {
        rows.push_str(", (");
        rows.push_str(&places(from + n * types.len(), types.len()));
        rows.push(')');
    }
    rows
}

/// `($from, $from+1), ($from+2, …` for `count` rows of `width` values.
pub(crate) fn tuples(from: usize, count: usize, width: usize) -> String {
    let list: Vec<String> = (0..count).map(|n| format!("({})", places(from + width * n, width))).collect();
    list.join(", ")
}
