//! The candidates of a search: vectors of the ready files of a scope, with the best matches among them.

use wharfinger_catalog::{
    Catalog, ChunkRow, ChunkVector, Claimable, LeasedStageJob, Scope, StageClaim, StageEnd, StageEndContext,
    StoredVector,
};
use wharfinger_lifecycle::file;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::processing::PipelinePlan;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, CompletionResult, StageOutput};

use super::sample::{HOUR, NOW, REFUSING, SECOND, committed, pin, registered, tenant, user};
use super::test_db::TestDb;

pub(super) const ADA: (&str, &str) = ("harbour", "ada");

pub(super) fn scope_of(owner: (&str, &str)) -> Scope {
    Scope::User(tenant(owner.0), user(owner.1))
}

fn plan() -> PipelinePlan {
    PipelinePlan { stages: vec![Stage::Embed], ..PipelinePlan::without_stages() }
}

/// A file at its last stage, with a chunk for each vector.
pub(super) async fn embedding(
    catalog: &Catalog,
    owner: (&str, &str),
    vectors: &[Vec<f32>],
) -> LeasedStageJob {
    let file = registered(catalog, owner, 10).await;
    let change = file::confirm(&file, pin(), None, "confirmed", &plan(), NOW + SECOND).expect("confirmable");
    committed(catalog, change).await;
    let claim = StageClaim {
        stage: Stage::Embed,
        owner: "worker:a".into(),
        limit: 1,
        tenants: None,
        of: Claimable::Untried,
        lease_ms: 10 * SECOND,
        deadline_ms: HOUR,
        plan: plan(),
        now: NOW + SECOND,
    };
    let held = catalog.claim_stage(claim).await.expect("claimed").remove(0);
    assert_eq!(held.file.id, file.id);
    let chunks =
        (0..vectors.len() as u64).map(|n| ChunkRow { ordinal: n, text: "text".into(), start: n, end: n + 1 });
    let lease = (held.job.id, held.job.token);
    assert!(catalog.put_chunks(lease, file.id, chunks.collect(), true).await.expect("written"));
    let embedded =
        vectors.iter().zip(0..).map(|(vector, ordinal)| ChunkVector { ordinal, vector: vector.clone() });
    assert!(catalog.set_vectors(lease, file.id, embedded.collect(), "model").await.expect("written"));
    held
}

/// A ready file whose chunks have these vectors.
pub(super) async fn embedded(catalog: &Catalog, owner: (&str, &str), vectors: &[Vec<f32>]) -> FileId {
    let held = embedding(catalog, owner, vectors).await;
    let end = StageEnd {
        job: held.job.id,
        token: held.job.token,
        outcome: AttemptOutcome::Done(StageOutput::default()),
    };
    let by = StageEndContext { actor: "worker:a", plan: &plan(), now: NOW + SECOND };
    assert_eq!(catalog.end_stages(vec![end], by).await.expect("answered"), [CompletionResult::Ready]);
    held.file.id
}

pub(super) async fn candidates(
    catalog: &Catalog,
    scope: Scope,
    wanted: &[f32],
    limit: usize,
) -> Vec<StoredVector> {
    let mut candidates = catalog.candidates(scope, ["model", "other"], wanted, limit);
    let mut all = Vec::new();
    while let Some(page) = candidates.next_page().await.expect("read") {
        all.extend(page);
    }
    all
}

/// The file and ordinal of each candidate, sorted and without duplicates.
pub(super) async fn chunks_found(
    catalog: &Catalog,
    scope: Scope,
    wanted: &[f32],
    limit: usize,
) -> Vec<(FileId, u64)> {
    let found = candidates(catalog, scope, wanted, limit).await;
    let mut chunks: Vec<(FileId, u64)> = found.iter().map(|one| (one.file, one.ordinal)).collect();
    chunks.sort();
    chunks.dedup();
    chunks
}

/// The score as a search computes it: in 64 bits, then rounded to 32.
pub(super) fn cosine(one: &[f32], other: &[f32]) -> Option<f32> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let length = (dot(one, one) * dot(other, other)).sqrt();
    (one.len() == other.len() && length > 0.0)
        .then(|| (dot(one, other) / length) as f32)
        .filter(|score| *score > 0.0)
}

