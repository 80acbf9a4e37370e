//! Vectors with pgvector: it compares the vectors in its column. Searches also find vectors that are not copied into the
//! column yet, and vectors that pgvector refuses.

use wharfinger_catalog::{Catalog, DIMENSIONS_MAX};

use super::searching::{ADA, candidates, chunks_found, embedded, ranked, scope_of, some_vectors};
use super::test_db::{TestDb, all_at_once};

/// Copies all vectors and returns how many pages that took.
async fn copy_all(catalog: &Catalog) -> usize {
    let mut pages = 0;
    let mut after = None;
    loop {
        after = catalog.copy_vectors(after).await.expect("copied");
        if after.is_none() {
            return pages;
        }
        pages += 1;
    }
}

/// How many vectors the column of pgvector has.
async fn vectors_in_column(db: &TestDb) -> String {
    db.texts("SELECT CAST(COUNT(embedding) AS TEXT) FROM chunks").await.remove(0)
}

pub(super) async fn pgvector_returns_only_the_best_matches(db: &TestDb) {
    let vectors = some_vectors(300, 16);
    embedded(&db.catalog, ADA, &vectors).await;
    assert_eq!(vectors_in_column(db).await, "300");
    let found = candidates(&db.catalog, scope_of(ADA), &vectors[7], 3).await;
    assert_eq!(found.len(), 3);
    assert_eq!((found[0].ordinal, &found[0].vector), (7, &vectors[7]));
    let everything = candidates(&db.another_handle().await, scope_of(ADA), &vectors[7], 3).await;
    assert_eq!(everything.len(), 300);
    assert_eq!(ranked(&found, &vectors[7], 3), ranked(&everything, &vectors[7], 3));
}

/// The scores differ by less than 32 bits can hold, so the database returns all of them as candidates.
pub(super) async fn the_best_of_many_similar_vectors_are_found(db: &TestDb) {
    for count in [90, 2_500] {
        let owner = ("harbour", if count == 90 { "few" } else { "many" });
        let vectors: Vec<Vec<f32>> = (0..count).map(|n| vec![1.0, (count - n) as f32 * 4e-7]).collect();
        embedded(&db.catalog, owner, &vectors).await;
        let found = candidates(&db.catalog, scope_of(owner), &[1.0, 0.0], 3).await;
        assert_eq!(found.len(), count);
        let everything = candidates(&db.another_handle().await, scope_of(owner), &[1.0, 0.0], 3).await;
        assert_eq!(ranked(&found, &[1.0, 0.0], 3), ranked(&everything, &[1.0, 0.0], 3));
    }
}

pub(super) async fn vectors_are_found_before_they_are_copied(db: &TestDb) {
    let unaware = db.another_handle().await;
    let vectors = some_vectors(250, 16);
    embedded(&db.catalog, ADA, &vectors[..50]).await;
    embedded(&unaware, ADA, &vectors[50..]).await;
    assert_eq!(vectors_in_column(db).await, "50");
    assert_eq!(db.catalog.vectors_to_copy().await.expect("counted"), 200);
    let wanted = &vectors[123];
    let before = candidates(&db.catalog, scope_of(ADA), wanted, 9).await;
    assert_eq!(before.len(), 209);

    assert_eq!(copy_all(&unaware).await, 0, "a process that started without pgvector copies nothing");
    // A copy that stops after one page is continued from there.
    db.catalog.copy_vectors(None).await.expect("copied");
    assert_eq!(vectors_in_column(db).await, "150");
    assert_eq!(copy_all(&db.catalog).await, 1);
    assert_eq!(vectors_in_column(db).await, "250");
    assert_eq!(db.catalog.vectors_to_copy().await.expect("counted"), 0);
    let after = candidates(&db.catalog, scope_of(ADA), wanted, 9).await;
    assert_eq!(after.len(), 9);
    assert_eq!(ranked(&after, wanted, 9), ranked(&before, wanted, 9));
    let everything = candidates(&unaware, scope_of(ADA), wanted, 9).await;
    assert_eq!(ranked(&after, wanted, 9), ranked(&everything, wanted, 9));
}

