//! What can happen to a file, in the past tense: events are facts, not wishes.

use std::fmt;

use crate::stage::Stage;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The object was found, measured and pinned.
    Confirmed,
    /// Its first job was written.
    Enqueued,
    /// A worker took it.
    Started(Stage),
    /// A stage ended and another follows.
    Finished,
    /// Nothing is left to do.
    Completed,
    /// An attempt failed and there will be another.
    Retried,
    /// Its job was missing or unsound and was replaced.
    Recovered,
    Failed,
    /// Infected, poisonous, or changed behind our back.
    Quarantined,
    /// A person sent a failed file through again.
    Redriven,
    /// Its owner, or somebody for them, deleted it.
    Deleted,
    /// Nobody confirmed it in its time.
    Reclaimed,
    /// A failure was kept for its whole retention.
    Expired,
}

impl Event {
    pub const ALL: [Event; 16] = [
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
            Event::Deleted => f.write_str("deleted"),
            Event::Reclaimed => f.write_str("reclaimed"),
            Event::Expired => f.write_str("expired"),
        }
    }
}
