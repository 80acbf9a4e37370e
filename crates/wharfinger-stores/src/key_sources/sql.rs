//! Keys from a query of the user's database. The database is opened read-only; on PostgreSQL, one read-only transaction
//! sees the data of one moment. The query must be one statement and becomes the source of our SELECT. So the database
//! rejects statements that write files even when read-only, like VACUUM INTO and COPY (test `a_query_cannot_write`).
//! The rows may have any order: collations sort in another order than stores.

use std::str::FromStr as _;

use futures::{StreamExt as _, TryStreamExt as _};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions as _, Connection as _, Row, TypeInfo as _, ValueRef as _,
};
use wharfinger_reconcile::{Entry, KEY_BYTES_MAX};

use super::{ReadStats, Sink, SourceError};

/// Whether a URL is of a supported database.
pub fn is_database(url: &str) -> bool {
    ["postgres://", "postgresql://", "sqlite:"].iter().any(|scheme| url.starts_with(scheme))
}

/// Reads all rows of a query. The first column is the key; an optional second column is the expected size of the
/// object.
pub async fn read_query(url: &str, query: &str, sink: &mut Sink<'_>) -> Result<ReadStats, SourceError> {
    match url.strip_prefix("sqlite:") {
        Some(path) => read_sqlite(path.strip_prefix("//").unwrap_or(path), query, sink).await,
        None => read_postgres(url, query, sink).await,
    }
}

async fn read_sqlite(path: &str, query: &str, sink: &mut Sink<'_>) -> Result<ReadStats, SourceError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .create_if_missing(false)
        .pragma("query_only", "ON")
        .log_statements(tracing::log::LevelFilter::Off);
    let mut connection = SqliteConnection::connect_with(&options)
        .await
        .map_err(|error| SourceError::Unavailable(format!("cannot open {path}: {}", short_text(&error))))?;
    let read = read_sqlite_rows(&mut connection, query, sink).await;
    // The connection has written nothing, so an error here does not matter.
    drop(connection.close().await);
    read
}

async fn read_sqlite_rows(
    connection: &mut SqliteConnection,
    query: &str,
    sink: &mut Sink<'_>,
) -> Result<ReadStats, SourceError> {
    let query = wrapped_in_select(single_statement(query)?);
    let mut rows = sqlx::query(AssertSqlSafe(query)).fetch(connection);
    let mut reader = RowReader::default();
    while let Some(row) = rows.next().await {
        let row = row.map_err(query_error)?;
        reader.rows += 1;
        let row = sqlite_row(&row, reader.rows)?;
        reader.take(row, sink)?;
    }
    Ok(reader.stats)
}

async fn read_postgres(url: &str, query: &str, sink: &mut Sink<'_>) -> Result<ReadStats, SourceError> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|error| {
            SourceError::Invalid(format!("the database's URL is invalid: {}", short_text(&error)))
        })?
        .application_name("wharfinger reconcile")
        .statement_cache_capacity(0)
        .log_statements(tracing::log::LevelFilter::Off);
    let mut connection = PgConnection::connect_with(&options).await.map_err(|error| {
        SourceError::Unavailable(format!("cannot connect to the database: {}", short_text(&error)))
    })?;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .execute(&mut connection)
        .await
        .map_err(query_error)?;
    let read = read_postgres_rows(&mut connection, query, sink).await;
    // The transaction ends with its connection. It has changed nothing.
    drop(connection.close().await);
    read
}

async fn read_postgres_rows(
    connection: &mut PgConnection,
    query: &str,
    sink: &mut Sink<'_>,
) -> Result<ReadStats, SourceError> {
    // It is prepared, and PostgreSQL prepares single statements only, so it cannot end the transaction first.
    let query = wrapped_in_select(query.trim_end().trim_end_matches(';'));
    let mut rows = sqlx::query(AssertSqlSafe(query)).fetch(connection);
    let mut reader = RowReader::default();
    while let Some(row) = rows.try_next().await.map_err(query_error)? {
        reader.rows += 1;
        let row = postgres_row(&row)?;
        reader.take(row, sink)?;
    }
    Ok(reader.stats)
}

/// The line break after the query ends a comment in its last line.
fn wrapped_in_select(query: &str) -> String {
    format!("SELECT * FROM (\n{query}\n) AS keys")
}