/// The best of these vectors, ranked as a search ranks them.
pub(super) fn ranked(all: &[StoredVector], wanted: &[f32], limit: usize) -> Vec<(FileId, u64)> {
    let mut scored: Vec<(f32, FileId, u64)> =
        all.iter().filter_map(|one| Some((cosine(wanted, &one.vector)?, one.file, one.ordinal))).collect();
    scored.sort_by(|one, other| other.0.total_cmp(&one.0).then((one.1, one.2).cmp(&(other.1, other.2))));
    scored.dedup();
    scored.truncate(limit);
    scored.into_iter().map(|(_, file, ordinal)| (file, ordinal)).collect()
}

/// Pseudo-random numbers, the same ones in each run.
pub(super) fn some_vectors(count: usize, dimensions: usize) -> Vec<Vec<f32>> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| (0..dimensions).map(|_| next()).collect()).collect()
}

pub(super) async fn candidates_are_ready_files_of_the_scope(db: &TestDb) {
    let catalog = &db.catalog;
    let vector = vec![vec![1.0, 0.5]];
    let adas = embedded(catalog, ADA, &vector).await;
    let bens = embedded(catalog, ("harbour", "ben"), &vector).await;
    let namesakes = embedded(catalog, ("island", "ada"), &vector).await;
    embedding(catalog, ADA, &vector).await;
    let deleted = embedded(catalog, ADA, &vector).await;
    let file = catalog.file(deleted).await.expect("read").expect("it is there");
    committed(catalog, file::delete(&file, &REFUSING, NOW + 2 * SECOND).expect("deletable")).await;

    let found = async |scope: Scope| chunks_found(catalog, scope, &[1.0, 0.0], 10).await;
    assert_eq!(found(scope_of(ADA)).await, [(adas, 0)]);
    assert_eq!(found(scope_of(("island", "ada"))).await, [(namesakes, 0)]);
    assert_eq!(found(scope_of(("island", "ben"))).await, []);
    let mut in_harbour = [(adas, 0), (bens, 0)];
    in_harbour.sort();
    assert_eq!(found(Scope::Tenant(tenant("harbour"))).await, in_harbour);
    let mut everywhere = [(adas, 0), (bens, 0), (namesakes, 0)];
    everywhere.sort();
    assert_eq!(found(Scope::All).await, everywhere);
}

/// Scores of different models cannot be compared, even if the vectors have the same length.
pub(super) async fn vectors_of_other_models_are_not_candidates(db: &TestDb) {
    let file = embedded(&db.catalog, ADA, &[vec![1.0, 0.0]]).await;
    let other = embedded(&db.catalog, ADA, &[vec![1.0, 0.0]]).await;
    db.sql(&format!("UPDATE chunks SET model = 'changed' WHERE file_id = '{other}'")).await;
    assert_eq!(chunks_found(&db.catalog, scope_of(ADA), &[1.0, 0.0], 5).await, [(file, 0)]);
}

/// Among the vectors are ties, other dimensions, one without a direction, and ones of extreme length.
pub(super) async fn the_best_matches_are_among_the_candidates(db: &TestDb) {
    let mut vectors = some_vectors(40, 8);
    vectors.push(vec![0.0; 8]);
    vectors.extend(some_vectors(5, 3));
    vectors.push(vec![f32::MIN_POSITIVE / 8.0; 8]);
    vectors.push(vec![f32::MAX / 2.0; 8]);
    let first = embedded(&db.catalog, ADA, &vectors).await;
    let second = embedded(&db.catalog, ADA, &vectors).await;
    let all: Vec<StoredVector> = [first, second]
        .into_iter()
        .flat_map(|file| {
            let stored =
                |(vector, ordinal): (&Vec<f32>, u64)| StoredVector { file, ordinal, vector: vector.clone() };
            vectors.iter().zip(0..).map(stored).collect::<Vec<_>>()
        })
        .collect();
    for wanted in some_vectors(6, 8).iter().chain(&some_vectors(2, 3)).chain(&some_vectors(1, 9)) {
        for limit in [1, 2, 7, 200] {
            let found = candidates(&db.catalog, scope_of(ADA), wanted, limit).await;
            assert_eq!(ranked(&found, wanted, limit), ranked(&all, wanted, limit), "{limit} for {wanted:?}");
        }
    }
}

pub(super) async fn no_page_of_candidates_is_skipped(db: &TestDb) {
    // Written by a process without pgvector, so that both databases read pages.
    let catalog = db.another_handle().await;
    let mut files = Vec::new();
    for count in [1_999, 1, 2_500] {
        let file = embedded(&catalog, ADA, &vec![vec![1.0, 2.0]; count]).await;
        files.extend((0..count as u64).map(|ordinal| (file, ordinal)));
    }
    files.sort();
    assert!(chunks_found(&db.catalog, scope_of(ADA), &[1.0, 2.0], 5).await == files);
}
