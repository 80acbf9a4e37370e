//! A file as the catalog stores it, and the changes of a file. A change is decided completely. The catalog then commits
//! it in one transaction, or not at all.

use crate::UnixMs;
pub use crate::change::{Change, Cleanup, FileNotification, HistoryEntry, JobEffect, JobRetry, NewStageJob};
use crate::event::Event;
use crate::id::{BatchId, FileId, TenantId, UserId};
use crate::key::ObjectKey;
use crate::parts::PartLayout;
use crate::processing::PipelinePlan;
use crate::quarantine::QuarantineCause;
use crate::stage::Stage;
use crate::stage_choice;
use crate::state::Status;
use crate::text_status::TextStatus;
use crate::transition::TransitionError;

/// Why a file was deleted. A file that its owner deleted answers 404, a reclaimed file answers 410.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    Deleted,
    Reclaimed,
}

impl EndReason {
    pub fn as_str(self) -> &'static str {
        match self {
            EndReason::Deleted => "deleted",
            EndReason::Reclaimed => "reclaimed",
        }
    }

    pub fn parse(word: &str) -> Option<EndReason> {
        [EndReason::Deleted, EndReason::Reclaimed].into_iter().find(|reason| reason.as_str() == word)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub id: FileId,
    pub tenant: TenantId,
    pub user: UserId,
    pub batch: Option<BatchId>,
    pub name: String,
    pub size: u64,
    /// The part size of a multipart upload. `None`: a single PUT.
    pub part_size: Option<u64>,
    pub content_type: Option<String>,
    /// Lower-case hex. The client sends it with init or confirm. The store or confirm verifies it.
    pub checksum_sha256: Option<String>,
    /// A JSON object from the client, unchanged.
    pub metadata: Option<String>,
    pub key: ObjectKey,
    pub status: Status,
    /// Every change raises it. Updates compare it (compare-and-set).
    pub version: i64,
    pub charged_bytes: u64,
    pub retry_count: u32,
    pub error: Option<String>,
    /// Before the confirm, the stages that the uploader chose. `None`: it chose none, so the confirm takes those that are
    /// configured then. After the confirm, the stages of the file.
    pub stages: Option<Vec<Stage>>,
    /// The current stage, or the next one if the file is queued.
    pub stage: Option<Stage>,
    /// `None` until the extract stage has finished.
    pub text_status: Option<TextStatus>,
    pub pin: Option<Pin>,
    pub ended: Option<EndReason>,
    /// All upload URLs of the file have expired at this time.
    pub url_dead_at: UnixMs,
    /// The next check of this row. `None` only if the status needs no check.
    pub next_check_at: Option<UnixMs>,
    pub created_at: UnixMs,
    pub updated_at: UnixMs,
    pub confirmed_at: Option<UnixMs>,
    pub ready_at: Option<UnixMs>,
    /// Set while the file is quarantined.
    pub quarantine: Option<QuarantineCause>,
    /// When it failed or was quarantined, and when the owner got the deletion warning.
    pub failed_at: Option<UnixMs>,
    pub warned_at: Option<UnixMs>,
}

/// Identifies the confirmed bytes in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    pub etag: String,
    pub version_id: Option<String>,
}

/// The time limits of uploads and the minimum charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadPolicy {
    /// The minimum charge of a file.
    pub charge_bytes_min: u64,
    pub window_ms: i64,
    pub grace_ms: i64,
    pub min_rate_bytes: u64,
    pub tombstone_ms: i64,
    /// The store reads the row and refuses an upload to a deleted file, and joins no parts after its upload was aborted.
    /// With other stores, a deleted file keeps its charge until its URLs expire. Otherwise a client could delete a file,
    /// upload again and store bytes for free.
    pub store_refuses_ended: bool,
}

impl File {
    pub fn stages(&self) -> &[Stage] {
        self.stages.as_deref().unwrap_or_default()
    }

    /// The parts of a multipart upload. `None`: a single PUT.
    pub fn part_layout(&self) -> Option<PartLayout> {
        self.part_size.map(|part_size| PartLayout { size: self.size, part_size })
    }
}

