//! Quotas: reading, setting a limit, and correcting drift.

use wharfinger_catalog::{QuotaDrift, RegisterOutcome};
use wharfinger_lifecycle::limits::QUOTA_BYTES_MAX;
use wharfinger_lifecycle::media_type::TypeList;
use wharfinger_lifecycle::quota::Quota;
use wharfinger_lifecycle::tenant_policy::{TenantPolicy, TenantPolicyChange};

use super::sample::{LIMIT, NOW, POLICY, confirmed, deleted, registered, registration, tenant};
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");

async fn quota(db: &TestDb) -> Quota {
    db.catalog.quota(&tenant("harbour"), LIMIT).await.expect("read")
}

async fn rebuilt(db: &TestDb) -> QuotaDrift {
    let drift = db.catalog.rebuild_quota(&tenant("harbour"), LIMIT).await.expect("rebuilt");
    drift.expect("a known tenant")
}

pub(super) async fn the_default_limit_is_not_stored(db: &TestDb) {
    let unused = |limit_bytes| Quota { limit_bytes, used_bytes: 0, reserved_bytes: 0 };
    assert_eq!(quota(db).await, unused(LIMIT));
    assert_eq!(db.catalog.tenants("", 10).await.expect("read"), []);
    registered(&db.catalog, ADA, 10).await;
    let other = db.catalog.quota(&tenant("harbour"), 77).await.expect("read");
    assert_eq!(other, Quota { limit_bytes: 77, used_bytes: 10, reserved_bytes: 10 });

    db.catalog.set_limit(&tenant("harbour"), 500).await.expect("set");
    db.catalog.set_limit(&tenant("wharf"), QUOTA_BYTES_MAX).await.expect("set");
    assert_eq!(quota(db).await, Quota { limit_bytes: 500, used_bytes: 10, reserved_bytes: 10 });
    assert_eq!(db.catalog.quota(&tenant("wharf"), LIMIT).await.expect("read"), unused(QUOTA_BYTES_MAX));
    assert_eq!(db.catalog.tenants("", 10).await.expect("read"), [tenant("harbour"), tenant("wharf")]);
}

/// The usage may be above a lowered limit (I1). Then nothing more is admitted.
pub(super) async fn a_limit_can_be_set_below_the_usage(db: &TestDb) {
    confirmed(&db.catalog, ADA, 100).await;
    db.catalog.set_limit(&tenant("harbour"), 40).await.expect("set");
    assert_eq!(quota(db).await, Quota { limit_bytes: 40, used_bytes: 100, reserved_bytes: 0 });
    for size in [0, 1] {
        assert_eq!(
            db.catalog.register(registration(ADA, size)).await.expect("answered"),
            RegisterOutcome::QuotaExceeded { used_bytes: 100, limit_bytes: 40 }
        );
    }
    db.catalog.set_limit(&tenant("harbour"), 0).await.expect("set");
    assert_eq!(quota(db).await.limit_bytes, 0);
}

pub(super) async fn a_rebuild_without_drift_changes_nothing(db: &TestDb) {
    let unknown = db.catalog.rebuild_quota(&tenant("unknown"), LIMIT).await.expect("answered");
    assert_eq!(unknown, None);
    registered(&db.catalog, ADA, 1).await;
    confirmed(&db.catalog, ADA, 2).await;
    deleted(&db.catalog, ADA, 4, &POLICY).await;
    let before = db.dump().await;
    assert_eq!(rebuilt(db).await, QuotaDrift { drift_bytes: 0, in_redis: false });
    assert_eq!(quota(db).await, Quota { limit_bytes: LIMIT, used_bytes: 7, reserved_bytes: 5 });
    assert_eq!(db.dump().await, before);
}

pub(super) async fn a_rebuild_reports_and_corrects_drift(db: &TestDb) {
    registered(&db.catalog, ADA, 1).await;
    confirmed(&db.catalog, ADA, 2).await;
    registered(&db.catalog, ("wharf", "ada"), 50).await;
    db.catalog.set_limit(&tenant("harbour"), 900).await.expect("set");
    let right = Quota { limit_bytes: 900, used_bytes: 3, reserved_bytes: 1 };
    for (used, drift_bytes) in [(1_003, 1_000), (0, -3), (3, 0)] {
        let damage = format!("UPDATE quotas SET used_bytes = {used} WHERE tenant_id = 'harbour'");
        assert_eq!(db.sql(&damage).await, 1);
        assert_eq!(rebuilt(db).await, QuotaDrift { drift_bytes, in_redis: false });
        assert_eq!(quota(db).await, right);
        assert_eq!(db.catalog.audit().await.expect("audited"), Vec::<String>::new());
    }
    assert_eq!(db.catalog.quota(&tenant("wharf"), LIMIT).await.expect("read").used_bytes, 50);
}

pub(super) async fn a_policy_is_changed_field_by_field(db: &TestDb) {
    let harbour = tenant("harbour");
    let none = TenantPolicy::default();
    assert_eq!(db.catalog.tenant_policy(&harbour).await.expect("read"), none);
    let types = TypeList::parse("image/*,text/plain").expect("types");
    let change = TenantPolicyChange {
        allowed_types: Some(Some(types.clone())),
        requests_per_second: Some(Some(0)),
        ..TenantPolicyChange::default()
    };
    let expected = TenantPolicy { allowed_types: Some(types), requests_per_second: Some(0), ..none.clone() };
    let set = async |change| db.catalog.set_tenant_policy(&harbour, change, NOW).await.expect("set");
    assert_eq!(set(change).await, expected);
    // Two changes of different fields at the same time.
    let size = TenantPolicyChange { file_size_bytes_max: Some(Some(9)), ..TenantPolicyChange::default() };
    let rate = TenantPolicyChange { requests_per_second: Some(None), ..TenantPolicyChange::default() };
    futures::join!(set(size), set(rate));
    let expected = TenantPolicy { file_size_bytes_max: Some(9), requests_per_second: None, ..expected };
    assert_eq!(db.catalog.tenant_policy(&harbour).await.expect("read"), expected);
    assert_eq!(set(TenantPolicyChange::default()).await, expected, "nothing is changed");
    assert_eq!(db.catalog.tenant_policy(&tenant("wharf")).await.expect("read"), none);

    db.sql("UPDATE tenant_policies SET allowed_types = 'nonsense'").await;
    assert!(db.catalog.tenant_policy(&harbour).await.is_err(), "an unknown list does not permit everything");
}
