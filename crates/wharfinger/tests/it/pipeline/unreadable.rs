//! Unreadable rows that a stage needs: their file waits, and other files continue.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use wharfinger::core::Role;

use super::until_ready;
use crate::test_app::{Database, TestEnv, on_each_database};

/// Damages the file of one tenant after the stages in `before`. The next stage delays only this file. The file of
/// another tenant passes all stages, although the clock does not move.
async fn only_the_damaged_file_waits(
    database: Database,
    before: &str,
    damage: &'static str,
    table: Option<&str>,
) {
    let env = TestEnv::with_stages(database, "extract,chunk,embed", &[("PIPELINE_BUILTIN_STAGES", before)]);
    let server = env.start().await;
    let bad = server.as_user("other", "u", Role::User).enqueue("bad.txt", b"The tide comes in.").await;
    server.settle().await;
    env.execute(damage).await;
    server.crash().await;

    let server = env.start_but("PIPELINE_BUILTIN_STAGES", "").await;
    let stop = CancellationToken::new();
    let working = tokio::spawn(wharfinger::pipeline::run::work(server.app.pipeline.clone(), stop.clone()));
    let refusals = "SELECT COUNT(*) FROM jobs WHERE put_off_since IS NOT NULL AND attempts = 0";
    for _ in 0..4_000 {
        if env.scalar(refusals).await > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let other_file = server.me().enqueue("other.txt", b"The tide goes out.").await;
    until_ready(&server.me(), &other_file).await;
    let other = server.as_user("other", "u", Role::User);
    assert_eq!(other.file(&bad).await["status"], "queued");
    let listed = env.texts("SELECT table_name || ' ' || row_id FROM unreadable_rows").await;
    assert_eq!(listed, Vec::from_iter(table.map(|table| format!("{table} {bad}"))));
    stop.cancel();
    working.await.expect("it ends");
}

async fn an_unreadable_text_blocks_no_other_file(database: Database) {
    let damage = "UPDATE text_parts SET key = '../x'";
    only_the_damaged_file_waits(database, "extract", damage, Some("text_parts")).await;
}

/// It is found when the stage ends. Only the result of this file is not stored.
async fn an_unreadable_object_blocks_no_other_file(database: Database) {
    let damage = "INSERT INTO objects (key, file_id, kind, created_at, made_by) \
                  SELECT '../x', id, 'derived', 0, 'an earlier attempt' FROM files";
    only_the_damaged_file_waits(database, "embed", damage, None).await;
}

/// Only SQLite: PostgreSQL refuses a text in a column of numbers.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_chunk_blocks_no_other_file() {
    let damage = "UPDATE chunks SET ordinal = 'x'";
    only_the_damaged_file_waits(Database::Sqlite, "extract,chunk", damage, Some("chunks")).await;
}

on_each_database! {
    an_unreadable_text_blocks_no_other_file,
    an_unreadable_object_blocks_no_other_file,
}
