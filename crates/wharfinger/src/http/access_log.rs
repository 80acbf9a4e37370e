//! One log line for each failed request, or for every request (`ACCESS_LOG`). Paths are logged without their query, which
//! may contain a signature.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use axum::response::Response;
use wharfinger_lifecycle::id::FileId;

use crate::config::AccessLog;

/// Why a request failed. `Problem` leaves it in the answer for the log.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub code: &'static str,
    /// The cause of a 5xx, which the client does not see.
    pub cause: Option<String>,
}

/// The request of an answer.
pub(super) struct Logged<'r> {
    pub method: &'r Method,
    /// As it is routed, with names instead of values.
    pub route: &'r str,
    pub path: &'r str,
}

pub(super) fn log(request: &Logged<'_>, response: &Response, took: Duration, mode: AccessLog) {
    let Logged { method, route, path } = request;
    let status = response.status();
    let failed = response.extensions().get::<Failed>();
    let (code, error) = (failed.map(|failed| failed.code), failed.and_then(|failed| failed.cause.as_deref()));
    let file_id = file_of(route, path).map(|id| id.to_string());
    let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    macro_rules! line {
        ($level:ident, $message:literal) => {
            tracing::$level!(
                method = %method, path, status = status.as_u16(), code, error, fileId = file_id,
                durationMs = duration_ms, $message
            )
        };
    }
    match (status, mode) {
        (StatusCode::SERVICE_UNAVAILABLE, _) => line!(warn, "request failed, the client can retry it"),
        (status, _) if status.is_server_error() => line!(error, "request failed, a retry does not help"),
        (_, AccessLog::None) => {}
        (status, _) if status.is_client_error() => line!(info, "request refused"),
        (_, AccessLog::All) => line!(info, "request answered"),
        (_, AccessLog::Failed) => {}
    }
}

/// The file that the path names.
fn file_of(route: &str, path: &str) -> Option<FileId> {
    const BY_ID: [&str; 3] = ["/api/v2/files/{id}", "/files/{id}", "/api/v1/documents/{id}"];
    if route.starts_with("/blobs/") {
        return path.rsplit('/').next()?.parse().ok();
    }
    let name = if BY_ID.iter().any(|start| route.starts_with(start)) { "{id}" } else { "{fileId}" };
    let mut pairs = route.split('/').zip(path.split('/'));
    pairs.find(|(named, _)| *named == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::file_of;

    #[test]
    fn the_file_of_a_path() {
        let id = "01977420-dc00-7639-b4cc-0216978d32b7";
        for (route, path) in [
            ("/api/v2/files/{id}/confirm", format!("/api/v2/files/{id}/confirm")),
            ("/files/{id}/confirm", format!("/files/{id}/confirm")),
            ("/api/v2/uploads/stuck/{fileId}/retry", format!("/api/v2/uploads/stuck/{id}/retry")),
            ("/blobs/{*key}", format!("/blobs/uploads/t/u/{id}")),
        ] {
            assert_eq!(file_of(route, &path).map(|id| id.to_string()).as_deref(), Some(id), "{route}");
        }
        for (route, path) in [
            ("/api/v2/batches/{id}", format!("/api/v2/batches/{id}")),
            ("/api/v2/files/{id}", "/api/v2/files/none".to_owned()),
            ("none", format!("/{id}")),
        ] {
            assert_eq!(file_of(route, &path), None, "{route}");
        }
    }
}
