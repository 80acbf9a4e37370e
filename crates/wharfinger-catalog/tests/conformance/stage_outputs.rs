//! Outputs of stages: stored once under a lease, replaced when the model changes, deleted when nothing needs them.

use wharfinger_catalog::{ChunkRow, ChunkVector, LeasedStageJob};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, CompletionResult, StageOutput, TextPart};

use super::sample::{HOUR, NOW, REFUSING, SECOND, committed, pin};
use super::stages::{claimed, end_expired, ended, queued};
use super::test_db::TestDb;

const LATER: UnixMs = NOW + 10 * SECOND;

/// If an output is sent twice under one lease, it is stored once.
pub(super) async fn an_output_is_stored_once(db: &TestDb) {
    queued(db, &[Stage::Scan]).await;
    let held = claimed(db, Stage::Scan, NOW + SECOND).await;
    let (job, token) = (held.job.id, held.job.token);
    let begin = async |token| db.catalog.begin_storing_output(job, token, LATER).await.expect("answered");
    assert!(!begin(token + 1).await);
    assert!(begin(token).await);
    assert!(!begin(token).await);
    db.catalog.abort_storing_output(job, token).await.expect("aborted");
    assert!(begin(token).await, "after an abort the output can be sent again");
    assert_eq!(end_expired(db, LATER + HOUR).await.len(), 1);
    let again = claimed(db, Stage::Scan, LATER + HOUR + 60 * SECOND).await;
    assert!(!begin(token).await);
    assert!(begin(again.job.token).await, "the next lease can store its output");
}

/// The model changes when a part of the chunks has vectors: all chunks get vectors of the new model.
pub(super) async fn chunks_of_another_model_are_embedded_again(db: &TestDb) {
    let file = queued(db, &[Stage::Embed]).await;
    let held = claimed(db, Stage::Embed, NOW + SECOND).await;
    let lease = (held.job.id, held.job.token);
    let chunk = |ordinal| ChunkRow { ordinal, text: "text".into(), start: 0, end: 4 };
    assert!(db.catalog.put_chunks(lease, file.id, vec![chunk(0), chunk(1)], true).await.expect("put"));
    let to_embed = async |model: &str| {
        let chunks = db.catalog.chunks_to_embed(file.id, model, 0, 10).await.expect("read");
        chunks.into_iter().map(|chunk| chunk.ordinal).collect::<Vec<_>>()
    };
    assert_eq!(to_embed("old").await, [0, 1]);
    let vector = |ordinal| vec![ChunkVector { ordinal, vector: vec![1.0, 0.0] }];
    assert!(db.catalog.set_vectors(lease, file.id, vector(0), "old").await.expect("set"));
    assert_eq!(to_embed("old").await, [1]);
    assert_eq!(to_embed("new").await, [0, 1]);
    assert!(db.catalog.set_vectors(lease, file.id, vector(0), "new").await.expect("set"));
    assert_eq!(to_embed("new").await, [1]);
}

/// Outputs of failed attempts are deleted when a later attempt succeeds, and all outputs when the file ends.
pub(super) async fn unneeded_derived_objects_get_a_cleanup(db: &TestDb) {
    let file = queued(db, &[Stage::Extract, Stage::Chunk]).await;
    let put = async |held: &LeasedStageJob, part: u32| {
        let lease = (held.job.id, held.job.token);
        let key = ObjectKey::text_part(&file.key, lease.0, lease.1, part);
        let added = db.catalog.add_derived_objects(lease, file.id, vec![key.clone()], NOW).await;
        assert!(added.expect("answered"));
        key
    };
    let first = claimed(db, Stage::Extract, NOW + SECOND).await;
    let stale = put(&first, 0).await;
    ended(db, &first, AttemptOutcome::Retry { why: "hiccup".into(), at: LATER }, LATER).await;
    let second = claimed(db, Stage::Extract, LATER).await;
    let key = put(&second, 0).await;
    let part = TextPart { key: key.clone(), pin: pin(), bytes: 7 };
    let output = StageOutput { details: None, text: Some(vec![part.clone()]) };
    assert_eq!(
        ended(db, &second, AttemptOutcome::Done(output), LATER).await,
        CompletionResult::Next(Stage::Chunk)
    );
    let doomed = async || db.texts("SELECT file_path FROM pending_cleanups ORDER BY file_path").await;
    let objects = async || db.texts("SELECT key FROM objects WHERE kind = 'derived'").await;
    assert_eq!(doomed().await, [stale.to_string()]);
    assert_eq!(objects().await, [key.to_string()]);
    assert_eq!(db.catalog.text_parts(file.id).await.expect("read"), [part]);

    let chunking = claimed(db, Stage::Chunk, LATER).await;
    let chunk = ChunkRow { ordinal: 0, text: "seven b".into(), start: 0, end: 7 };
    let lease = (chunking.job.id, chunking.job.token);
    assert!(db.catalog.put_chunks(lease, file.id, vec![chunk], true).await.expect("answered"));
    committed(&db.catalog, file::delete(&chunking.file, &REFUSING, LATER).expect("deletable")).await;
    let mut all = vec![key.to_string(), stale.to_string(), file.key.to_string()];
    all.sort();
    assert_eq!(doomed().await, all);
    assert_eq!(objects().await, Vec::<String>::new());
    assert_eq!(db.catalog.chunk_count(file.id).await.expect("read"), 0);
    assert_eq!(db.catalog.text_parts(file.id).await.expect("read"), []);
}
