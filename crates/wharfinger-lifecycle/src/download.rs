//! Whether the bytes of a file may be given out, decided by its row.

use crate::file::{File, Pin};
use crate::stage::Stage;
use crate::state::Status;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownloadRefusal {
    /// Not confirmed, in the pipeline, or failed before its scan ended.
    NotReady,
    Quarantined,
}

/// The bytes that a client of the file's owner may download. A failed file may be downloaded too, unless its pipeline has
/// a scan that did not end.
pub fn downloadable(file: &File) -> Result<&Pin, DownloadRefusal> {
    let is_open = match file.status {
        Status::Ready => true,
        Status::Failed => has_passed_scan(file),
        Status::Quarantined => return Err(DownloadRefusal::Quarantined),
        Status::Registered
        | Status::Uploaded
        | Status::Queued
        | Status::Scanning
        | Status::Extracting
        | Status::Chunking
        | Status::Embedding
        | Status::Deleted => false,
    };
    file.pin.as_ref().filter(|_| is_open).ok_or(DownloadRefusal::NotReady)
}

/// Whether a failed file has no scan, or failed at a stage after it. A file whose dead letter was discarded has no current
/// stage any more. Its list then ends with the scan if that has not ended, and otherwise with the stage that failed.
fn has_passed_scan(file: &File) -> bool {
    let place_of = |wanted: Stage| file.stages().iter().position(|stage| *stage == wanted);
    let Some(scan) = place_of(Stage::Scan) else { return true };
    let failed_at = match file.stage {
        Some(stage) => place_of(stage),
        None => file.stages().len().checked_sub(1),
    };
    failed_at.is_some_and(|failed_at| failed_at > scan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{UploadPolicy, UploadRequest, register};
    use crate::id::{JobId, TenantId, UserId};
    use crate::processing::discard;

    fn file(status: Status, stages: &[Stage], stage: Option<Stage>) -> File {
        let request = UploadRequest {
            name: "a".into(),
            size: 1,
            content_type: None,
            checksum_sha256: None,
            metadata: None,
            stages: None,
        };
        let policy = UploadPolicy {
            charge_bytes_min: 0,
            window_ms: 1,
            grace_ms: 1,
            min_rate_bytes: 1,
            tombstone_ms: 1,
            store_refuses_ended: true,
        };
        let new = register(
            "018f4e6e-7f3a-7000-8000-000000000001".parse().expect("a fixed id"),
            TenantId::new("t").expect("a fixed name"),
            UserId::new("u").expect("a fixed name"),
            request,
            &policy,
            0,
        );
        let pin = Some(Pin { etag: "e".into(), version_id: None });
        File { status, stages: Some(stages.to_vec()), stage, pin, ..new }
    }

    #[test]
    fn a_failed_file_is_open_only_after_its_scan() {
        use Stage::{Chunk, Extract, Scan};
        for (stages, failed_at, is_open) in [
            (&[][..], None, true),
            (&[Extract, Chunk], Some(Extract), true),
            (&[Scan, Extract, Chunk], Some(Scan), false),
            (&[Scan, Extract, Chunk], Some(Extract), true),
            (&[Extract, Scan], Some(Extract), false),
            (&[Extract, Scan], Some(Scan), false),
            // A stage that the list does not have.
            (&[Scan], Some(Extract), false),
        ] {
            let failed = file(Status::Failed, stages, failed_at);
            assert_eq!(downloadable(&failed).is_ok(), is_open, "{stages:?} {failed_at:?}");
            // A discarded dead letter changes nothing.
            let discarded = discard(&failed, JobId(uuid::Uuid::from_u128(7)), 2).after;
            assert_eq!(discarded.stage, None);
            if failed_at.is_none_or(|at| stages.contains(&at)) {
                assert_eq!(downloadable(&discarded).is_ok(), is_open, "{stages:?} {failed_at:?} discarded");
            }
        }
    }

    #[test]
    fn the_other_statuses() {
        for status in Status::ALL.into_iter().filter(|status| *status != Status::Failed) {
            let expected = match status {
                Status::Ready => Ok(()),
                Status::Quarantined => Err(DownloadRefusal::Quarantined),
                _ => Err(DownloadRefusal::NotReady),
            };
            let file = file(status, &[Stage::Scan], None);
            assert_eq!(downloadable(&file).map(drop), expected, "{status}");
            let without_pin = File { pin: None, ..file };
            assert!(downloadable(&without_pin).is_err(), "{status}");
        }
    }
}
