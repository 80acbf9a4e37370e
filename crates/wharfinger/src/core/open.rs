//! What a process is opened for, and what can keep it from starting.

use wharfinger_catalog::CatalogError;
use wharfinger_engines::webhooks::EndpointError;

use crate::config::BadSetting;
use crate::store::ClaimError;

/// What a process is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    ToServe,
    /// Nothing but events: what waits on disk for the store does not wait for it here.
    ToTakeEvents,
    Beside,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Setting(#[from] BadSetting),
    #[error("{}", named(.0))]
    Catalog(#[from] CatalogError),
    #[error("WHARFINGER_BLOB_URL: {0}")]
    Blobs(String),
    #[error("WHARFINGER_QUOTA_URL: {0}")]
    Quota(String),
    #[error("WHARFINGER_BROKER_URL: {0}")]
    Broker(String),
    #[error("OTEL_EXPORTER_OTLP_ENDPOINT: {0}")]
    Traces(String),
    #[error("WEBHOOK_URL: {0}")]
    Notify(#[from] EndpointError),
    #[error(transparent)]
    Store(#[from] ClaimError),
    /// Names its setting.
    #[error("{0}")]
    Ingest(String),
}

/// What a person has to mend begins with the setting that leads there.
pub fn named(error: &CatalogError) -> String {
    match error {
        CatalogError::Unusable(problem) => format!("WHARFINGER_DATABASE_URL: {problem}"),
        other => other.to_string(),
    }
}
