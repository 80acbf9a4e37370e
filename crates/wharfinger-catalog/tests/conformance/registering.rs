//! Registering: the file with all its rows or nothing, and never beyond the quota.

use wharfinger_catalog::{
    BatchUse, Catalog, CatalogError, HistoryLine, RegisterOutcome, Registration, Scope,
};
use wharfinger_lifecycle::file::{self, Pin, UploadRequest};
use wharfinger_lifecycle::id::{BatchId, FileId};
use wharfinger_lifecycle::processing::PipelinePlan;
use wharfinger_lifecycle::quota::Quota;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;

use super::sample::{
    CHECKS, LIMIT, NOW, POLICY, REFUSING, SECOND, URL_DEAD_AT, committed, confirm, deleted, file_of,
    registered, registration, tenant, user, with_key,
};
use super::test_db::{TestDb, all_at_once};

const ADA: (&str, &str) = ("harbour", "ada");
const BEN: (&str, &str) = ("harbour", "ben");

pub(super) async fn a_registration_writes_all_its_rows(db: &TestDb) {
    let announced = UploadRequest {
        name: "Übersicht 2026 👩‍🚀.pdf".into(),
        size: 1_234,
        content_type: Some("application/pdf".into()),
        checksum_sha256: Some("ab".repeat(32)),
        metadata: Some(r#"{"project":"Ä \"quoted\"","n":1.50}"#.into()),
        stages: Some(vec![Stage::Scan, Stage::Extract]),
    };
    let mut wanted = registration(ADA, 1_234);
    let id = file_of(&wanted).id;
    wanted.files[0].file = file::register(id, tenant(ADA.0), user(ADA.1), announced, &POLICY, NOW);
    let file = file_of(&wanted).clone();
    assert_eq!(db.catalog.register(wanted).await.expect("answered"), RegisterOutcome::Created);

    let another = db.another_handle().await;
    assert_eq!(another.file(file.id).await.expect("read"), Some(file.clone()));
    let line = HistoryLine {
        at: NOW,
        from: None,
        to: Status::Registered,
        reason: "registered".into(),
        actor: "ada".into(),
    };
    assert_eq!(another.history(file.id).await.expect("read"), [line]);
    assert_eq!(
        db.texts("SELECT key || ' ' || kind || ' ' || file_id FROM objects").await,
        [format!("uploads/harbour/ada/{0} original {0}", file.id)]
    );
    assert_eq!(another.next_job_at(&[CHECKS]).await.expect("read"), Some(URL_DEAD_AT));
    assert_eq!(another.status_counts(&Scope::All).await.expect("read").by_status, [(Status::Registered, 1)]);
    assert_eq!(
        another.quota(&tenant("harbour"), LIMIT).await.expect("read"),
        Quota { limit_bytes: LIMIT, used_bytes: 1_234, reserved_bytes: 1_234 }
    );
}

pub(super) async fn an_id_is_registered_once(db: &TestDb) {
    let first = registration(ADA, 10);
    let mut second = registration(ADA, 20);
    second.files[0].file = file::File { size: 20, charged_bytes: 20, ..file_of(&first).clone() };
    assert_eq!(db.catalog.register(first).await.expect("answered"), RegisterOutcome::Created);
    let before = db.dump().await;
    let error = db.catalog.register(second).await.expect_err("the id is taken");
    assert!(matches!(error, CatalogError::Corrupt(_)), "{error}");
    assert_eq!(db.dump().await, before);
}

pub(super) async fn the_last_byte_fits_and_the_next_does_not(db: &TestDb) {
    db.catalog.set_limit(&tenant("harbour"), 1_000).await.expect("set");
    registered(&db.catalog, ADA, 600).await;
    let before = db.dump().await;

    let refused = with_key(registration(BEN, 401), "key", "body");
    let exceeded = RegisterOutcome::QuotaExceeded { used_bytes: 600, limit_bytes: 1_000 };
    assert_eq!(db.catalog.register(refused.clone()).await.expect("answered"), exceeded);
    assert_eq!(db.dump().await, before, "a refusal writes nothing, not even its key");

    registered(&db.catalog, BEN, 400).await;
    let full = RegisterOutcome::QuotaExceeded { used_bytes: 1_000, limit_bytes: 1_000 };
    assert_eq!(db.catalog.register(registration(ADA, 1)).await.expect("answered"), full);
    registered(&db.catalog, ADA, 0).await;
    db.catalog.set_limit(&tenant("harbour"), 1_401).await.expect("set");
    assert_eq!(db.catalog.register(refused).await.expect("answered"), RegisterOutcome::Created);
}

pub(super) async fn registrations_sent_together_get_one_answer_each(db: &TestDb) {
    db.catalog.set_limit(&tenant("harbour"), 1_000).await.expect("set");
    let half = |owner, size| Registration {
        default_limit_bytes: 1_000,
        unconfirmed_limit_percent: 50,
        ..registration(owner, size)
    };
    let first = with_key(registration(ADA, 600), "key", "body");
    let first_id = file_of(&first).id.0;
    let joins = Registration { batch: BatchUse::Existing(BatchId(first_id)), ..registration(BEN, 1) };
    let wanted = vec![
        first,
        registration(BEN, 401),
        with_key(registration(ADA, 600), "key", "body"),
        with_key(registration(ADA, 600), "key", "another body"),
        registration(BEN, 390),
        joins,
        half(("quay", "ada"), 400),
        half(("quay", "ada"), 101),
        half(("quay", "ada"), 100),
        registration(ADA, 10),
    ];
    let answers = db.catalog.register_all(wanted).await;
    let answers: Vec<RegisterOutcome> = answers.into_iter().map(|answer| answer.expect("answered")).collect();
    let expected = [
        RegisterOutcome::Created,
        RegisterOutcome::QuotaExceeded { used_bytes: 600, limit_bytes: 1_000 },
        RegisterOutcome::Repeated(first_id),
        RegisterOutcome::KeyMismatch,
        RegisterOutcome::Created,
        RegisterOutcome::NoBatch,
        RegisterOutcome::Created,
        RegisterOutcome::UnconfirmedLimit { held_bytes: 400, limit_bytes: 500 },
        RegisterOutcome::Created,
        RegisterOutcome::Created,
    ];
    assert_eq!(answers, expected);
    for (name, used_bytes) in [("harbour", 1_000), ("quay", 500)] {
        let quota = db.catalog.quota(&tenant(name), LIMIT).await.expect("read");
        assert_eq!(quota.used_bytes, used_bytes, "{name}");
    }
    assert_eq!(db.catalog.audit().await.expect("audited"), Vec::<String>::new());
    assert!(db.catalog.register_all(Vec::new()).await.is_empty());

    // A registration that the database refuses does not affect the others.
    let known = registration(("yard", "ada"), 10);
    let again = known.clone();
    assert_eq!(db.catalog.register(known).await.expect("answered"), RegisterOutcome::Created);
    let answers = db.catalog.register_all(vec![registration(("yard", "ada"), 10), again]).await;
    assert!(
        matches!(&answers[..], [Ok(RegisterOutcome::Created), Err(CatalogError::Corrupt(_))]),
        "{answers:?}"
    );
}

pub(super) async fn an_unknown_tenant_has_the_default_limit(db: &TestDb) {
    let wanted = Registration { default_limit_bytes: 99, ..registration(ADA, 100) };
    let exceeded = RegisterOutcome::QuotaExceeded { used_bytes: 0, limit_bytes: 99 };
    let before = db.dump().await;
    assert_eq!(db.catalog.register(wanted.clone()).await.expect("answered"), exceeded);
    assert_eq!(db.dump().await, before);
    let wanted = Registration { default_limit_bytes: 100, ..wanted };
    assert_eq!(db.catalog.register(wanted).await.expect("answered"), RegisterOutcome::Created);
}

pub(super) async fn unconfirmed_bytes_are_capped_per_user(db: &TestDb) {
    let half = |owner, size| Registration {
        default_limit_bytes: 1_000,
        unconfirmed_limit_percent: 50,
        ..registration(owner, size)
    };
    let first = half(ADA, 300);
    let file = file_of(&first).clone();
    assert_eq!(db.catalog.register(first).await.expect("answered"), RegisterOutcome::Created);
    let before = db.dump().await;
    let held = RegisterOutcome::UnconfirmedLimit { held_bytes: 300, limit_bytes: 500 };
    assert_eq!(db.catalog.register(half(ADA, 201)).await.expect("answered"), held);
    assert_eq!(db.dump().await, before);
    assert_eq!(db.catalog.register(half(ADA, 200)).await.expect("answered"), RegisterOutcome::Created);
    assert_eq!(db.catalog.register(half(BEN, 300)).await.expect("answered"), RegisterOutcome::Created);

    // Confirmed bytes no longer count.
    committed(&db.catalog, confirm(&file)).await;
    assert_eq!(db.catalog.register(half(ADA, 200)).await.expect("answered"), RegisterOutcome::Created);
}

pub(super) async fn an_ended_file_counts_as_unconfirmed_until_its_url_expires(db: &TestDb) {
    let half = |size| Registration {
        default_limit_bytes: 1_000,
        unconfirmed_limit_percent: 50,
        ..registration(ADA, size)
    };
    deleted(&db.catalog, ADA, 300, &POLICY).await;
    let held = RegisterOutcome::UnconfirmedLimit { held_bytes: 300, limit_bytes: 500 };
    assert_eq!(db.catalog.register(half(201)).await.expect("answered"), held);
    // If the store refuses late uploads, the bytes are free at once.
    deleted(&db.catalog, ADA, 200, &REFUSING).await;
    assert_eq!(db.catalog.register(half(200)).await.expect("answered"), RegisterOutcome::Created);
}

const TRIES: usize = 20;

/// Registers, and tries again if no connection was free: then nothing was written.
async fn register_with_retries(catalog: &Catalog, wanted: Registration) -> RegisterOutcome {
    for _ in 0..TRIES {
        match catalog.register(wanted.clone()).await {
            Err(CatalogError::Unavailable(_)) => {}
            answer => return answer.expect("answered"),
        }
    }
    panic!("no free connection in {TRIES} tries")
}

pub(super) async fn concurrent_registrations_never_exceed_the_limit(db: &TestDb) {
    let another = db.another_handle().await;
    let answers = all_at_once((0..200).map(|n| {
        let catalog = if n % 2 == 0 { db.catalog.clone() } else { another.clone() };
        let owner = if n % 3 == 0 { ADA } else { BEN };
        let wanted = Registration { default_limit_bytes: 1_000, ..registration(owner, 10) };
        async move { (file_of(&wanted).id, register_with_retries(&catalog, wanted).await) }
    }))
    .await;
    let created: Vec<FileId> =
        answers.iter().filter(|(_, answer)| *answer == RegisterOutcome::Created).map(|(id, _)| *id).collect();
    assert_eq!(created.len(), 100);
    for (id, answer) in answers {
        if answer == RegisterOutcome::Created {
            assert!(db.catalog.file(id).await.expect("read").is_some());
        } else {
            assert_eq!(answer, RegisterOutcome::QuotaExceeded { used_bytes: 1_000, limit_bytes: 1_000 });
            assert_eq!(db.catalog.file(id).await.expect("read"), None);
        }
    }
    assert_eq!(
        db.catalog.quota(&tenant("harbour"), 1_000).await.expect("read"),
        Quota { limit_bytes: 1_000, used_bytes: 1_000, reserved_bytes: 1_000 }
    );
}

/// The first files of a tenant race to insert its quota row. None of them is refused as over the limit.
pub(super) async fn concurrent_first_files_of_a_tenant_all_fit(db: &TestDb) {
    for round in 0..10 {
        let name = format!("tenant-{round}");
        let answers = all_at_once((0..8).map(|n| {
            let catalog = db.catalog.clone();
            let wanted = registration((&name, &format!("user-{n}")), 10);
            async move { register_with_retries(&catalog, wanted).await }
        }))
        .await;
        assert_eq!(answers, vec![RegisterOutcome::Created; 8]);
        assert_eq!(db.catalog.quota(&tenant(&name), LIMIT).await.expect("read").used_bytes, 80);
    }
}

pub(super) async fn registrations_are_counted_once_during_limit_changes_and_rebuilds(db: &TestDb) {
    db.catalog.set_limit(&tenant("harbour"), 10_000).await.expect("set");
    let another = db.another_handle().await;
    let registering = tokio::spawn({
        let catalog = db.catalog.clone();
        async move {
            let answers = all_at_once((0..60).map(|n| {
                let catalog = catalog.clone();
                let wanted = registration(if n % 2 == 0 { ADA } else { BEN }, 10);
                async move {
                    let file = file_of(&wanted).clone();
                    match register_with_retries(&catalog, wanted).await {
                        RegisterOutcome::Created => {
                            let change = file::delete(&file, &REFUSING, NOW + SECOND).expect("deletable");
                            if n % 3 == 0 {
                                let mut tries = 0;
                                while let Err(error) = catalog.commit(change.clone(), "clerk").await {
                                    tries += 1;
                                    let may_repeat = matches!(error, CatalogError::Unavailable(_));
                                    assert!(may_repeat && tries < TRIES, "{error}");
                                }
                            }
                            if n % 3 == 0 { 0 } else { 10 }
                        }
                        RegisterOutcome::QuotaExceeded { limit_bytes, used_bytes } => {
                            assert!(used_bytes + 10 > limit_bytes, "{used_bytes} of {limit_bytes}");
                            0
                        }
                        other => panic!("unexpected answer: {other:?}"),
                    }
                }
            }))
            .await;
            answers.iter().sum::<u64>()
        }
    });
    for round in 0..40 {
        another.set_limit(&tenant("harbour"), if round % 2 == 0 { 100 } else { 10_000 }).await.expect("set");
        let drift = another.rebuild_quota(&tenant("harbour"), LIMIT).await.expect("rebuilt");
        assert_eq!(drift.expect("a known tenant").drift_bytes, 0, "concurrent registrations are no drift");
    }
    let charged = registering.await.expect("no panic");
    let quota = db.catalog.quota(&tenant("harbour"), LIMIT).await.expect("read");
    assert_eq!(quota, Quota { limit_bytes: 10_000, used_bytes: charged, reserved_bytes: charged });
}

pub(super) async fn a_pin_is_read_back_unchanged(db: &TestDb) {
    let file = registered(&db.catalog, ADA, 10).await;
    let pin = Pin { etag: "\"5d-Ä\"".into(), version_id: Some("null".into()) };
    let change = file::confirm(
        &file,
        pin,
        Some("cd".repeat(32)),
        "confirmed",
        &PipelinePlan::without_stages(),
        NOW + 5,
    )
    .expect("confirmable");
    let after = committed(&db.catalog, change).await;
    assert_eq!(after.checksum_sha256, Some("cd".repeat(32)));
    assert_eq!(db.catalog.file(file.id).await.expect("read"), Some(after));
}
