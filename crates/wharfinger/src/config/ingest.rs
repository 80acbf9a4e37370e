//! The settings of event ingest: request limits, acknowledgement, batches and the spool.

use std::path::{Path, PathBuf};

use wharfinger_stores::StoreConfig;

use super::layers::Values;
use super::{BadSetting, DURATION_MS_MAX, blob_url, boolean};

/// When a request with events is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// When its events are in this process's memory.
    Memory,
    /// When they are on this machine's disk (fsync): they survive a power failure.
    Disk,
    /// When they are in the object store.
    Stored,
}

#[derive(Clone, Debug)]
pub struct IngestSettings {
    pub ack: Ack,
    /// None: the store of the files.
    pub place: Option<StoreConfig>,
    pub batch_events: usize,
    pub batch_bytes: usize,
    pub batch_age_ms: u64,
    pub inflated_bytes_max: usize,
    pub memory_bytes: usize,
    pub segments_dir: PathBuf,
    pub spool_dir: PathBuf,
    pub spool_age_ms_max: i64,
    pub spool_bytes_max: u64,
    /// File events are archived as events.
    pub archive: bool,
}

/// The memory of one request holds its body, the inflated body, its lines, and the lines of a batch that is compressed.
const REQUESTS_IN_MEMORY_MIN: u64 = 4;

impl IngestSettings {
    pub(super) fn from_values(values: &Values, data_dir: &Path) -> Result<IngestSettings, BadSetting> {
        let inflated_bytes_max = values.size("INGEST_MAX_INFLATED_BYTES", 1 << 10, 1 << 30)?;
        let memory_bytes = values.size("INGEST_MEMORY_BYTES", 4 << 20, 1 << 40)?;
        if memory_bytes < REQUESTS_IN_MEMORY_MIN * inflated_bytes_max {
            let problem = format!(
                "must be at least {REQUESTS_IN_MEMORY_MIN} times INGEST_MAX_INFLATED_BYTES, or the largest request \
                 would never be accepted"
            );
            return Err(BadSetting::new("INGEST_MEMORY_BYTES", problem));
        }
        let batch_bytes = values.size("INGEST_BATCH_BYTES", 1 << 10, 1 << 30)?;
        if memory_bytes < REQUESTS_IN_MEMORY_MIN * batch_bytes {
            let problem = format!(
                "must be at most INGEST_MEMORY_BYTES / {REQUESTS_IN_MEMORY_MIN}, or a batch would never close"
            );
            return Err(BadSetting::new("INGEST_BATCH_BYTES", problem));
        }
        let ack = ack(&values.text("INGEST_ACK")?)?;
        let archive = boolean("AUDIT_TO_INGEST", values)?;
        if archive && ack == Ack::Memory {
            let problem =
                "needs INGEST_ACK=disk or INGEST_ACK=stored, because an archive must not lose events";
            return Err(BadSetting::new("AUDIT_TO_INGEST", problem));
        }
        Ok(IngestSettings {
            ack,
            place: blob_url::events_place(values, data_dir)?,
            batch_events: values.integer("INGEST_BATCH_EVENTS", 1, 10_000_000)? as usize,
            batch_bytes: batch_bytes as usize,
            batch_age_ms: values.duration_ms("INGEST_BATCH_AGE_MS", 1, 3_600_000)?,
            inflated_bytes_max: inflated_bytes_max as usize,
            memory_bytes: memory_bytes as usize,
            segments_dir: data_dir.join("ingest"),
            spool_dir: values.get("DLQ_DIR").map_or_else(|| data_dir.join("dlq"), PathBuf::from),
            spool_age_ms_max: values.duration_ms("DLQ_MAX_AGE", 1, DURATION_MS_MAX)? as i64,
            spool_bytes_max: values.size("DLQ_MAX_SIZE_BYTES", 1, 1 << 60)?,
            archive,
        })
    }
}

fn ack(word: &str) -> Result<Ack, BadSetting> {
    match word {
        "memory" => Ok(Ack::Memory),
        "disk" => Ok(Ack::Disk),
        "stored" => Ok(Ack::Stored),
        other => {
            Err(BadSetting::new("INGEST_ACK", format!("must be `memory`, `disk` or `stored`, not `{other}`")))
        }
    }
}