impl UploadPolicy {
    /// The extra time for a transfer that starts before the URL expires.
    pub fn grace_for(&self, size: u64) -> i64 {
        let transfer_ms = u128::from(size) * 1_000 / u128::from(self.min_rate_bytes.max(1));
        self.grace_ms.max(i64::try_from(transfer_ms).unwrap_or(i64::MAX / 4))
    }

    /// The time after which no upload URL of a deleted file writes any more, if transfers have the minimum rate. Each
    /// URL of a multipart upload carries one part, so the grace depends on the part size.
    pub fn last_write_after_end_at(&self, file: &File) -> UnixMs {
        file.url_dead_at.saturating_add(self.grace_for(file.part_size.unwrap_or(file.size)))
    }

    /// The time after which no upload URL of this file writes any more, if transfers have the minimum rate.
    pub fn last_write_at(&self, file: &File) -> UnixMs {
        file.url_dead_at.saturating_add(self.grace_for(file.size))
    }
}

/// The validated request of a client to upload a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadRequest {
    pub name: String,
    pub size: u64,
    pub content_type: Option<String>,
    pub checksum_sha256: Option<String>,
    pub metadata: Option<String>,
    /// Checked by [`stage_choice::choose`].
    pub stages: Option<Vec<Stage>>,
}

pub fn register(
    id: FileId,
    tenant: TenantId,
    user: UserId,
    request: UploadRequest,
    policy: &UploadPolicy,
    now: UnixMs,
) -> File {
    let key = ObjectKey::original(&tenant, &user, id);
    let mut file = File {
        id,
        tenant,
        user,
        batch: None,
        name: request.name,
        size: request.size,
        part_size: None,
        content_type: request.content_type,
        checksum_sha256: request.checksum_sha256,
        metadata: request.metadata,
        key,
        status: Status::Registered,
        version: 1,
        charged_bytes: request.size.max(policy.charge_bytes_min),
        retry_count: 0,
        error: None,
        stages: request.stages,
        stage: None,
        text_status: None,
        pin: None,
        ended: None,
        url_dead_at: now.saturating_add(policy.window_ms),
        next_check_at: None,
        created_at: now,
        updated_at: now,
        confirmed_at: None,
        ready_at: None,
        quarantine: None,
        failed_at: None,
        warned_at: None,
    };
    file.next_check_at = Some(policy.last_write_at(&file));
    file
}

/// Extends the upload window for a fresh URL. The next check moves to a later time, never to an earlier one
/// (`a_fresh_url_never_moves_the_check_to_an_earlier_time`): a file of a batch waits for its batch. Callers commit this
/// change before they sign the URL.
pub fn reissue(file: &File, policy: &UploadPolicy, now: UnixMs) -> Result<Change, TransitionError> {
    if file.status != Status::Registered {
        return Err(match file.status {
            Status::Deleted => TransitionError::Deleted,
            from => TransitionError::NotAllowed { from, event: Event::Confirmed },
        });
    }
    let mut change = Change::new(file, now);
    change.after.url_dead_at = file.url_dead_at.max(now.saturating_add(policy.window_ms));
    let check_at = policy.last_write_at(&change.after).max(file.next_check_at.unwrap_or(now));
    change.after.next_check_at = Some(check_at);
    change.job = JobEffect::RescheduleAll(check_at);
    Ok(change)
}

/// The object exists and is correct: queues the first stage. A file without stages is ready immediately.
pub fn confirm(
    file: &File,
    pin: Pin,
    checksum_sha256: Option<String>,
    reason: &str,
    plan: &PipelinePlan,
    now: UnixMs,
) -> Result<Change, TransitionError> {
    let mut change = Change::new(file, now);
    change.apply(Event::Confirmed, reason)?;
    change.after.version = file.version + 2;
    change.after.pin = Some(pin);
    change.after.checksum_sha256 = file.checksum_sha256.clone().or(checksum_sha256);
    change.after.confirmed_at = Some(now);
    let stages = stage_choice::at_confirm(file.stages.as_deref(), &plan.stages);
    let first = stages.first().copied();
    change.after.stages = Some(stages);
    change.job = JobEffect::RemoveAll;
    match first {
        Some(first) => {
            change.apply(Event::Enqueued, format!("{} queued", first.as_str()))?;
            change.after.stage = Some(first);
            change.after.next_check_at = Some(plan.stuck_at(now));
            change.job = JobEffect::ReplaceAll(NewStageJob::new(first, now));
        }
        None => {
            change.apply(Event::Completed, "no stages")?;
            change.after.ready_at = Some(now);
            change.after.next_check_at = None;
            change.notification = Some(FileNotification::Ready);
        }
    }
    Ok(change)
}

