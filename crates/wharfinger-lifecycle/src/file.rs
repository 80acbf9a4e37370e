//! A file as the catalog keeps it, and the changes that can be made to it. Each function here decides one
//! change completely; the catalog then commits it in one transaction, or not at all.

use crate::UnixMs;
pub use crate::change::{Change, Cleanup, JobEffect, JobRetry, Notice, StageJob, Step};
use crate::event::Event;
use crate::id::{BatchId, FileId, TenantId, UserId};
use crate::key::ObjectKey;
use crate::limits::reason;
use crate::parts::Cut;
use crate::processing::Plan;
use crate::stage::Stage;
use crate::state::Status;
use crate::transition::Refusal;

/// Why a file is a tombstone. The owner's own deletion reads as "never was", the others as "gone".
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
    /// It comes in parts of this size; none: whole.
    pub part_size: Option<u64>,
    pub content_type: Option<String>,
    /// Lower-case hex. Declared at init or given at confirm, and from then on verified.
    pub checksum_sha256: Option<String>,
    /// The client's own JSON object, as sent.
    pub metadata: Option<String>,
    pub key: ObjectKey,
    pub status: Status,
    /// Raised by every change: what a compare-and-set compares.
    pub version: i64,
    pub charged_bytes: u64,
    pub retry_count: u32,
    pub error: Option<String>,
    /// What it goes through, as it was when it was confirmed.
    pub stages: Vec<Stage>,
    /// The one that works on it or is next.
    pub stage: Option<Stage>,
    pub pin: Option<Pin>,
    pub ended: Option<EndReason>,
    /// No URL that was handed out works after this.
    pub url_dead_at: UnixMs,
    /// When this row must be checked again; absent only for a file that is at rest.
    pub next_check_at: Option<UnixMs>,
    pub created_at: UnixMs,
    pub updated_at: UnixMs,
    pub confirmed_at: Option<UnixMs>,
    pub ready_at: Option<UnixMs>,
    /// When it failed, and when its owner was told that it will be deleted for that.
    pub failed_at: Option<UnixMs>,
    pub warned_at: Option<UnixMs>,
}

/// What identifies the very bytes that were confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    pub etag: String,
    pub version_id: Option<String>,
}

/// The windows and promises that decide when things are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadPolicy {
    /// What a file is charged at least.
    pub charge_bytes_min: u64,
    pub window_ms: i64,
    pub grace_ms: i64,
    pub min_rate_bytes: u64,
    pub tombstone_ms: i64,
    /// The store looks the row up itself and refuses an upload whose file has ended. Where it cannot, an ended
    /// file keeps its charge until its URLs are dead: nobody gets free storage by deleting and putting again.
    pub store_refuses_ended: bool,
}

impl File {
    /// How it is cut, if it comes in parts.
    pub fn cut(&self) -> Option<Cut> {
        self.part_size.map(|part_size| Cut { size: self.size, part_size })
    }
}

impl UploadPolicy {
    /// A transfer that began inside the window may end this much later.
    pub fn grace_for(&self, size: u64) -> i64 {
        let transfer_ms = u128::from(size) * 1_000 / u128::from(self.min_rate_bytes.max(1));
        self.grace_ms.max(i64::try_from(transfer_ms).unwrap_or(i64::MAX / 4))
    }

    /// When nothing that was handed out for a file that has ended can write any more: of a file in parts no more
    /// than one part is on its way by one URL.
    pub fn silent_after_end_at(&self, file: &File) -> UnixMs {
        file.url_dead_at.saturating_add(self.grace_for(file.part_size.unwrap_or(file.size)))
    }

    /// When nothing that was handed out for this file can write any more.
    pub fn silent_at(&self, file: &File) -> UnixMs {
        file.url_dead_at.saturating_add(self.grace_for(file.size))
    }
}

/// What a client asks for when it announces an upload; already checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    pub name: String,
    pub size: u64,
    pub content_type: Option<String>,
    pub checksum_sha256: Option<String>,
    pub metadata: Option<String>,
}

