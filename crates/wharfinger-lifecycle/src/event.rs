//! The events in the life of a file.

use std::fmt;

use crate::stage::Stage;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The object was found, its size was checked, and its ETag or version was recorded.
    Confirmed,
    /// The first job was created.
    Enqueued,
    /// A worker started this stage.
    Started(Stage),
    /// A stage succeeded and another follows.
    Finished,
    /// The last stage succeeded, or there are no stages.
    Completed,
    /// An attempt failed and another follows.
    Retried,
    /// The job was missing or invalid and was replaced.
    Recovered,
    Failed,
    /// Infected, or changed in the store after it was confirmed.
    Quarantined,
    /// A person requested that a failed file is processed again.
    Redriven,
    /// An operator released a quarantined file.
    Released,
    /// A person requested one of the last two, but no stage is left.
    NothingLeft,
    /// The owner or an admin deleted it.
    Deleted,
    /// Not confirmed in time, or its batch was cancelled.
    Reclaimed,
    /// Failed or quarantined, and its retention period is over.
    Expired,
}

impl Event {
    pub const ALL: [Event; 18] = [
        Event::Confirmed,
        Event::Enqueued,
        Event::Started(Stage::Scan),
        Event::Started(Stage::Extract),
        Event::Started(Stage::Chunk),
        Event::Started(Stage::Embed),
        Event::Finished,
        Event::Completed,
        Event::Retried,
        Event::Recovered,
        Event::Failed,
        Event::Quarantined,
        Event::Redriven,
        Event::Released,
        Event::NothingLeft,
        Event::Deleted,
        Event::Reclaimed,
        Event::Expired,
    ];
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Confirmed => f.write_str("confirmed"),
            Event::Enqueued => f.write_str("enqueued"),
            Event::Started(stage) => write!(f, "started {}", stage.as_str()),
            Event::Finished => f.write_str("finished"),
            Event::Completed => f.write_str("completed"),
            Event::Retried => f.write_str("retried"),
            Event::Recovered => f.write_str("recovered"),
            Event::Failed => f.write_str("failed"),
            Event::Quarantined => f.write_str("quarantined"),
            Event::Redriven => f.write_str("redriven"),
            Event::Released => f.write_str("released"),
            Event::NothingLeft => f.write_str("nothing left"),
            Event::Deleted => f.write_str("deleted"),
            Event::Reclaimed => f.write_str("reclaimed"),
            Event::Expired => f.write_str("expired"),
        }
    }
}
