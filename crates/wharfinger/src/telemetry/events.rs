//! Metrics of event ingest.

use metrics::{counter, describe_counter, describe_gauge};

/// Why acknowledged events were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// The spool was full, so the oldest were removed.
    SpoolFull,
    /// Neither the store nor the disk accepted them.
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
        "Events stored in the object store, directly or from the spool"
    );
    describe_counter!("s3_put_errors_total", "Failed attempts to store a batch of events");
    describe_counter!(
        "dlq_events_enqueued_total",
        "Events written to the spool because the store did not accept them"
    );
    describe_counter!("dlq_events_reuploaded_total", "Events of the spool that were stored under RAW");
    describe_counter!("dlq_events_dropped_total", "Acknowledged events that were lost, by reason");
    describe_counter!(
        "dlq_events_expired_total",
        "Events lost because they were in the spool for longer than DLQ_MAX_AGE"
    );
    describe_counter!(
        "dlq_files_expired_total",
        "Batches removed from the spool unsent, because of DLQ_MAX_AGE or DLQ_MAX_SIZE_BYTES"
    );
    describe_counter!(
        "wharfinger_dlq_files_damaged_total",
        "Damaged batches in the spool that were copied to RAW_DLQ"
    );
    describe_gauge!("dlq_files_current", "Batches in the spool");
    describe_gauge!("dlq_size_bytes", "Size of the spool");
    describe_gauge!("wharfinger_dlq_size_bytes_max", "The limit DLQ_MAX_SIZE_BYTES");
    describe_gauge!("dlq_oldest_age_seconds", "Age of the oldest batch in the spool, 0 if it is empty");
    describe_gauge!("wharfinger_dlq_oldest_age_seconds_max", "The limit DLQ_MAX_AGE");
    describe_gauge!("wharfinger_ingest_store_up", "0 while the store does not accept events, else 1");
    describe_gauge!("wharfinger_ingest_memory_bytes_free", "The free part of INGEST_MEMORY_BYTES");
}

/// Starts the counters at 0: `increase()` in an alert needs a first value.
pub fn begin() {
    for name in [
        "s3_events_stored_total",
        "s3_put_errors_total",
        "dlq_events_enqueued_total",
        "dlq_events_reuploaded_total",
        "dlq_events_expired_total",
        "dlq_files_expired_total",
        "wharfinger_dlq_files_damaged_total",
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

/// The oldest batches were removed, because the spool is full.
pub fn evicted(files: u64, events: u64) {
    counter!("dlq_files_expired_total").increment(files);
    dropped(Dropped::SpoolFull, events);
}

pub fn dropped(reason: Dropped, events: u64) {
    counter!("dlq_events_dropped_total", "reason" => reason.as_str()).increment(events);
}

pub fn expired(files: u64, events: u64) {
    counter!("dlq_files_expired_total").increment(files);
    counter!("dlq_events_expired_total").increment(events);
}

pub fn damaged() {
    counter!("wharfinger_dlq_files_damaged_total").increment(1);
}