pub fn register(
    id: FileId,
    tenant: TenantId,
    user: UserId,
    announced: Announcement,
    policy: &UploadPolicy,
    now: UnixMs,
) -> File {
    let key = ObjectKey::original(&tenant, &user, id);
    let mut file = File {
        id,
        tenant,
        user,
        batch: None,
        name: announced.name,
        size: announced.size,
        part_size: None,
        content_type: announced.content_type,
        checksum_sha256: announced.checksum_sha256,
        metadata: announced.metadata,
        key,
        status: Status::Registered,
        version: 1,
        charged_bytes: announced.size.max(policy.charge_bytes_min),
        retry_count: 0,
        error: None,
        stages: Vec::new(),
        stage: None,
        pin: None,
        ended: None,
        url_dead_at: now.saturating_add(policy.window_ms),
        next_check_at: None,
        created_at: now,
        updated_at: now,
        confirmed_at: None,
        ready_at: None,
        failed_at: None,
        warned_at: None,
    };
    file.next_check_at = Some(policy.silent_at(&file));
    file
}

/// A fresh URL: what is dead later is checked later, and never earlier than was said before: a file of a batch waits
/// for its batch. Committed before anything is signed.
pub fn reissue(file: &File, policy: &UploadPolicy, now: UnixMs) -> Result<Change, Refusal> {
    if file.status != Status::Registered {
        return Err(match file.status {
            Status::Deleted => Refusal::Dead,
            from => Refusal::NotFrom { from, event: Event::Confirmed },
        });
    }
    let mut change = Change::of(file, now);
    change.after.url_dead_at = file.url_dead_at.max(now.saturating_add(policy.window_ms));
    let check_at = policy.silent_at(&change.after).max(file.next_check_at.unwrap_or(now));
    change.after.next_check_at = Some(check_at);
    change.job = JobEffect::RunAt(check_at);
    Ok(change)
}

/// The object was found and is right: its first stage is next. With none to go through it is ready in the same
/// breath.
pub fn confirm(
    file: &File,
    pin: Pin,
    checksum_sha256: Option<String>,
    reason: &str,
    plan: &Plan,
    now: UnixMs,
) -> Result<Change, Refusal> {
    let mut change = Change::of(file, now);
    change.step(Event::Confirmed, reason)?;
    change.after.version = file.version + 2;
    change.after.pin = Some(pin);
    change.after.checksum_sha256 = file.checksum_sha256.clone().or(checksum_sha256);
    change.after.confirmed_at = Some(now);
    change.after.stages = plan.stages.clone();
    change.job = JobEffect::RemoveAll;
    match plan.stages.first() {
        Some(first) => {
            change.step(Event::Enqueued, format!("waits for {}", first.as_str()))?;
            change.after.stage = Some(*first);
            change.after.next_check_at = Some(plan.stuck_at(now));
            change.job = JobEffect::ReplaceAll(StageJob::new(*first, now));
        }
        None => {
            change.step(Event::Completed, "no stages")?;
            change.after.ready_at = Some(now);
            change.after.next_check_at = None;
            change.notice = Some(Notice::Ready);
        }
    }
    Ok(change)
}

/// Ends a file on its owner's word.
pub fn delete(file: &File, policy: &UploadPolicy, now: UnixMs) -> Result<Change, Refusal> {
    end(file, Event::Deleted, EndReason::Deleted, "deleted", policy, now)
}

/// Ends an upload that nobody confirmed. Refused for anything but a registered file: a cleaner never takes
/// what was confirmed. The owner of a batch is told of the batch, not of each of its files.
pub fn reclaim(file: &File, reason: &str, policy: &UploadPolicy, now: UnixMs) -> Result<Change, Refusal> {
    let mut change = end(file, Event::Reclaimed, EndReason::Reclaimed, reason, policy, now)?;
    change.notice = file.batch.is_none().then_some(Notice::CleanedUp);
    Ok(change)
}

pub(crate) fn end(
    file: &File,
    event: Event,
    reason: EndReason,
    words: &str,
    policy: &UploadPolicy,
    now: UnixMs,
) -> Result<Change, Refusal> {
    let mut change = Change::of(file, now);
    change.step(event, words)?;
    change.after.ended = Some(reason);
    change.after.stage = None;
    // A tombstone is kept for long, and nobody reads what was attached to the file.
    change.after.metadata = None;
    change.job = JobEffect::RemoveAll;
    let silent_at = if policy.store_refuses_ended { now } else { policy.silent_after_end_at(file) };
    change.cleanup = Some(Cleanup { reason, finish_at: finish_at(file, silent_at, now) });
    if now >= silent_at {
        change.after.charged_bytes = 0;
        change.after.next_check_at = Some(tombstone_ends_at(file, policy, now));
    } else {
        change.after.next_check_at = Some(silent_at);
    }
    Ok(change)
}

