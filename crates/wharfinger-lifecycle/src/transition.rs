//! The one function that says what follows from what. Every pair is written out, so that a new state or
//! event does not compile until somebody has decided about all of its pairs.

use crate::event::Event;
use crate::state::Status;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("a deleted file stays deleted")]
    Dead,
    #[error("a {from} file cannot be {event}")]
    NotFrom { from: Status, event: Event },
}

pub fn transition(from: Status, event: Event) -> Result<Status, Refusal> {
    let no = Err(Refusal::NotFrom { from, event });
    match from {
        Status::Registered => match event {
            Event::Confirmed => Ok(Status::Uploaded),
            Event::Deleted | Event::Reclaimed => Ok(Status::Deleted),
            Event::Enqueued
            | Event::Started(_)
            | Event::Finished
            | Event::Completed
            | Event::Retried
            | Event::Recovered
            | Event::Failed
            | Event::Quarantined
            | Event::Redriven
            | Event::Expired => no,
        },
        Status::Uploaded => match event {
            Event::Enqueued | Event::Recovered => Ok(Status::Queued),
            Event::Completed => Ok(Status::Ready),
            Event::Failed => Ok(Status::Failed),
            Event::Quarantined => Ok(Status::Quarantined),
            Event::Deleted => Ok(Status::Deleted),
            Event::Confirmed
            | Event::Started(_)
            | Event::Finished
            | Event::Retried
            | Event::Redriven
            | Event::Reclaimed
            | Event::Expired => no,
        },
        Status::Queued => match event {
            Event::Started(stage) => Ok(stage.status()),
            Event::Recovered => Ok(Status::Queued),
            Event::Failed => Ok(Status::Failed),
            Event::Quarantined => Ok(Status::Quarantined),
            Event::Deleted => Ok(Status::Deleted),
            Event::Confirmed
            | Event::Enqueued
            | Event::Finished
            | Event::Completed
            | Event::Retried
            | Event::Redriven
            | Event::Reclaimed
            | Event::Expired => no,
        },
        Status::Scanning | Status::Extracting | Status::Chunking | Status::Embedding => match event {
            Event::Finished | Event::Retried | Event::Recovered => Ok(Status::Queued),
            Event::Completed => Ok(Status::Ready),
            Event::Failed => Ok(Status::Failed),
            Event::Quarantined => Ok(Status::Quarantined),
            Event::Deleted => Ok(Status::Deleted),
            Event::Confirmed
            | Event::Enqueued
            | Event::Started(_)
            | Event::Redriven
            | Event::Reclaimed
            | Event::Expired => no,
        },
        Status::Ready => match event {
            Event::Quarantined => Ok(Status::Quarantined),
            Event::Deleted => Ok(Status::Deleted),
            Event::Confirmed
            | Event::Enqueued
            | Event::Started(_)
            | Event::Finished
            | Event::Completed
            | Event::Retried
            | Event::Recovered
            | Event::Failed
            | Event::Redriven
            | Event::Reclaimed
            | Event::Expired => no,
        },
        Status::Failed => match event {
            Event::Redriven => Ok(Status::Queued),
            Event::Deleted | Event::Expired => Ok(Status::Deleted),
            Event::Confirmed
            | Event::Enqueued
            | Event::Started(_)
            | Event::Finished
            | Event::Completed
            | Event::Retried
            | Event::Recovered
            | Event::Failed
            | Event::Quarantined
            | Event::Reclaimed => no,
        },
        Status::Quarantined => match event {
            Event::Deleted => Ok(Status::Deleted),
            Event::Confirmed
            | Event::Enqueued
            | Event::Started(_)
            | Event::Finished
            | Event::Completed
            | Event::Retried
            | Event::Recovered
            | Event::Failed
            | Event::Quarantined
            | Event::Redriven
            | Event::Reclaimed
            | Event::Expired => no,
        },
        Status::Deleted => Err(Refusal::Dead),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whole_table() {
        let mut table = String::new();
        for from in Status::ALL {
            for event in Event::ALL {
                let outcome = match transition(from, event) {
                    Ok(to) => to.to_string(),
                    Err(_) => "-".to_owned(),
                };
                table.push_str(&format!("{:<12} {:<16} {outcome}\n", from.to_string(), event.to_string()));
            }
        }
        insta::assert_snapshot!(table);
    }

    proptest! {
        /// Whatever happens in whatever order: dead stays dead, only the owner ends a confirmed file that
        /// did not fail, and nothing is worked on that was never confirmed.
        #[test]
        fn random_histories(events in prop::collection::vec(prop::sample::select(Event::ALL.to_vec()), 0..60)) {
            let mut status = Status::Registered;
            let mut confirmed = false;
            for event in events {
                let Ok(next) = transition(status, event) else { continue };
                prop_assert_ne!(status, Status::Deleted, "left the dead state by {}", event);
                confirmed |= event == Event::Confirmed;
                prop_assert!(confirmed || matches!(next, Status::Registered | Status::Deleted));
                if confirmed && next == Status::Deleted {
                    prop_assert!(event == Event::Deleted || (event == Event::Expired && status == Status::Failed));
                }
                status = next;
            }
        }
    }
}