pub(super) async fn concurrent_copiers_copy_all_vectors(db: &TestDb) {
    let unaware = db.another_handle().await;
    for _ in 0..4 {
        embedded(&unaware, ADA, &some_vectors(400, 4)).await;
    }
    let copiers = (0..4).map(|_| {
        let catalog = db.catalog.clone();
        async move { copy_all(&catalog).await }
    });
    all_at_once(copiers).await;
    // Copiers skip rows that others have locked, so some may be left.
    copy_all(&db.catalog).await;
    assert_eq!(vectors_in_column(db).await, "1600");
    let differing = "SELECT CAST(COUNT(*) AS TEXT) FROM chunks one JOIN chunks other USING (ordinal) \
                     WHERE one.embedding <> other.embedding";
    assert_eq!(db.texts(differing).await, ["0"]);
}

pub(super) async fn vectors_copied_during_a_search_are_found(db: &TestDb) {
    let file = embedded(&db.another_handle().await, ADA, &[vec![1.0, 0.0]]).await;
    let mut search = db.catalog.candidates(scope_of(ADA), ["model", "other"], &[1.0, 0.0], 5);
    let mut found = search.next_page().await.expect("read").expect("a first page");
    copy_all(&db.catalog).await;
    while let Some(page) = search.next_page().await.expect("read") {
        found.extend(page);
    }
    assert!(found.iter().all(|one| one.file == file) && !found.is_empty(), "{found:?}");
}

/// A whole page of vectors that cannot be read is skipped.
pub(super) async fn unreadable_vectors_do_not_stop_the_copy(db: &TestDb) {
    let vectors = some_vectors(3, 4);
    embedded(&db.another_handle().await, ADA, &vectors).await;
    db.sql(
        "INSERT INTO chunks (file_id, ordinal, text, start_char, end_char, vector) \
         SELECT '', number, 't', 0, 1, '\\x0000803f' FROM generate_series(1, 150) AS number",
    )
    .await;
    copy_all(&db.catalog).await;
    assert_eq!(vectors_in_column(db).await, "3");
    // Chunks without a file are not left to the check at the end.
    db.sql("DELETE FROM chunks WHERE file_id = ''").await;
}

pub(super) async fn vectors_that_pgvector_refuses_are_found(db: &TestDb) {
    let longest = some_vectors(1, DIMENSIONS_MAX).remove(0);
    let longer = some_vectors(1, DIMENSIONS_MAX + 1).remove(0);
    let vectors = [
        longest.clone(),
        longer.clone(),
        vec![1.0, f32::NAN],
        vec![f32::INFINITY, 1.0],
        vec![],
        vec![1e-40, 1e-40],
        vec![1.0, 1.0],
    ];
    let file = embedded(&db.catalog, ADA, &vectors).await;
    let other = embedded(&db.another_handle().await, ADA, &vectors).await;
    copy_all(&db.catalog).await;
    assert_eq!(vectors_in_column(db).await, "4");
    for (wanted, ordinal) in [(&longest, 0), (&longer, 1)] {
        let found = candidates(&db.catalog, scope_of(ADA), wanted, 2).await;
        let mut expected = [(file, ordinal), (other, ordinal)];
        expected.sort();
        assert_eq!(ranked(&found, wanted, 2), expected);
    }
    // A vector without a direction has no matches.
    let nothing = vec![0.0, 0.0];
    let found = candidates(&db.catalog, scope_of(ADA), &nothing, 100).await;
    assert_eq!(ranked(&found, &nothing, 100), []);
    for wanted in [vec![], vec![f32::NAN, 1.0], vec![1e-20, 1e-20]] {
        let found = chunks_found(&db.catalog, scope_of(ADA), &wanted, 100).await;
        for ordinal in 0..vectors.len() as u64 {
            assert!(found.contains(&(file, ordinal)), "{ordinal} is a candidate for {wanted:?}");
        }
    }
}

pub(super) async fn numbers_are_stored_exactly(db: &TestDb) {
    let odd = vec![1e14, -9.999_999e13, f32::MIN_POSITIVE, 1e-45, -0.0, 0.1, 1.0 / 3.0, 16_777_217.0];
    embedded(&db.catalog, ADA, std::slice::from_ref(&odd)).await;
    let texts = db.texts("SELECT CAST(unnest(embedding::real[]) AS TEXT) FROM chunks").await;
    let numbers: Vec<u32> =
        texts.iter().map(|text| text.parse::<f32>().expect("a number").to_bits()).collect();
    assert_eq!(numbers, odd.iter().map(|number| number.to_bits()).collect::<Vec<_>>());
}
