//! Keys from a query of somebody's own database. It is read row by row and only ever read: SQLite is opened so, and on
//! PostgreSQL all happens in one read-only transaction, which sees the data of one moment. The query is one statement and
//! stands inside a SELECT of ours, so the database's own grammar lets nothing pass that does more than select (VACUUM
//! INTO and COPY write files, read-only or not). The order of the rows does not matter; collations order text by other
//! rules than stores do.

use std::str::FromStr as _;

use futures::{StreamExt as _, TryStreamExt as _};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions as _, Connection as _, Row, TypeInfo as _, ValueRef as _,
};
use wharfinger_reconcile::{Entry, KEY_BYTES_MAX};

use super::{Passed, Sink, SourceError};

/// Whether a URL names a database that can be asked.
pub fn is_database(url: &str) -> bool {
    ["postgres://", "postgresql://", "sqlite:"].iter().any(|scheme| url.starts_with(scheme))
}

/// Reads a whole query: keys in its first column, and in a second, if there is one, what size the objects should have.
pub async fn read_query(url: &str, query: &str, sink: &mut Sink<'_>) -> Result<Passed, SourceError> {
    match url.strip_prefix("sqlite:") {
        Some(path) => read_sqlite(path.strip_prefix("//").unwrap_or(path), query, sink).await,
        None => read_postgres(url, query, sink).await,
    }
}

async fn read_sqlite(path: &str, query: &str, sink: &mut Sink<'_>) -> Result<Passed, SourceError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .create_if_missing(false)
        .pragma("query_only", "ON")
        .log_statements(tracing::log::LevelFilter::Off);
    let mut connection = SqliteConnection::connect_with(&options)
        .await
        .map_err(|error| SourceError::Unavailable(format!("{path} cannot be opened: {}", plain(&error))))?;
    let read = read_sqlite_rows(&mut connection, query, sink).await;
    // Nothing was written: there is nothing that closing could lose.
    drop(connection.close().await);
    read
}

async fn read_sqlite_rows(
    connection: &mut SqliteConnection,
    query: &str,
    sink: &mut Sink<'_>,
) -> Result<Passed, SourceError> {
    let query = selected(single_statement(query)?);
    let mut rows = sqlx::query(AssertSqlSafe(query)).fetch(connection);
    let mut taken = Taken::default();
    while let Some(row) = rows.next().await {
        let row = row.map_err(failed)?;
        taken.rows += 1;
        let row = of_sqlite(&row, taken.rows)?;
        taken.take(row, sink)?;
    }
    Ok(taken.passed)
}

async fn read_postgres(url: &str, query: &str, sink: &mut Sink<'_>) -> Result<Passed, SourceError> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|error| SourceError::Wrong(format!("the database's URL cannot be read: {}", plain(&error))))?
        .application_name("wharfinger reconcile")
        .statement_cache_capacity(0)
        .log_statements(tracing::log::LevelFilter::Off);
    let mut connection = PgConnection::connect_with(&options).await.map_err(|error| {
        SourceError::Unavailable(format!("the database cannot be reached: {}", plain(&error)))
    })?;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .execute(&mut connection)
        .await
        .map_err(failed)?;
    let read = read_postgres_rows(&mut connection, query, sink).await;
    // The transaction ends with its connection, and has changed nothing.
    drop(connection.close().await);
    read
}

async fn read_postgres_rows(
    connection: &mut PgConnection,
    query: &str,
    sink: &mut Sink<'_>,
) -> Result<Passed, SourceError> {
    // Prepared, and so a single statement: none that ends the transaction and one more.
    let query = selected(query.trim_end().trim_end_matches(';'));
    let mut rows = sqlx::query(AssertSqlSafe(query)).fetch(connection);
    let mut taken = Taken::default();
    while let Some(row) = rows.try_next().await.map_err(failed)? {
        taken.rows += 1;
        let row = of_postgres(&row)?;
        taken.take(row, sink)?;
    }
    Ok(taken.passed)
}

/// As the source of a SELECT. A comment at its end ends with its line.
fn selected(query: &str) -> String {
    format!("SELECT * FROM (\n{query}\n) AS keys")
}

/// The query without the semicolon at its end. SQLite's driver runs statement after statement, so there may be no more;
/// a semicolon inside a string, a quoted name or a comment separates nothing.
fn single_statement(query: &str) -> Result<&str, SourceError> {
    let Some(end) = first_semicolon(query) else { return Ok(query) };
    match first_token(&query[end..]) {
        None => Ok(&query[..end]),
        Some(_) => Err(SourceError::Wrong("--sql takes one statement, and this is more than one".into())),
    }
}

/// Where the first statement ends, by SQLite's rules.
fn first_semicolon(query: &str) -> Option<usize> {
    let mut at = 0;
    while at < query.len() {
        let rest = &query[at..];
        match rest.as_bytes()[0] {
            b';' => return Some(at),
            _ => at += token_length(rest),
        }
    }
    None
}

/// The first thing behind semicolons, blanks and comments.
fn first_token(text: &str) -> Option<usize> {
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let is_comment = rest.starts_with("--") || rest.starts_with("/*");
        if !is_comment && !rest.starts_with(|c: char| c == ';' || c.is_whitespace()) {
            return Some(at);
        }
        at += token_length(rest);
    }
    None
}

