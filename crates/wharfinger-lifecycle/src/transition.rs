//! The transition table of files. Every pair of status and event is listed, except for deleted files, which accept no
//! event. So a new status or event does not compile until its pairs are decided.

use crate::event::Event;
use crate::state::Status;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransitionError {
    #[error("the file is deleted")]
    Deleted,
    #[error("the event `{event}` is not allowed for a file in status `{from}`")]
    NotAllowed { from: Status, event: Event },
}

pub fn transition(from: Status, event: Event) -> Result<Status, TransitionError> {
    let not_allowed = Err(TransitionError::NotAllowed { from, event });
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
            | Event::Released
            | Event::NothingLeft
            | Event::Expired => not_allowed,
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
            | Event::Released
            | Event::NothingLeft
            | Event::Reclaimed
            | Event::Expired => not_allowed,
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
            | Event::Released
            | Event::NothingLeft
            | Event::Reclaimed
            | Event::Expired => not_allowed,
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
            | Event::Released
            | Event::NothingLeft
            | Event::Reclaimed
            | Event::Expired => not_allowed,
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
            | Event::Released
            | Event::NothingLeft
            | Event::Reclaimed
            | Event::Expired => not_allowed,
        },
        Status::Failed => match event {
            Event::Redriven => Ok(Status::Queued),
            Event::NothingLeft => Ok(Status::Ready),
            // Its object was changed by another program.
            Event::Quarantined => Ok(Status::Quarantined),
            Event::Deleted | Event::Expired => Ok(Status::Deleted),
            Event::Confirmed
            | Event::Enqueued
            | Event::Started(_)
            | Event::Finished
            | Event::Completed
            | Event::Retried
            | Event::Recovered
            | Event::Failed
            | Event::Released
            | Event::Reclaimed => not_allowed,
        },
        Status::Quarantined => match event {
            Event::Released => Ok(Status::Queued),
            Event::NothingLeft => Ok(Status::Ready),
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
            | Event::Redriven
            | Event::Reclaimed => not_allowed,
        },
        Status::Deleted => Err(TransitionError::Deleted),
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

    fn is_kept_for_a_time(status: Status) -> bool {
        matches!(status, Status::Failed | Status::Quarantined)
    }

    proptest! {
        /// For events in any order: a deleted file stays deleted, only `Deleted` ends a confirmed file that neither
        /// failed nor is quarantined, and an unconfirmed file is never processed.
        #[test]
        fn random_event_sequences(events in prop::collection::vec(prop::sample::select(Event::ALL.to_vec()), 0..60)) {
            let mut status = Status::Registered;
            let mut confirmed = false;
            for event in events {
                let Ok(next) = transition(status, event) else { continue };
                prop_assert_ne!(status, Status::Deleted, "left the deleted status by {}", event);
                confirmed |= event == Event::Confirmed;
                prop_assert!(confirmed || matches!(next, Status::Registered | Status::Deleted));
                if confirmed && next == Status::Deleted {
                    prop_assert!(event == Event::Deleted || (event == Event::Expired && is_kept_for_a_time(status)));
                }
                status = next;
            }
        }
    }
}