/// Deletes a file on request of its owner or an admin.
pub fn delete(file: &File, policy: &UploadPolicy, now: UnixMs) -> Result<Change, TransitionError> {
    end(file, Event::Deleted, EndReason::Deleted, "deleted", policy, now)
}

/// Deletes an upload that was not confirmed. Only registered files are accepted
/// (`a_cleaner_never_deletes_a_confirmed_file`). A file of a batch causes no notification: the owner of an expired
/// batch gets one for the batch.
pub fn reclaim(
    file: &File,
    reason: &str,
    policy: &UploadPolicy,
    now: UnixMs,
) -> Result<Change, TransitionError> {
    let mut change = end(file, Event::Reclaimed, EndReason::Reclaimed, reason, policy, now)?;
    change.notification = file.batch.is_none().then_some(FileNotification::CleanedUp);
    Ok(change)
}

pub(crate) fn end(
    file: &File,
    event: Event,
    reason: EndReason,
    reason_text: &str,
    policy: &UploadPolicy,
    now: UnixMs,
) -> Result<Change, TransitionError> {
    let mut change = Change::new(file, now);
    change.apply(event, reason_text)?;
    change.after.ended = Some(reason);
    change.after.quarantine = None;
    change.after.stage = None;
    // Tombstones stay for a long time, and their metadata is not used.
    change.after.metadata = None;
    change.job = JobEffect::RemoveAll;
    let last_write_at = if policy.store_refuses_ended { now } else { policy.last_write_after_end_at(file) };
    change.cleanup = Some(Cleanup { reason, finish_at: finish_at(file, policy, last_write_at, now) });
    if now >= last_write_at {
        change.after.charged_bytes = 0;
        change.after.next_check_at = Some(tombstone_ends_at(file, policy, now));
    } else {
        change.after.next_check_at = Some(last_write_at);
    }
    Ok(change)
}

/// The cleanup for bytes that were written after their file was deleted.
pub fn late_write_cleanup(file: &File, policy: &UploadPolicy, now: UnixMs) -> Option<Cleanup> {
    let reason = file.ended?;
    let last_write_at =
        if policy.store_refuses_ended { now } else { policy.last_write_after_end_at(file).max(now) };
    Some(Cleanup { reason, finish_at: finish_at(file, policy, last_write_at, now) })
}

/// When the bytes of a deleted file are deleted for the last time. A running confirm may still join the parts, unless the
/// store refuses that.
fn finish_at(file: &File, policy: &UploadPolicy, last_write_at: UnixMs, now: UnixMs) -> UnixMs {
    if file.part_size.is_some() && !policy.store_refuses_ended {
        last_write_at.max(now.saturating_add(JOIN_MS_MAX))
    } else {
        last_write_at
    }
}

/// Assumed to be longer than a store takes to join parts and to answer.
const JOIN_MS_MAX: i64 = 15 * 60_000;

fn tombstone_ends_at(file: &File, policy: &UploadPolicy, now: UnixMs) -> UnixMs {
    now.saturating_add(policy.tombstone_ms).max(policy.last_write_at(file).saturating_add(1))
}

/// Records another ETag or version for the same bytes, for example after a restore. The checksum proves that they are equal.
pub fn repin(file: &File, pin: Pin, now: UnixMs) -> Change {
    let mut change = Change::new(file, now);
    change.after.pin = Some(pin);
    change
}

/// The action for a row whose check is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckAction {
    /// The check is not due: another change moved it.
    NotDue,
    /// An unconfirmed upload whose time is over: reclaim or rescue it.
    Unconfirmed,
    /// A deleted file whose last URL has expired: refund its charge.
    Refund(Box<Change>),
    /// A tombstone whose retention is over.
    RemoveTombstone,
}

