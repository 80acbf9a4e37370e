//! What became of events, counted.

use metrics::{counter, describe_counter, describe_gauge};

/// Why acknowledged events are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// The oldest made room for newer ones.
    SpoolFull,
    /// Neither the store nor the disk took them.
    NowhereToStore,
}

impl Dropped {
    const ALL: [Dropped; 2] = [Dropped::SpoolFull, Dropped::NowhereToStore];

    fn as_str(self) -> &'static str {
        match self {
            Dropped::SpoolFull => "spool_full",
            Dropped::NowhereToStore => "nowhere_to_store",
        }
    }
}

pub(super) fn describe() {
    describe_counter!(
        "s3_events_stored_total",
        "Events that are in the object store, on whichever way they came there"
    );
    describe_counter!("s3_put_errors_total", "Attempts to store a batch of events that failed");
    describe_counter!(
        "dlq_events_enqueued_total",
        "Events that were put on disk because the store did not take them"
    );
    describe_counter!("dlq_events_reuploaded_total", "Events that waited on disk and were stored");
    describe_counter!("dlq_events_dropped_total", "Acknowledged events that were lost, by reason");
    describe_counter!(
        "dlq_events_expired_total",
        "Events that waited on disk for longer than DLQ_MAX_AGE and were lost"
    );
    describe_counter!(
        "dlq_files_expired_total",
        "Batches that waited on disk for longer than DLQ_MAX_AGE and were lost"
    );
    describe_counter!(
        "dlq_files_damaged_total",
        "Batches that were damaged on disk and went to RAW_DLQ as they were"
    );
    describe_gauge!("dlq_files_current", "Batches that wait on disk");
    describe_gauge!("dlq_size_bytes", "Their size");
    describe_gauge!("dlq_size_bytes_max", "DLQ_MAX_SIZE_BYTES");
    describe_gauge!(
        "dlq_oldest_age_seconds",
        "How long ago the oldest of them was begun; 0 if there is none"
    );
    describe_gauge!("dlq_oldest_age_seconds_max", "DLQ_MAX_AGE");
    describe_gauge!("ingest_store_up", "0 while the store does not take events");
    describe_gauge!("ingest_memory_bytes_free", "What is left of INGEST_MEMORY_BYTES");
}

/// What has not happened yet is 0, not absent: rules compare it with what comes.
pub fn begin() {
    for name in [
        "s3_events_stored_total",
        "s3_put_errors_total",
        "dlq_events_enqueued_total",
        "dlq_events_reuploaded_total",
        "dlq_events_expired_total",
        "dlq_files_expired_total",
        "dlq_files_damaged_total",
    ] {
        counter!(name).increment(0);
    }
    for reason in Dropped::ALL {
        dropped(reason, 0);
    }
}

pub fn stored(events: u64) {
    counter!("s3_events_stored_total").increment(events);
}

pub fn put_failed() {
    counter!("s3_put_errors_total").increment(1);
}

pub fn spooled(events: u64) {
    counter!("dlq_events_enqueued_total").increment(events);
}

pub fn reuploaded(events: u64) {
    counter!("dlq_events_reuploaded_total").increment(events);
}

pub fn dropped(reason: Dropped, events: u64) {
    counter!("dlq_events_dropped_total", "reason" => reason.as_str()).increment(events);
}

pub fn expired(files: u64, events: u64) {
    counter!("dlq_files_expired_total").increment(files);
    counter!("dlq_events_expired_total").increment(events);
}

pub fn damaged() {
    counter!("dlq_files_damaged_total").increment(1);
}