/// An order for bytes that came to be after their file had ended.
pub fn too_late(file: &File, policy: &UploadPolicy, now: UnixMs) -> Option<Cleanup> {
    let reason = file.ended?;
    let silent_at = if policy.store_refuses_ended { now } else { policy.silent_after_end_at(file).max(now) };
    Some(Cleanup { reason, finish_at: finish_at(file, silent_at, now) })
}

/// When an ended file's bytes are deleted for the last time. A confirm that is under way may still join its parts.
fn finish_at(file: &File, silent_at: UnixMs, now: UnixMs) -> UnixMs {
    if file.part_size.is_some() { silent_at.max(now.saturating_add(JOIN_MS_MAX)) } else { silent_at }
}

/// Longer than any store takes to join parts and any server to hear of it.
const JOIN_MS_MAX: i64 = 15 * 60_000;

fn tombstone_ends_at(file: &File, policy: &UploadPolicy, now: UnixMs) -> UnixMs {
    now.saturating_add(policy.tombstone_ms).max(policy.silent_at(file).saturating_add(1))
}

/// The bytes are not those that were confirmed.
pub fn quarantine(file: &File, why: &str, now: UnixMs) -> Result<Change, Refusal> {
    let mut change = Change::of(file, now);
    change.step(Event::Quarantined, why)?;
    change.after.error = Some(reason(why));
    change.after.stage = None;
    change.after.next_check_at = None;
    change.job = JobEffect::RemoveAll;
    change.notice = Some(Notice::Quarantined);
    Ok(change)
}

/// The same bytes under another ETag, as after a restore: found out by their checksum.
pub fn repin(file: &File, pin: Pin, now: UnixMs) -> Change {
    let mut change = Change::of(file, now);
    change.after.pin = Some(pin);
    change
}

/// What is to be done with a row whose check is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// Not due after all: somebody moved it.
    NotYet,
    /// A registered upload whose time is over: reclaim or rescue it.
    Unconfirmed,
    /// An ended file whose last URL has died: its charge goes.
    Refund(Box<Change>),
    /// A tombstone that nobody needs any more.
    Forget,
}

pub fn check(file: &File, policy: &UploadPolicy, now: UnixMs) -> Check {
    if file.next_check_at.is_none_or(|at| at > now) {
        return Check::NotYet;
    }
    match file.status {
        Status::Registered => Check::Unconfirmed,
        Status::Deleted if file.charged_bytes > 0 => {
            let mut change = Change::of(file, now);
            change.after.charged_bytes = 0;
            change.after.next_check_at = Some(tombstone_ends_at(file, policy, now));
            Check::Refund(Box::new(change))
        }
        Status::Deleted => Check::Forget,
        Status::Uploaded
        | Status::Queued
        | Status::Scanning
        | Status::Extracting
        | Status::Chunking
        | Status::Embedding
        | Status::Ready
        | Status::Failed
        | Status::Quarantined => Check::NotYet,
    }
}

/// A check that could not find out: try again later, change nothing else.
pub fn defer(file: &File, until: UnixMs, now: UnixMs) -> Change {
    let mut change = Change::of(file, now);
    change.after.updated_at = file.updated_at;
    change.after.next_check_at = Some(until);
    change.job = JobEffect::RunAt(until);
    change
}

