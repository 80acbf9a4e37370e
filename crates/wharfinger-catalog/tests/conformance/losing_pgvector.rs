//! pgvector comes and goes by an administrator's hand, between starts and under running processes, and may be there
//! without being of use.

use wharfinger_catalog::Pgvector;

use super::sample::NOW;
use super::searching::{ADA, embedded, of, places};
use super::site::{Site, all_at_once};

const INDEXES: &str = "SELECT indexname::text FROM pg_indexes WHERE indexname = 'chunks_to_copy'";

pub(super) async fn many_that_start_together_all_have_it(_: &Site) {
    for _ in 0..5 {
        let site = Site::before_pgvector().await;
        site.sql("CREATE EXTENSION vector").await;
        let mut handles = Vec::new();
        for _ in 0..6 {
            handles.push(site.another().await);
        }
        assert!(matches!(site.catalog.pgvector().await, Ok(Pgvector::Unprepared(_))));
        let have = all_at_once(handles.into_iter().map(|catalog| async move {
            catalog.migrate(NOW).await.expect("migrated");
            catalog.has_pgvector()
        }))
        .await;
        assert_eq!(have, [true; 6]);
        assert_eq!(site.texts(INDEXES).await, ["chunks_to_copy"]);
        site.remove().await;
    }
}

pub(super) async fn it_goes_from_under_us(site: &Site) {
    let before = embedded(&site.catalog, ADA, &[vec![1.0, 0.0]]).await;
    let (writing, copying) = (site.another().await, site.another().await);
    for catalog in [&writing, &copying] {
        catalog.migrate(NOW).await.expect("migrated");
        assert!(catalog.has_pgvector());
    }
    site.sql("DROP EXTENSION vector CASCADE").await;
    assert_eq!(site.catalog.pgvector().await.expect("asked"), Pgvector::Absent);
    // Each is the first to find out.
    let after = embedded(&writing, ADA, &[vec![1.0, 1.0]]).await;
    assert_eq!(copying.copy_vectors(None).await.expect("answered"), None);
    let mut both = [(before, 0), (after, 0)];
    both.sort();
    assert_eq!(places(&site.catalog, of(ADA), &[1.0, 0.0], 5).await, both);
    for catalog in [&site.catalog, &writing, &copying] {
        assert!(!catalog.has_pgvector());
    }
    // A start without it, and one when it is back.
    site.catalog.migrate(NOW).await.expect("migrated");
    assert!(!site.catalog.has_pgvector());
    site.sql("CREATE EXTENSION vector").await;
    site.catalog.migrate(NOW).await.expect("migrated");
    assert!(site.catalog.has_pgvector());
    assert_eq!(site.catalog.vectors_to_copy().await.expect("counted"), 2);
    assert_eq!(places(&site.catalog, of(ADA), &[1.0, 0.0], 5).await, both);
}

pub(super) async fn it_goes_in_the_middle_of_a_search(site: &Site) {
    let file = embedded(&site.catalog, ADA, &[vec![1.0, 0.0]]).await;
    let mut search = site.catalog.candidates(of(ADA), &[1.0, 0.0], 5);
    assert_eq!(search.next_page().await.expect("read").expect("what is not copied"), []);
    site.sql("DROP EXTENSION vector CASCADE").await;
    let found = search.next_page().await.expect("read").expect("all");
    assert_eq!(found.iter().map(|one| one.file).collect::<Vec<_>>(), [file]);
    assert!(search.next_page().await.expect("read").is_none());
}

pub(super) async fn what_cannot_be_used_is_named(_: &Site) {
    let misfits = [
        (
            "CREATE EXTENSION vector; UPDATE pg_extension SET extversion = '0.5.1' WHERE extname = 'vector'",
            "0.6.1 or newer",
        ),
        ("CREATE EXTENSION vector; ALTER TABLE chunks ADD COLUMN embedding TEXT", "not its own"),
    ];
    for (statement, why) in misfits {
        let site = Site::before_pgvector().await;
        site.sql(statement).await;
        site.catalog.migrate(NOW).await.expect("it does not stop a start");
        assert!(!site.catalog.has_pgvector());
        let found = site.catalog.pgvector().await.expect("asked");
        assert!(matches!(&found, Pgvector::Unfit(said) if said.contains(why)), "{found:?}");
        let file = embedded(&site.catalog, ADA, &[vec![1.0, 0.0]]).await;
        assert_eq!(places(&site.catalog, of(ADA), &[1.0, 0.0], 5).await, [(file, 0)]);
        site.remove().await;
    }
}

pub(super) async fn who_may_not_change_the_schema_does_without(_: &Site) {
    let site = Site::before_pgvector().await;
    site.sql("DO $$ BEGIN CREATE ROLE clerk LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$").await;
    site.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA wharfinger TO clerk").await;
    site.sql("GRANT USAGE ON SCHEMA wharfinger TO clerk").await;
    site.sql("CREATE EXTENSION vector").await;
    let clerk = site.as_role("clerk").await;
    clerk.migrate(NOW).await.expect("it does not stop a start");
    assert!(!clerk.has_pgvector());
    let found = clerk.pgvector().await.expect("asked");
    assert!(
        matches!(&found, Pgvector::Unfit(why) if why.contains("`clerk`") && why.contains("migrate")),
        "{found:?}"
    );
    let before = embedded(&clerk, ADA, &[vec![1.0, 0.0]]).await;

    // Once the owner has run it, the clerk's next start finds all in place.
    site.catalog.migrate(NOW).await.expect("migrated");
    clerk.migrate(NOW).await.expect("migrated");
    assert!(clerk.has_pgvector());
    assert!(clerk.copy_vectors(None).await.expect("copied").is_some());
    assert_eq!(places(&clerk, of(ADA), &[1.0, 0.0], 5).await, [(before, 0)]);
    clerk.close().await;
    site.remove().await;
}

/// The search path names our schema alone, so pgvector works from any other one, if its use is granted.
pub(super) async fn it_may_be_in_a_schema_of_any_name(_: &Site) {
    let site = Site::before_pgvector().await;
    site.sql("CREATE SCHEMA \"A cellar\"").await;
    site.sql("CREATE EXTENSION vector SCHEMA \"A cellar\"").await;
    site.catalog.migrate(NOW).await.expect("migrated");
    assert!(site.catalog.has_pgvector());
    let file = embedded(&site.catalog, ADA, &[vec![1.0, 0.0]]).await;
    assert_eq!(site.catalog.vectors_to_copy().await.expect("counted"), 0);
    assert_eq!(places(&site.catalog, of(ADA), &[1.0, 0.0], 5).await, [(file, 0)]);

    site.sql("DO $$ BEGIN CREATE ROLE clerk LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$").await;
    site.sql("GRANT USAGE ON SCHEMA wharfinger TO clerk").await;
    site.sql("GRANT SELECT ON ALL TABLES IN SCHEMA wharfinger TO clerk").await;
    let clerk = site.as_role("clerk").await;
    let found = clerk.pgvector().await.expect("asked");
    assert!(matches!(&found, Pgvector::Unfit(why) if why.contains("GRANT USAGE ON SCHEMA")), "{found:?}");
    clerk.close().await;
    site.remove().await;
}
