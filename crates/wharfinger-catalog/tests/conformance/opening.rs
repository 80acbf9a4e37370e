//! Opening, migrating and closing a catalog, and calls that read no table.

use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{CatalogError, Dialect, SCHEMA_VERSION};
use wharfinger_lifecycle::quota::Quota;

use super::sample::{LIMIT, NOW, registered, tenant};
use super::test_db::{TestDb, all_at_once, open, texts_at};

const ID: &str = "SELECT value FROM catalog_facts WHERE name = 'catalog_id'";

pub(super) async fn a_second_migration_changes_nothing(db: &TestDb) {
    let url = db.empty_database();
    let catalog = open(&url, Faults::none()).await;
    let applied = catalog.migrate(NOW).await.expect("migrated");
    assert!(applied.is_sorted() && applied[0] == 1, "{applied:?}");
    assert_eq!(applied.last(), Some(&SCHEMA_VERSION));
    let id = texts_at(&url, ID).await;
    assert_eq!(id.len(), 1);

    assert_eq!(catalog.migrate(NOW + 1).await.expect("migrated"), Vec::<i64>::new());
    assert_eq!(texts_at(&url, ID).await, id, "a catalog keeps its id");
    assert_eq!(catalog.audit().await.expect("audited"), Vec::<String>::new());
    catalog.close().await;
}

pub(super) async fn concurrent_migrations_apply_each_step_once(db: &TestDb) {
    for _ in 0..10 {
        let url = db.empty_database();
        let mut steps = all_at_once((0..2).map(|_| {
            let url = url.clone();
            async move {
                let catalog = open(&url, Faults::none()).await;
                catalog.migrate(NOW).await.expect("migrated")
            }
        }))
        .await;
        steps.sort();
        assert!(steps[0].is_empty(), "one of them has nothing to do: {steps:?}");
        assert_eq!(steps[1].last(), Some(&SCHEMA_VERSION));
        assert_eq!(texts_at(&url, ID).await.len(), 1);
    }
}

pub(super) async fn a_newer_schema_is_refused(db: &TestDb) {
    db.sql("INSERT INTO schema_migrations (step, fingerprint, applied_at) VALUES (999, '', 0)").await;
    let before = db.dump().await;
    let error = db.catalog.migrate(NOW).await.expect_err("a schema this program does not know");
    assert!(matches!(&error, CatalogError::Unusable(why) if why.contains("999")), "{error}");
    assert!(!error.is_retryable());
    assert_eq!(db.dump().await, before);
}

pub(super) async fn ping_and_server_time_are_answered(db: &TestDb) {
    db.catalog.ping().await.expect("answered");
    let time = db.catalog.server_time().await.expect("answered");
    if db.is_postgres() {
        assert_eq!(db.catalog.dialect(), Dialect::Postgres);
        let then = time.expect("a server has a clock");
        let now = db.catalog.server_time().await.expect("answered").expect("a server has a clock");
        let year_2020 = 1_577_836_800_000;
        assert!(year_2020 < then && then <= now, "{then} {now}");
    } else {
        assert_eq!(db.catalog.dialect(), Dialect::Sqlite);
        assert_eq!(time, None);
    }
}

pub(super) async fn writes_survive_closing_and_reopening(db: &TestDb) {
    let catalog = db.another_handle().await;
    let kept = catalog.clone();
    let file = registered(&catalog, ("harbour", "ada"), 10).await;
    catalog.close().await;

    let error = kept.ping().await.expect_err("the catalog is closed");
    assert!(matches!(error, CatalogError::Unavailable(_)), "{error}");
    let reopened = db.another_handle().await;
    assert_eq!(reopened.file(file.id).await.expect("read"), Some(file));
    assert_eq!(
        reopened.quota(&tenant("harbour"), LIMIT).await.expect("read"),
        Quota { limit_bytes: LIMIT, used_bytes: 10, reserved_bytes: 10 }
    );
}