/// How long a string, a quoted name or a comment is that begins here; of anything else, one character.
fn token_length(text: &str) -> usize {
    let through = |end: &str, from: usize| {
        text.get(from..).and_then(|rest| rest.find(end)).map_or(text.len(), |at| from + at + end.len())
    };
    match text.as_bytes() {
        [b'-', b'-', ..] => through("\n", 2),
        [b'/', b'*', ..] => through("*/", 2),
        // A doubled quote inside ends one string and begins the next: together they are as long.
        [b'\'', ..] => through("'", 1),
        [b'"', ..] => through("\"", 1),
        [b'`', ..] => through("`", 1),
        [b'[', ..] => through("]", 1),
        _ => text.chars().next().map_or(1, char::len_utf8),
    }
}

#[derive(Default)]
struct Taken {
    rows: u64,
    passed: Passed,
}

impl Taken {
    fn take(
        &mut self,
        (key, size): (Option<String>, Option<i64>),
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        match key.filter(|key| !key.is_empty()) {
            None => {
                self.passed.skipped += 1;
                Ok(())
            }
            Some(key) if key.len() > KEY_BYTES_MAX => Err(SourceError::Wrong(format!(
                "row {} of the query is longer than any key ({KEY_BYTES_MAX} bytes)",
                self.rows
            ))),
            Some(key) => {
                let size = size.and_then(|size| u64::try_from(size).ok());
                sink(Entry { key, size, modified_at: None }).map_err(SourceError::Full)
            }
        }
    }
}

fn of_postgres(row: &PgRow) -> Result<(Option<String>, Option<i64>), SourceError> {
    let kind = |at: usize| row.columns().get(at).map(|column| column.type_info().name().to_owned());
    let key = match kind(0).as_deref() {
        None => return Err(SourceError::Wrong("the query answers no column".into())),
        Some("TEXT" | "VARCHAR" | "NAME" | "citext" | "CITEXT") => {
            row.try_get_unchecked(0).map_err(failed)?
        }
        // Padded with blanks that are not the key's.
        Some(other) => {
            return Err(SourceError::Wrong(format!(
                "the query's first column is {other}, and a key is text: cast it, as in `SELECT key::text`"
            )));
        }
    };
    let size = match kind(1).as_deref() {
        None => None,
        Some("INT8") => row.try_get(1).map_err(failed)?,
        Some("INT4") => row.try_get::<Option<i32>, _>(1).map_err(failed)?.map(i64::from),
        Some("INT2") => row.try_get::<Option<i16>, _>(1).map_err(failed)?.map(i64::from),
        Some(other) => {
            return Err(SourceError::Wrong(format!(
                "the query's second column is {other}, and a size is a whole number: cast it, as in `size::bigint`"
            )));
        }
    };
    Ok((key, size))
}

fn of_sqlite(row: &SqliteRow, number: u64) -> Result<(Option<String>, Option<i64>), SourceError> {
    let kind = |at: usize| -> Result<Option<String>, SourceError> {
        if row.len() <= at {
            return Ok(None);
        }
        let value = row.try_get_raw(at).map_err(failed)?;
        Ok(Some(if value.is_null() { "NULL".into() } else { value.type_info().name().to_owned() }))
    };
    let key = match kind(0)?.as_deref() {
        None => return Err(SourceError::Wrong("the query answers no column".into())),
        Some("NULL") => None,
        Some("TEXT") => row
            .try_get_unchecked(0)
            .map_err(|_| SourceError::Wrong(format!("the key in row {number} of the query is not UTF-8")))?,
        Some(other) => {
            return Err(SourceError::Wrong(format!(
                "the key in row {number} of the query is {other}, and a key is text: CAST(… AS TEXT)"
            )));
        }
    };
    let size = match kind(1)?.as_deref() {
        None | Some("NULL") => None,
        Some("INTEGER") => row.try_get_unchecked(1).map_err(failed)?,
        Some(other) => {
            return Err(SourceError::Wrong(format!(
                "the size in row {number} of the query is {other}, and a size is a whole number"
            )));
        }
    };
    Ok((key, size))
}

fn failed(error: sqlx::Error) -> SourceError {
    match &error {
        sqlx::Error::Database(said) => {
            SourceError::Wrong(format!("the database refuses the query: {}", said.message()))
        }
        _ => SourceError::Unavailable(format!("the query broke off: {}", plain(&error))),
    }
}

/// Without the words that sqlx puts before what a database says, and without its URL.
fn plain(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(said) => said.message().to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_statement_is_taken_with_or_without_its_semicolon() {
        for (query, taken) in [
            ("SELECT 1", "SELECT 1"),
            ("SELECT 1;", "SELECT 1"),
            ("SELECT 1 ; \n -- the end; really\n ;/* ; */", "SELECT 1 "),
            (
                "SELECT ';' || \"a;b\", [c;d], `e;f`, 'it''s;' -- ;",
                "SELECT ';' || \"a;b\", [c;d], `e;f`, 'it''s;' -- ;",
            ),
            ("SELECT /* ; */ 'ü;' FROM x", "SELECT /* ; */ 'ü;' FROM x"),
        ] {
            assert_eq!(single_statement(query).expect(query), taken);
        }
        for query in [
            "SELECT 1; SELECT 2",
            "PRAGMA query_only=OFF; VACUUM INTO 'x'",
            "SELECT 'a'';';'; DROP TABLE x",
            "SELECT 1) ; VACUUM INTO 'x'; SELECT (1",
            "SELECT 1;/* */x",
        ] {
            assert!(single_statement(query).is_err(), "{query}");
        }
    }
}
