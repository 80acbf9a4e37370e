//! Checks the store and the spool folder of events, if they are configured.

use super::{Finding, bad, good};
use crate::config::Settings;

pub(super) async fn check(settings: &Settings, findings: &mut Vec<Finding>) {
    let spool = &settings.ingest.spool_dir;
    if spool.exists() && !spool.is_dir() {
        findings.push(bad("events", format!("DLQ_DIR: {} is not a folder", spool.display())));
    }
    let Some(place) = &settings.ingest.place else { return };
    let wrong = |error: String| bad("events", format!("INGEST_BLOB_URL: {place}: {error}"));
    findings.push(match place.connect().await {
        Err(error) => wrong(error.to_string()),
        Ok(None) => good("events", format!("are stored at {place}")),
        Ok(Some(store)) => match store.check().await {
            Ok(()) => good("events", format!("are stored at {place}")),
            Err(error) => wrong(error.to_string()),
        },
    });
}
