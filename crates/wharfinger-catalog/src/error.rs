//! What can go wrong with the catalog, named by what the caller can do about it.

use crate::database::connect::is_disconnected;
use wharfinger_calls::faults::InjectedFault;

#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// Somebody else changed the row first: read it again.
    #[error("the row was changed meanwhile")]
    Stale,
    /// Another has taken over the work that this belongs to: nothing happened, and nothing more is ours to do.
    #[error("the work was taken over by another")]
    Fenced,
    /// Nothing happened. Trying again may help.
    #[error("the catalog is unavailable: {0}")]
    Unavailable(String),
    /// Nothing happened, and the database asks to repeat the transaction.
    #[error("the database asks to repeat a transaction: {0}")]
    Repeat(String),
    /// Nothing happened: a table or row was locked by another for too long.
    #[error("a lock was not to be had in time: {0}")]
    LockTimeout(String),
    /// Nothing happened: the connection broke, or its server takes no writes any more. Another may do.
    #[error("the connection to the database was lost: {0}")]
    Disconnected(String),
    /// Only a person can help, by what it says.
    #[error("{0}")]
    Unusable(String),
    /// The commit was sent and its answer lost: it may have happened. Whoever looks at the row next knows.
    #[error("the outcome of a commit is unknown: {0}")]
    Unknown(String),
    /// A row that cannot be read, or a rule of the schema that a write would have broken: a bug or a foreign hand.
    #[error("the catalog is damaged or was misused: {0}")]
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
                // Serialization failure and deadlock, in PostgreSQL's words.
                if code == "40001" || code == "40P01" {
                    return CatalogError::Repeat(error.to_string());
                }
                if code == "55P03" {
                    return CatalogError::LockTimeout(error.to_string());
                }
                if code == "42501" {
                    return CatalogError::Unusable(format!("a right is missing: {error}"));
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
