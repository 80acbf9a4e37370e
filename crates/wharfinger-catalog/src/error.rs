//! Errors of the catalog, named by what the caller can do about them.

use crate::database::connect::is_disconnected;
use wharfinger_calls::faults::InjectedFault;

#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The row was changed first by another writer: read it again.
    #[error("the row has changed since it was read")]
    Stale,
    /// Another process has taken over this work. Nothing happened: stop the work.
    #[error("another process has taken over this work")]
    Fenced,
    /// Nothing happened. Trying again may help.
    #[error("the database is unavailable: {0}")]
    Unavailable(String),
    /// Nothing happened: the transaction conflicted with another. Repeat it.
    #[error("the transaction conflicted with another one: {0}")]
    Repeat(String),
    /// Nothing happened: another transaction held a lock for too long.
    #[error("timeout while waiting for a database lock: {0}")]
    LockTimeout(String),
    /// Nothing happened: the connection broke, or its server became read-only. Another connection may work.
    #[error("the connection to the database was lost: {0}")]
    Disconnected(String),
    /// A person has to act; the text says how.
    #[error("{0}")]
    Unusable(String),
    /// The answer to a commit was lost: it may have happened. The next read of the rows shows which.
    #[error("the outcome of a commit is unknown: {0}")]
    Unknown(String),
    /// A row cannot be read, or a write broke a rule of the schema: a bug, or the database was edited by hand.
    #[error("the catalog is damaged, or this is a bug: {0}")]
    Corrupt(String),
}

impl CatalogError {
    pub fn is_retryable(&self) -> bool {
        match self {
            CatalogError::Stale
            | CatalogError::Unavailable(_)
            | CatalogError::Repeat(_)
            | CatalogError::LockTimeout(_)
            | CatalogError::Disconnected(_) => true,
            CatalogError::Fenced
            | CatalogError::Unusable(_)
            | CatalogError::Unknown(_)
            | CatalogError::Corrupt(_) => false,
        }
    }
}

impl From<InjectedFault> for CatalogError {
    fn from(injected: InjectedFault) -> Self {
        CatalogError::Unavailable(injected.to_string())
    }
}

impl From<sqlx::Error> for CatalogError {
    fn from(error: sqlx::Error) -> Self {
        if is_disconnected(&error) {
            return CatalogError::Disconnected(error.to_string());
        }
        match &error {
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default().into_owned();
                let broken_rule = database.is_unique_violation()
                    || database.is_check_violation()
                    || database.is_foreign_key_violation()
                    || matches!(database.kind(), sqlx::error::ErrorKind::NotNullViolation);
                // PostgreSQL: serialization failure, deadlock.
                if code == "40001" || code == "40P01" {
                    return CatalogError::Repeat(error.to_string());
                }
                if code == "55P03" {
                    return CatalogError::LockTimeout(error.to_string());
                }
                if code == "42501" {
                    return CatalogError::Unusable(format!("the database user lacks a permission: {error}"));
                }
                // 42xxx: the statement itself is wrong for this schema.
                if broken_rule || code.starts_with("42") {
                    CatalogError::Corrupt(error.to_string())
                } else {
                    CatalogError::Unavailable(error.to_string())
                }
            }
            sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::ColumnIndexOutOfBounds { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::Encode(_) => CatalogError::Corrupt(error.to_string()),
            _ => CatalogError::Unavailable(error.to_string()),
        }
    }
}