pub fn check(file: &File, policy: &UploadPolicy, now: UnixMs) -> CheckAction {
    if file.next_check_at.is_none_or(|at| at > now) {
        return CheckAction::NotDue;
    }
    match file.status {
        Status::Registered => CheckAction::Unconfirmed,
        Status::Deleted if file.charged_bytes > 0 => {
            let mut change = Change::new(file, now);
            change.after.charged_bytes = 0;
            change.after.next_check_at = Some(tombstone_ends_at(file, policy, now));
            CheckAction::Refund(Box::new(change))
        }
        Status::Deleted => CheckAction::RemoveTombstone,
        Status::Uploaded
        | Status::Queued
        | Status::Scanning
        | Status::Extracting
        | Status::Chunking
        | Status::Embedding
        | Status::Ready
        | Status::Failed
        | Status::Quarantined => CheckAction::NotDue,
    }
}

/// Moves the check and the jobs of a file to another time. This is not progress, so `updated_at` stays.
pub fn defer(file: &File, until: UnixMs, now: UnixMs) -> Change {
    let mut change = Change::new(file, now);
    change.after.updated_at = file.updated_at;
    change.after.next_check_at = Some(until);
    change.job = JobEffect::RescheduleAll(until);
    change
}

/// Makes the check of an unconfirmed file due now, because its batch has ended. The new version makes a running confirm
/// fail.
pub fn make_check_due(file: &File, now: UnixMs) -> Change {
    let mut change = Change::new(file, now);
    change.after.next_check_at = Some(now);
    change.job = JobEffect::RescheduleAll(now);
    change
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::quarantine::quarantine;

    fn policy(store_refuses_ended: bool) -> UploadPolicy {
        UploadPolicy {
            charge_bytes_min: 0,
            window_ms: 3_600_000,
            grace_ms: 60_000,
            min_rate_bytes: 262_144,
            tombstone_ms: 30 * 86_400_000,
            store_refuses_ended,
        }
    }

    fn registered(size: u64, policy: &UploadPolicy) -> File {
        let request = UploadRequest {
            name: "a".into(),
            size,
            content_type: None,
            checksum_sha256: None,
            metadata: None,
            stages: None,
        };
        register(
            "018f4e6e-7f3a-7000-8000-000000000001".parse().expect("a fixed id"),
            TenantId::new("t").expect("a fixed name"),
            UserId::new("u").expect("a fixed name"),
            request,
            policy,
            0,
        )
    }

    #[test]
    fn grace_grows_with_the_size() {
        let policy = policy(false);
        assert_eq!(policy.grace_for(0), 60_000);
        assert_eq!(policy.grace_for(262_144 * 100), 100_000);
        assert!(policy.grace_for(u64::MAX) > 0);
    }

    #[test]
    fn a_deleted_file_keeps_its_charge_until_its_url_expires() {
        let policy = policy(false);
        let file = registered(10, &policy);
        let change = delete(&file, &policy, 1_000).expect("a registered file can be deleted");
        assert_eq!(change.after.charged_bytes, 10);
        assert_eq!(change.after.next_check_at, Some(3_660_000));
        assert_eq!(check(&change.after, &policy, 3_659_999), CheckAction::NotDue);
        let CheckAction::Refund(refund) = check(&change.after, &policy, 3_660_000) else {
            panic!("expected a refund")
        };
        assert_eq!(refund.refunded_bytes(), 10);
        assert!(refund.history.is_empty());
        assert_eq!(check(&refund.after, &policy, i64::MAX), CheckAction::RemoveTombstone);
    }

    /// Only one part in transfer, or a running join, can still write bytes.
    #[test]
    fn the_grace_of_a_multipart_upload_depends_on_the_part_size() {
        let (policy, refusing) = (policy(false), policy(true));
        let mib = crate::limits::MIB;
        let whole = registered(1 << 40, &policy);
        let in_parts = File { part_size: Some(64 * mib), ..whole.clone() };
        let ended = |file: &File| delete(file, &policy, 1_000).expect("deletable");
        assert_eq!(ended(&in_parts).after.next_check_at, Some(3_600_000 + 256_000));
        assert_eq!(ended(&in_parts).after.charged_bytes, 1 << 40);
        assert!(ended(&whole).after.next_check_at > Some(40 * 86_400_000));
        let late = delete(&in_parts, &policy, 5_000_000).expect("deletable");
        assert_eq!(late.after.charged_bytes, 0);
        assert_eq!(late.cleanup.map(|cleanup| cleanup.finish_at), Some(5_000_000 + JOIN_MS_MAX));
        let refused = delete(&in_parts, &refusing, 1_000).expect("deletable");
        assert_eq!(refused.cleanup.map(|cleanup| cleanup.finish_at), Some(1_000));
    }

    #[test]
    fn a_store_that_refuses_late_writes_ends_the_charge_immediately() {
        let policy = policy(true);
        let change = delete(&registered(10, &policy), &policy, 1_000).expect("deletable");
        assert_eq!(change.after.charged_bytes, 0);
        assert_eq!(change.cleanup, Some(Cleanup { reason: EndReason::Deleted, finish_at: 1_000 }));
    }

    #[test]
    fn a_fresh_url_never_moves_the_check_to_an_earlier_time() {
        let policy = policy(false);
        let file = registered(10, &policy);
        let shorter = UploadPolicy { window_ms: 1, ..policy };
        let change = reissue(&file, &shorter, 0).expect("still registered");
        assert_eq!(change.after.url_dead_at, file.url_dead_at);
        assert_eq!(change.after.next_check_at, file.next_check_at);
    }

    #[test]
    fn a_cleaner_never_deletes_a_confirmed_file() {
        let policy = policy(true);
        let file = registered(10, &policy);
        let pin = Pin { etag: "e".into(), version_id: None };
        let confirmed = confirm(&file, pin, None, "confirmed", &PipelinePlan::without_stages(), 5)
            .expect("confirmable")
            .after;
        assert!(reclaim(&confirmed, "late", &policy, 9_000_000).is_err());
    }

    #[derive(Clone, Debug)]
    enum Op {
        Reissue,
        Confirm,
        Delete,
        Reclaim,
        Quarantine,
        CheckAction,
    }

    proptest! {
        /// A file is charged once and refunded once, has a next check while it needs one, and stays deleted.
        #[test]
        fn random_operations(
            size in 0u64..1 << 40,
            refuses in any::<bool>(),
            ops in prop::collection::vec((prop::sample::select(vec![
                Op::Reissue, Op::Confirm, Op::Delete, Op::Reclaim, Op::Quarantine, Op::CheckAction,
            ]), 0i64..7_200_000), 0..30),
        ) {
            let policy = policy(refuses);
            let plan = PipelinePlan::without_stages();
            let mut file = registered(size, &policy);
            let mut refunded = 0u64;
            let mut now = 0;
            for (op, later) in ops {
                now += later;
                let pin = Pin { etag: "e".into(), version_id: None };
                let change = match op {
                    Op::Reissue => reissue(&file, &policy, now),
                    Op::Confirm => confirm(&file, pin, None, "confirmed", &plan, now),
                    Op::Delete => delete(&file, &policy, now),
                    Op::Reclaim => reclaim(&file, "late", &policy, now),
                    Op::Quarantine => quarantine(&file, QuarantineCause::Changed, "changed", &plan, now),
                    Op::CheckAction => match check(&file, &policy, now) {
                        CheckAction::Refund(change) => Ok(*change),
                        _ => continue,
                    },
                };
                let Ok(change) = change else { continue };
                prop_assert_eq!(&change.before, &file);
                prop_assert!(change.after.version > file.version);
                prop_assert!(change.after.url_dead_at >= file.url_dead_at);
                refunded += change.refunded_bytes();
                if file.status == Status::Deleted {
                    prop_assert_eq!(change.after.status, Status::Deleted);
                }
                file = change.after;
                prop_assert!(file.next_check_at.is_some() || file.status.needs_no_check());
                prop_assert_eq!(refunded + file.charged_bytes, size);
                if file.status == Status::Deleted && !refuses && file.charged_bytes == 0 {
                    prop_assert!(now >= policy.last_write_at(&file));
                }
            }
        }
    }
}