/// The query without its final semicolon. SQLite's driver would run several statements, so a second one is an error. A
/// semicolon inside a string, a quoted name or a comment does not end a statement.
fn single_statement(query: &str) -> Result<&str, SourceError> {
    let Some(end) = first_semicolon(query) else { return Ok(query) };
    match first_token(&query[end..]) {
        None => Ok(&query[..end]),
        Some(_) => Err(SourceError::Invalid("--sql takes one statement only".into())),
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

/// The first token that is not a semicolon, a blank or a comment.
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

/// The length of the string, quoted name or comment at the start of the text. For anything else, one character.
fn token_length(text: &str) -> usize {
    let through = |end: &str, from: usize| {
        text.get(from..).and_then(|rest| rest.find(end)).map_or(text.len(), |at| from + at + end.len())
    };
    match text.as_bytes() {
        [b'-', b'-', ..] => through("\n", 2),
        [b'/', b'*', ..] => through("*/", 2),
        // A doubled quote ends one string and starts the next, which gives the same total length.
        [b'\'', ..] => through("'", 1),
        [b'"', ..] => through("\"", 1),
        [b'`', ..] => through("`", 1),
        [b'[', ..] => through("]", 1),
        _ => text.chars().next().map_or(1, char::len_utf8),
    }
}

#[derive(Default)]
struct RowReader {
    rows: u64,
    stats: ReadStats,
}

impl RowReader {
    fn take(
        &mut self,
        (key, size): (Option<String>, Option<i64>),
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        match key.filter(|key| !key.is_empty()) {
            None => {
                self.stats.skipped += 1;
                Ok(())
            }
            Some(key) if key.len() > KEY_BYTES_MAX => Err(SourceError::Invalid(format!(
                "the key in row {} of the query is longer than the longest key ({KEY_BYTES_MAX} bytes)",
                self.rows
            ))),
            Some(key) => {
                let size = size.and_then(|size| u64::try_from(size).ok());
                sink(Entry { key, size, modified_at: None }).map_err(SourceError::Write)
            }
        }
    }
}

fn postgres_row(row: &PgRow) -> Result<(Option<String>, Option<i64>), SourceError> {
    let kind = |at: usize| row.columns().get(at).map(|column| column.type_info().name().to_owned());
    let key = match kind(0).as_deref() {
        None => return Err(SourceError::Invalid("the query returns no column".into())),
        Some("TEXT" | "VARCHAR" | "NAME" | "citext" | "CITEXT") => {
            row.try_get_unchecked(0).map_err(query_error)?
        }
        // CHAR(n) is not accepted, because it pads keys with blanks.
        Some(other) => {
            return Err(SourceError::Invalid(format!(
                "the query's first column has the type {other}, but a key is text: cast it, for example \
                 `SELECT key::text`"
            )));
        }
    };
    let size = match kind(1).as_deref() {
        None => None,
        Some("INT8") => row.try_get(1).map_err(query_error)?,
        Some("INT4") => row.try_get::<Option<i32>, _>(1).map_err(query_error)?.map(i64::from),
        Some("INT2") => row.try_get::<Option<i16>, _>(1).map_err(query_error)?.map(i64::from),
        Some(other) => {
            return Err(SourceError::Invalid(format!(
                "the query's second column has the type {other}, but a size is an integer: cast it, for example \
                 `size::bigint`"
            )));
        }
    };
    Ok((key, size))
}

fn sqlite_row(row: &SqliteRow, number: u64) -> Result<(Option<String>, Option<i64>), SourceError> {
    let kind = |at: usize| -> Result<Option<String>, SourceError> {
        if row.len() <= at {
            return Ok(None);
        }
        let value = row.try_get_raw(at).map_err(query_error)?;
        Ok(Some(if value.is_null() { "NULL".into() } else { value.type_info().name().to_owned() }))
    };
    let key = match kind(0)?.as_deref() {
        None => return Err(SourceError::Invalid("the query returns no column".into())),
        Some("NULL") => None,
        Some("TEXT") => row.try_get_unchecked(0).map_err(|_| {
            SourceError::Invalid(format!("the key in row {number} of the query is not UTF-8"))
        })?,
        Some(other) => {
            return Err(SourceError::Invalid(format!(
                "the key in row {number} of the query has the type {other}, but a key is text: use CAST(… AS TEXT)"
            )));
        }
    };
    let size = match kind(1)?.as_deref() {
        None | Some("NULL") => None,
        Some("INTEGER") => row.try_get_unchecked(1).map_err(query_error)?,
        Some(other) => {
            return Err(SourceError::Invalid(format!(
                "the size in row {number} of the query has the type {other}, but a size is an integer"
            )));
        }
    };
    Ok((key, size))
}

fn query_error(error: sqlx::Error) -> SourceError {
    match &error {
        sqlx::Error::Database(cause) => {
            SourceError::Invalid(format!("the database rejected the query: {}", cause.message()))
        }
        _ => SourceError::Unavailable(format!("the query was interrupted: {}", short_text(&error))),
    }
}

/// The database's own message, without the prefix of sqlx and without the URL.
fn short_text(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(cause) => cause.message().to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_statement_is_accepted_with_or_without_its_semicolon() {
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
