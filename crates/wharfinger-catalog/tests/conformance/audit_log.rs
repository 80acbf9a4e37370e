//! The log of what operators and admins did.

use wharfinger_catalog::{AuditEntry, Catalog};

use super::failing_catalog::FailingCatalog;
use super::sample::{HOUR, NOW, tenant};

/// The line of the log and its change are committed together, or neither is.
pub(super) async fn fail_writes(failing: &mut FailingCatalog<'_>) {
    let entry = AuditEntry {
        at: NOW,
        actor: "operator:ann".into(),
        action: "quota-limit-set",
        tenant: Some(tenant("audited")),
        subject: "audited".into(),
        detail: "{}".into(),
    };
    let lines =
        async || failing.db.catalog.audit_log(Some(&tenant("audited")), None, 10).await.expect("read");
    assert_eq!(lines().await, []);
    let set =
        async |catalog: &Catalog| catalog.audited(entry.clone()).set_limit(&tenant("audited"), 1_000).await;
    failing.fail_each_call(set).await;
    let written = failing.db.catalog.audit_log(Some(&tenant("audited")), None, 10).await.expect("read");
    let [line] = written.as_slice() else { panic!("one line, not {written:?}") };
    assert_eq!((line.actor.as_str(), line.action.as_str()), ("operator:ann", "quota-limit-set"));
    assert_eq!(failing.db.catalog.audit_log(None, Some(&line.id), 10).await.expect("read"), []);
    failing.fail_each_call(async |catalog| catalog.log_action(entry.clone()).await).await;
    assert_eq!(
        failing.fail_each_call(async |catalog| catalog.purge_audit_log(NOW + HOUR, 10).await).await,
        2
    );
}
