//! The built-in stages: from confirm to ready, failed or quarantined.

use serde_json::json;

use super::{ALL, chunks, eicar, statuses, told, until_ready};
use crate::oracle;
use crate::test_app::{Database, TestEnv, on_each_database};
use wharfinger::core::Role;

/// Enough for some chunks, with characters of more than one byte.
fn text() -> String {
    (1..=60)
        .map(|n| format!("Absatz {n}: Der Kai № {n} hält {} Kisten Kaffee für Übersee bereit.\n\n", n * 7))
        .collect()
}

/// A stage must not treat one unreadable object as an outage of the store.
async fn an_unreadable_object_delays_only_its_file(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[]);
    let server = env.start().await;
    let refused = server.as_user("other", "u", Role::User).enqueue("refused", b"cargo").await;
    let path = env.blob_dir().join(format!("uploads/other/u/{refused}"));
    let moved = env.folder().join("moved");
    std::fs::rename(&path, &moved).expect("moved");
    // A link to itself cannot be opened, not even by root.
    std::os::unix::fs::symlink(&path, &path).expect("a link to itself");
    let fine = server.me().enqueue("fine", b"cargo").await;
    let stop = tokio_util::sync::CancellationToken::new();
    let working = tokio::spawn(wharfinger::pipeline::run::work(server.app.pipeline.clone(), stop.clone()));
    let me = server.me();
    let other = server.as_user("other", "u", Role::User);
    let refusals = "SELECT COUNT(*) FROM jobs WHERE put_off_since IS NOT NULL AND attempts = 0";
    while env.scalar(refusals).await == 0 || me.file(&fine).await["status"] != "ready" {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(other.file(&refused).await["status"], "queued");
    // The stage does not pause: a new file is processed although the clock does not move.
    let next = me.enqueue("next", b"cargo").await;
    while me.file(&next).await["status"] != "ready" {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    std::fs::remove_file(&path).expect("removed");
    std::fs::rename(&moved, &path).expect("restored");
    env.advance(41_000);
    while other.file(&refused).await["status"] != "ready" {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    stop.cancel();
    working.await.expect("it ends");
    oracle::all_is_healed(&env, &server).await;
}

/// A copy that does not fit delays only its file, as long as small copies fit. A disk without any space is an outage.
async fn a_file_too_large_for_the_disk_delays_no_other_file(database: Database) {
    let env = TestEnv::with_stages(database, "extract", &[]);
    let server = env.start().await;
    let (me, other) = (server.me(), server.as_user("other", "u", Role::User));
    let large = other.enqueue("large.txt", b"cargo").await;
    // `/dev/full` at the path of its copy accepts no byte.
    let copy = env.texts("SELECT id || '-' || CAST(lease_token + 1 AS TEXT) FROM jobs").await.remove(0);
    let copies = env.data_dir().join("extracting");
    std::fs::create_dir_all(&copies).expect("a folder");
    std::os::unix::fs::symlink("/dev/full", copies.join(copy)).expect("a link");
    let stop = tokio_util::sync::CancellationToken::new();
    let working = tokio::spawn(wharfinger::pipeline::run::work(server.app.pipeline.clone(), stop.clone()));
    let until_postponed = async |files: i64| {
        let refusals = "SELECT COUNT(*) FROM jobs WHERE put_off_since IS NOT NULL AND attempts = 0";
        for _ in 0..4_000 {
            if env.scalar(refusals).await == files {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("expected {files} postponed files");
    };
    until_postponed(1).await;
    let fine = me.enqueue("fine.txt", b"cargo").await;
    until_ready(&me, &fine).await;
    assert_eq!(other.file(&large).await["status"], "queued");

    std::fs::remove_dir_all(&copies).expect("the folder is removed");
    std::fs::write(&copies, b"in the statuses").expect("a file in its place");
    let first = me.enqueue("first.txt", b"cargo").await;
    until_postponed(2).await;
    let second = me.enqueue("second.txt", b"cargo").await;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(!statuses(&me, &second).await.contains(&"extracting".to_owned()), "the stage pauses");
    std::fs::remove_file(&copies).expect("the file is removed");
    env.advance(61_000);
    for (client, file) in [(&me, &first), (&me, &second), (&other, &large)] {
        until_ready(client, file).await;
    }
    stop.cancel();
    working.await.expect("it ends");
    oracle::all_is_healed(&env, &server).await;
}

async fn a_text_becomes_ready_with_chunks_and_vectors(database: Database) {
    let env = TestEnv::with_stages(database, ALL, &[("CHUNK_SIZE", "200"), ("CHUNK_OVERLAP", "40")]);
    let server = env.start().await;
    let me = server.me();
    let text = text();
    let file = me.enqueue("kai.txt", text.as_bytes()).await;
    assert_eq!(chunks(&me, &file).await, Vec::<serde_json::Value>::new());
    me.get(&format!("/api/v2/files/{file}/download")).await.expect_problem(409, "not_ready");
    server.settle().await;

    let ready = me.file(&file).await;
    assert_eq!((ready["status"].as_str(), ready["error"].as_str()), (Some("ready"), None));
    assert!(ready["readyAt"].is_string());
    let expected =
        "registered uploaded queued scanning queued extracting queued chunking queued embedding ready";
    assert_eq!(statuses(&me, &file).await.join(" "), expected);
    let characters: Vec<char> = text.chars().collect();
    let chunks = chunks(&me, &file).await;
    assert!(chunks.len() > 10, "{} chunks", chunks.len());
    let mut covered = 0;
    for (n, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk["ordinal"], n);
        let offset = |name: &str| chunk[name].as_u64().expect("a number") as usize;
        let (start, end) = (offset("start"), offset("end"));
        assert_eq!(chunk["text"], characters[start..end].iter().collect::<String>());
        assert!(end - start <= 200);
        let between: String = characters[covered.min(start)..start].iter().collect();
        assert_eq!(between.trim(), "", "only spaces are between chunks");
        covered = covered.max(end);
    }
    assert_eq!(characters[covered..].iter().collect::<String>().trim(), "");
    let vectors = env.scalar("SELECT CAST(COUNT(*) AS BIGINT) FROM chunks WHERE vector IS NOT NULL").await;
    assert_eq!(vectors as usize, chunks.len());
    let notifications = told(&me).await;
    assert_eq!(
        (notifications.len(), &notifications[0]["kind"], &notifications[0]["fileId"]),
        (1, &json!("file-ready"), &json!(file))
    );
    me.get(&format!("/api/v2/files/{file}/download")).await.expect(302);
    oracle::all_is_healed(&env, &server).await;

    me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    server.settle().await;
    env.advance(3_600_000);
    server.settle().await;
    assert_eq!(env.scalar("SELECT CAST(COUNT(*) AS BIGINT) FROM chunks").await, 0);
    oracle::all_is_healed(&env, &server).await;
}

async fn an_infected_file_cannot_be_downloaded(database: Database) {
    let env = TestEnv::with_stages(database, ALL, &[]);
    let server = env.start().await;
    let me = server.me();
    let file = me.enqueue("invoice.txt", &eicar()).await;
    server.settle().await;
    let found = me.file(&file).await;
    assert_eq!(found["status"], "quarantined");
    assert!(found["error"].as_str().expect("a reason").contains("infected"), "{found}");
    me.get(&format!("/api/v2/files/{file}/download")).await.expect_problem(409, "quarantined");
    let notifications = told(&me).await;
    assert_eq!((notifications.len(), &notifications[0]["kind"]), (1, &json!("file-quarantined")));
    assert!(notifications[0]["data"]["reason"].as_str().expect("a reason").contains("infected"));
    assert_eq!(me.get("/api/v2/dlq").await.expect(200)["jobs"], json!([]));
    oracle::catalog_is_sound(&server).await;
    // The bytes are kept for analysis until the owner deletes the file.
    assert_eq!(oracle::stored(&env, &server).await.len(), 1);
    me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn a_deleted_file_is_not_processed(database: Database) {
    let env = TestEnv::with_stages(database, ALL, &[]);
    let server = env.start().await;
    let me = server.me();
    let file = me.enqueue("kai.txt", text().as_bytes()).await;
    me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    server.settle().await;
    me.get(&format!("/api/v2/files/{file}")).await.expect_problem(404, "not_found");
    assert_eq!(env.scalar("SELECT CAST(COUNT(*) AS BIGINT) FROM jobs").await, 0);
    oracle::all_is_healed(&env, &server).await;
}

async fn changed_and_missing_bytes_are_not_processed(database: Database) {
    let env = TestEnv::with_stages(database, ALL, &[]);
    let server = env.start().await;
    let me = server.me();
    let file = me.enqueue("kai.txt", text().as_bytes()).await;
    let path = env.blob_dir().join(format!("uploads/t/u/{file}"));
    std::fs::remove_file(&path).expect("removed");
    std::fs::write(&path, text().replace("Kaffee", "Kakao ")).expect("written");
    server.settle().await;
    let found = me.file(&file).await;
    assert_eq!(found["status"], "quarantined", "{found}");
    assert!(found["error"].as_str().expect("a reason").contains("changed"), "{found}");

    let missing = me.enqueue("kai.txt", text().as_bytes()).await;
    std::fs::remove_file(env.blob_dir().join(format!("uploads/t/u/{missing}"))).expect("removed");
    server.settle().await;
    let found = me.file(&missing).await;
    assert_eq!(found["status"], "failed", "{found}");
    oracle::catalog_is_sound(&server).await;
}

async fn a_file_keeps_the_stages_it_was_confirmed_with(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[]);
    let server = env.start().await;
    let file = server.me().enqueue("kai.txt", text().as_bytes()).await;
    server.crash().await;
    let env = env.also(&[("PIPELINE_STAGES", "extract")]);
    let server = env.start().await;
    server.settle().await;
    assert_eq!(statuses(&server.me(), &file).await.join(" "), "registered uploaded queued scanning ready");
}

/// The stages read, split and embed the text part by part.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_text_is_stored_in_parts() {
    let env = TestEnv::with_stages(Database::Sqlite, ALL, &[("CHUNK_SIZE", "4000"), ("CHUNK_OVERLAP", "0")]);
    let server = env.start().await;
    let me = server.me();
    let text: String = (0..130_000).map(|n| format!("Zeile {n}: Ölfässer auf Pier {}.\n", n % 97)).collect();
    assert!(text.len() > 4 << 20);
    let file = me.enqueue("lang.txt", text.as_bytes()).await;
    server.settle().await;
    assert_eq!(me.file(&file).await["status"], "ready", "{}", me.file(&file).await);
    assert!(env.scalar("SELECT CAST(COUNT(*) AS BIGINT) FROM text_parts").await > 1);
    let last = "SELECT CAST(MAX(end_char) AS BIGINT) FROM chunks";
    assert!(env.scalar(last).await as usize >= text.trim_end().chars().count());
    oracle::all_is_healed(&env, &server).await;
}

on_each_database! {
    an_unreadable_object_delays_only_its_file,
    a_file_too_large_for_the_disk_delays_no_other_file,
    a_text_becomes_ready_with_chunks_and_vectors,
    an_infected_file_cannot_be_downloaded,
    a_deleted_file_is_not_processed,
    changed_and_missing_bytes_are_not_processed,
    a_file_keeps_the_stages_it_was_confirmed_with,
}
