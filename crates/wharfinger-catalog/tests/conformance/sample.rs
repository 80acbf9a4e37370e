//! Files, owners and times for the cases, and functions that bring a file into a state.

use wharfinger_catalog::{
    Admission, BatchUse, Catalog, IdempotencyKey, JobClaim, NewFile, NewJob, RegisterOutcome, Registration,
    fresh_id,
};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::{self, Change, File, Pin, UploadPolicy, UploadRequest};
use wharfinger_lifecycle::id::{FileId, JobId, TenantId, UserId};
use wharfinger_lifecycle::processing::PipelinePlan;
use wharfinger_lifecycle::quarantine::{QuarantineCause, quarantine};

pub(super) const NOW: UnixMs = 1_800_000_000_000;
pub(super) const SECOND: i64 = 1_000;
pub(super) const HOUR: i64 = 3_600_000;
pub(super) const LIMIT: u64 = 1_000_000;

/// The queue of the delayed checks that a registration adds.
pub(super) const CHECKS: &str = "upload-checks";
/// A queue that only the case itself writes to.
pub(super) const WORK: &str = "work";

/// A store that accepts uploads for files that have ended: a file keeps its charge until its URL has expired.
pub(super) const POLICY: UploadPolicy = UploadPolicy {
    charge_bytes_min: 0,
    window_ms: HOUR,
    grace_ms: 60 * SECOND,
    min_rate_bytes: 262_144,
    tombstone_ms: 720 * HOUR,
    store_refuses_ended: false,
};

/// A store that refuses uploads for files that have ended, as local disk does.
pub(super) const REFUSING: UploadPolicy = UploadPolicy { store_refuses_ended: true, ..POLICY };

/// When the last URL of a small file registered at [`NOW`] has certainly expired.
pub(super) const URL_DEAD_AT: UnixMs = NOW + HOUR + 60 * SECOND;

pub(super) fn tenant(name: &str) -> TenantId {
    TenantId::new(name).expect("a tenant")
}

pub(super) fn user(name: &str) -> UserId {
    UserId::new(name).expect("a user")
}

pub(super) fn pin() -> Pin {
    Pin { etag: "etag".into(), version_id: None }
}

pub(super) fn registration_at(owner: (&str, &str), size: u64, now: UnixMs) -> Registration {
    let announced = UploadRequest {
        name: "report.pdf".into(),
        size,
        content_type: None,
        checksum_sha256: None,
        metadata: None,
        stages: None,
    };
    let id = FileId(fresh_id(now));
    let file = file::register(id, tenant(owner.0), user(owner.1), announced, &POLICY, now);
    let check = NewJob {
        queue: CHECKS,
        tenant: file.tenant.clone(),
        file: Some(id),
        payload: None,
        run_at: file.next_check_at.expect("a registered file has a next check"),
        max_attempts: 5,
    };
    Registration {
        tenant: file.tenant.clone(),
        user: file.user.clone(),
        files: vec![NewFile { file, check, check_id: JobId(fresh_id(now)) }],
        batch: BatchUse::None,
        now,
        actor: owner.1.to_owned(),
        default_limit_bytes: LIMIT,
        unconfirmed_limit_percent: 100,
        idempotency_key: None,
        admission: Admission::Database,
        by_broker: false,
    }
}

/// The file of a registration of one file.
pub(super) fn file_of(registration: &Registration) -> &File {
    &registration.files[0].file
}

pub(super) fn registration(owner: (&str, &str), size: u64) -> Registration {
    registration_at(owner, size, NOW)
}

pub(super) fn with_key(registration: Registration, key: &str, fingerprint: &str) -> Registration {
    let idempotency_key = IdempotencyKey {
        route: "POST /files",
        key: key.to_owned(),
        fingerprint: fingerprint.to_owned(),
        expires_at: registration.now + 24 * HOUR,
    };
    Registration { idempotency_key: Some(idempotency_key), ..registration }
}

pub(super) async fn registered_at(catalog: &Catalog, owner: (&str, &str), size: u64, now: UnixMs) -> File {
    let registration = registration_at(owner, size, now);
    let file = file_of(&registration).clone();
    assert_eq!(catalog.register(registration).await.expect("answered"), RegisterOutcome::Created);
    file
}

pub(super) async fn registered(catalog: &Catalog, owner: (&str, &str), size: u64) -> File {
    registered_at(catalog, owner, size, NOW).await
}

/// Commits a change and returns the file after it.
pub(super) async fn committed(catalog: &Catalog, change: Change) -> File {
    let after = change.after.clone();
    catalog.commit(change, "clerk").await.expect("committed");
    after
}

pub(super) async fn confirmed(catalog: &Catalog, owner: (&str, &str), size: u64) -> File {
    let file = registered(catalog, owner, size).await;
    committed(catalog, confirm(&file)).await
}

/// Registered and deleted. Its cleanup is due at once; `policy` says when it can be finished.
pub(super) async fn deleted(
    catalog: &Catalog,
    owner: (&str, &str),
    size: u64,
    policy: &UploadPolicy,
) -> File {
    let file = registered(catalog, owner, size).await;
    committed(catalog, file::delete(&file, policy, NOW + SECOND).expect("deletable")).await
}

pub(super) fn confirm(file: &File) -> Change {
    file::confirm(file, pin(), None, "confirmed", &PipelinePlan::without_stages(), NOW + SECOND)
        .expect("confirmable")
}

/// Quarantined, because its object was changed.
pub(super) fn quarantined(file: &File, why: &str, now: UnixMs) -> Change {
    let plan = PipelinePlan::without_stages();
    quarantine(file, QuarantineCause::Changed, why, &plan, now).expect("quarantinable")
}

pub(super) fn new_job(owner: &str, run_at: UnixMs) -> NewJob {
    NewJob { queue: WORK, tenant: tenant(owner), file: None, payload: None, run_at, max_attempts: 3 }
}

pub(super) fn claim(limit: usize, now: UnixMs) -> JobClaim {
    JobClaim {
        queue: WORK,
        owner: "worker".into(),
        limit,
        lease_ms: 10 * SECOND,
        deadline_ms: 25 * SECOND,
        now,
    }
}
