//! An administrator creates or drops pgvector, between starts or under running processes. It may also be unusable.

use wharfinger_catalog::PgvectorState;

use super::sample::NOW;
use super::searching::{ADA, chunks_found, embedded, scope_of};
use super::test_db::{TestDb, all_at_once};

const INDEXES: &str = "SELECT indexname::text FROM pg_indexes WHERE indexname = 'chunks_to_copy'";

pub(super) async fn processes_that_start_together_all_use_pgvector(_: &TestDb) {
    for _ in 0..5 {
        let db = TestDb::without_pgvector().await;
        db.sql("CREATE EXTENSION vector").await;
        let mut handles = Vec::new();
        for _ in 0..6 {
            handles.push(db.another_handle().await);
        }
        assert!(matches!(db.catalog.pgvector().await, Ok(PgvectorState::NotPrepared(_))));
        let results = all_at_once(handles.into_iter().map(|catalog| async move {
            catalog.migrate(NOW).await.expect("migrated");
            catalog.has_pgvector()
        }))
        .await;
        assert_eq!(results, [true; 6]);
        assert_eq!(db.texts(INDEXES).await, ["chunks_to_copy"]);
        db.remove().await;
    }
}

pub(super) async fn the_catalog_works_after_pgvector_is_dropped(db: &TestDb) {
    let before = embedded(&db.catalog, ADA, &[vec![1.0, 0.0]]).await;
    let (writing, copying) = (db.another_handle().await, db.another_handle().await);
    for catalog in [&writing, &copying] {
        catalog.migrate(NOW).await.expect("migrated");
        assert!(catalog.has_pgvector());
    }
    db.sql("DROP EXTENSION vector CASCADE").await;
    assert_eq!(db.catalog.pgvector().await.expect("asked"), PgvectorState::Absent);
    // Each handle notices the drop in another call: a write, a copy, a search.
    let after = embedded(&writing, ADA, &[vec![1.0, 1.0]]).await;
    assert_eq!(copying.copy_vectors(None).await.expect("answered"), None);
    let mut both = [(before, 0), (after, 0)];
    both.sort();
    assert_eq!(chunks_found(&db.catalog, scope_of(ADA), &[1.0, 0.0], 5).await, both);
    for catalog in [&db.catalog, &writing, &copying] {
        assert!(!catalog.has_pgvector());
    }
    // A start without pgvector, and one after it is created again.
    db.catalog.migrate(NOW).await.expect("migrated");
    assert!(!db.catalog.has_pgvector());
    db.sql("CREATE EXTENSION vector").await;
    db.catalog.migrate(NOW).await.expect("migrated");
    assert!(db.catalog.has_pgvector());
    assert_eq!(db.catalog.vectors_to_copy().await.expect("counted"), 2);
    assert_eq!(chunks_found(&db.catalog, scope_of(ADA), &[1.0, 0.0], 5).await, both);
}

pub(super) async fn a_search_finds_all_although_pgvector_is_dropped(db: &TestDb) {
    let file = embedded(&db.catalog, ADA, &[vec![1.0, 0.0]]).await;
    let mut search = db.catalog.candidates(scope_of(ADA), ["model", "other"], &[1.0, 0.0], 5);
    assert_eq!(search.next_page().await.expect("read").expect("the vectors that are not copied"), []);
    db.sql("DROP EXTENSION vector CASCADE").await;
    let found = search.next_page().await.expect("read").expect("all vectors");
    assert_eq!(found.iter().map(|one| one.file).collect::<Vec<_>>(), [file]);
    assert!(search.next_page().await.expect("read").is_none());
}

pub(super) async fn an_unusable_pgvector_is_explained(_: &TestDb) {
    let unusable = [
        (
            "CREATE EXTENSION vector; UPDATE pg_extension SET extversion = '0.5.1' WHERE extname = 'vector'",
            "0.6.1 or newer",
        ),
        ("CREATE EXTENSION vector; ALTER TABLE chunks ADD COLUMN embedding TEXT", "of another type"),
    ];
    for (statement, why) in unusable {
        let db = TestDb::without_pgvector().await;
        db.sql(statement).await;
        db.catalog.migrate(NOW).await.expect("a start needs no pgvector");
        assert!(!db.catalog.has_pgvector());
        let found = db.catalog.pgvector().await.expect("asked");
        assert!(matches!(&found, PgvectorState::Unusable(said) if said.contains(why)), "{found:?}");
        let file = embedded(&db.catalog, ADA, &[vec![1.0, 0.0]]).await;
        assert_eq!(chunks_found(&db.catalog, scope_of(ADA), &[1.0, 0.0], 5).await, [(file, 0)]);
        db.remove().await;
    }
}

pub(super) async fn a_role_without_schema_rights_works_without_pgvector(_: &TestDb) {
    let db = TestDb::without_pgvector().await;
    db.sql("DO $$ BEGIN CREATE ROLE clerk LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$").await;
    db.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA wharfinger TO clerk").await;
    db.sql("GRANT USAGE ON SCHEMA wharfinger TO clerk").await;
    db.sql("CREATE EXTENSION vector").await;
    let clerk = db.as_role("clerk").await;
    clerk.migrate(NOW).await.expect("a start needs no pgvector");
    assert!(!clerk.has_pgvector());
    let found = clerk.pgvector().await.expect("asked");
    assert!(
        matches!(&found, PgvectorState::Unusable(why) if why.contains("`clerk`") && why.contains("migrate")),
        "{found:?}"
    );
    let before = embedded(&clerk, ADA, &[vec![1.0, 0.0]]).await;

    // After the owner has migrated, the next start of the clerk can use pgvector.
    db.catalog.migrate(NOW).await.expect("migrated");
    clerk.migrate(NOW).await.expect("migrated");
    assert!(clerk.has_pgvector());
    assert!(clerk.copy_vectors(None).await.expect("copied").is_some());
    assert_eq!(chunks_found(&clerk, scope_of(ADA), &[1.0, 0.0], 5).await, [(before, 0)]);
    clerk.close().await;
    db.remove().await;
}

/// The search path has only our schema. pgvector works from any other schema on which the role has USAGE.
pub(super) async fn pgvector_may_be_in_any_schema(_: &TestDb) {
    let db = TestDb::without_pgvector().await;
    db.sql("CREATE SCHEMA \"A cellar\"").await;
    db.sql("CREATE EXTENSION vector SCHEMA \"A cellar\"").await;
    db.catalog.migrate(NOW).await.expect("migrated");
    assert!(db.catalog.has_pgvector());
    let file = embedded(&db.catalog, ADA, &[vec![1.0, 0.0]]).await;
    assert_eq!(db.catalog.vectors_to_copy().await.expect("counted"), 0);
    assert_eq!(chunks_found(&db.catalog, scope_of(ADA), &[1.0, 0.0], 5).await, [(file, 0)]);

    db.sql("DO $$ BEGIN CREATE ROLE clerk LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$").await;
    db.sql("GRANT USAGE ON SCHEMA wharfinger TO clerk").await;
    db.sql("GRANT SELECT ON ALL TABLES IN SCHEMA wharfinger TO clerk").await;
    let clerk = db.as_role("clerk").await;
    let found = clerk.pgvector().await.expect("asked");
    assert!(
        matches!(&found, PgvectorState::Unusable(why) if why.contains("GRANT USAGE ON SCHEMA")),
        "{found:?}"
    );
    clerk.close().await;
    db.remove().await;
}