/// The batch of an unconfirmed file has ended: its check is due now. The version is raised, so that a confirm that is under
/// way loses.
pub fn call_off(file: &File, now: UnixMs) -> Change {
    let mut change = Change::of(file, now);
    change.after.next_check_at = Some(now);
    change.job = JobEffect::RunAt(now);
    change
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        let announced = Announcement {
            name: "a".into(),
            size,
            content_type: None,
            checksum_sha256: None,
            metadata: None,
        };
        register(
            "018f4e6e-7f3a-7000-8000-000000000001".parse().expect("a fixed id"),
            TenantId::new("t").expect("a fixed name"),
            UserId::new("u").expect("a fixed name"),
            announced,
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
    fn an_ended_file_keeps_its_charge_while_a_url_lives() {
        let policy = policy(false);
        let file = registered(10, &policy);
        let change = delete(&file, &policy, 1_000).expect("a registered file can be deleted");
        assert_eq!(change.after.charged_bytes, 10);
        assert_eq!(change.after.next_check_at, Some(3_660_000));
        assert_eq!(check(&change.after, &policy, 3_659_999), Check::NotYet);
        let Check::Refund(refund) = check(&change.after, &policy, 3_660_000) else {
            panic!("expected a refund")
        };
        assert_eq!(refund.refunded_bytes(), 10);
        assert!(refund.steps.is_empty());
        assert_eq!(check(&refund.after, &policy, i64::MAX), Check::Forget);
    }

    /// Its upload is ended with it: only a part that is on its way may still come, or a join that is under way.
    #[test]
    fn a_file_in_parts_is_silent_when_its_last_part_is() {
        let policy = policy(false);
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
    }

    #[test]
    fn where_the_store_refuses_the_charge_ends_at_once() {
        let policy = policy(true);
        let change = delete(&registered(10, &policy), &policy, 1_000).expect("deletable");
        assert_eq!(change.after.charged_bytes, 0);
        assert_eq!(change.cleanup, Some(Cleanup { reason: EndReason::Deleted, finish_at: 1_000 }));
    }

    #[test]
    fn a_fresh_url_never_shortens_the_life_of_an_older_one() {
        let policy = policy(false);
        let file = registered(10, &policy);
        let shorter = UploadPolicy { window_ms: 1, ..policy };
        let change = reissue(&file, &shorter, 0).expect("still registered");
        assert_eq!(change.after.url_dead_at, file.url_dead_at);
        assert_eq!(change.after.next_check_at, file.next_check_at);
    }

    #[test]
    fn a_cleaner_never_takes_a_confirmed_file() {
        let policy = policy(true);
        let file = registered(10, &policy);
        let pin = Pin { etag: "e".into(), version_id: None };
        let confirmed =
            confirm(&file, pin, None, "confirmed", &Plan::without_stages(), 5).expect("confirmable").after;
        assert!(reclaim(&confirmed, "late", &policy, 9_000_000).is_err());
    }

    #[derive(Clone, Debug)]
    enum Act {
        Reissue,
        Confirm,
        Delete,
        Reclaim,
        Quarantine,
        Check,
    }

    proptest! {
        /// I3, I15, I16 on the plan itself: charged once and refunded once, a next check until at rest, dead is dead.
        #[test]
        fn random_acts(
            size in 0u64..1 << 40,
            refuses in any::<bool>(),
            acts in prop::collection::vec((prop::sample::select(vec![
                Act::Reissue, Act::Confirm, Act::Delete, Act::Reclaim, Act::Quarantine, Act::Check,
            ]), 0i64..7_200_000), 0..30),
        ) {
            let policy = policy(refuses);
            let plan = Plan::without_stages();
            let mut file = registered(size, &policy);
            let mut refunded = 0u64;
            let mut now = 0;
            for (act, later) in acts {
                now += later;
                let pin = Pin { etag: "e".into(), version_id: None };
                let change = match act {
                    Act::Reissue => reissue(&file, &policy, now),
                    Act::Confirm => confirm(&file, pin, None, "confirmed", &plan, now),
                    Act::Delete => delete(&file, &policy, now),
                    Act::Reclaim => reclaim(&file, "late", &policy, now),
                    Act::Quarantine => quarantine(&file, "changed", now),
                    Act::Check => match check(&file, &policy, now) {
                        Check::Refund(change) => Ok(*change),
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
                prop_assert!(file.next_check_at.is_some() || file.status.is_at_rest());
                prop_assert_eq!(refunded + file.charged_bytes, size);
                if file.status == Status::Deleted && !refuses && file.charged_bytes == 0 {
                    prop_assert!(now >= policy.silent_at(&file));
                }
            }
        }
    }
}
