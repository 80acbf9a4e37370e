//! Slow uploads: at most one per file, and none for a file that has ended, because the quota does not count bytes that
//! are not in place yet.

use bytes::Bytes;
use reqwest::Body;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{id, object_of};
use crate::oracle;
use crate::test_app::{Answer, Database, TestApp, TestEnv};

/// An upload whose bytes the test sends one part after the other.
pub(super) struct SlowUpload {
    pub bytes: mpsc::Sender<Result<Bytes, std::io::Error>>,
    pub answer: tokio::task::JoinHandle<Answer>,
}

pub(super) async fn start_upload(server: &TestApp, grant: &Value, first: &'static [u8]) -> SlowUpload {
    let (bytes, stream) = mpsc::channel(4);
    bytes.send(Ok(Bytes::from_static(first))).await.expect("the server reads");
    let body = futures::stream::unfold(stream, |mut stream| async move {
        let chunk = stream.recv().await?;
        Some((chunk, stream))
    });
    let url = grant["uploadUrl"].as_str().expect("a URL").to_owned();
    let request = server.http.put(url).body(Body::wrap_stream(body));
    let answer = tokio::spawn(async move { Answer::read(request.send().await.expect("an answer")).await });
    SlowUpload { bytes, answer }
}

/// Waits until the server receives this number of uploads.
pub(super) async fn wait_for_uploads(env: &TestEnv, count: usize) {
    let folder = env.blob_dir().join(".incoming");
    while std::fs::read_dir(&folder).expect("the folder of incoming uploads").count() != count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_file_ends_its_upload() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let grant = server.me().init("cargo", 10).await.expect(201);
    let slow = start_upload(&server, &grant, b"hello").await;
    wait_for_uploads(&env, 1).await;
    server.me().delete(&format!("/api/v2/files/{}", id(&grant))).await.expect(204);
    slow.answer.await.expect("an answer").expect_problem(410, "gone");
    assert_eq!(server.me().used().await, 0);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_upload_replaces_an_earlier_one() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let grant = server.me().init("cargo", 10).await.expect(201);
    let earlier = start_upload(&server, &grant, b"early").await;
    wait_for_uploads(&env, 1).await;
    let later = start_upload(&server, &grant, b"later").await;
    earlier.answer.await.expect("an answer").expect_problem(409, "superseded");
    wait_for_uploads(&env, 1).await;
    later.bytes.send(Ok(Bytes::from_static(b"bytes"))).await.expect("the server reads");
    drop(later.bytes);
    later.answer.await.expect("an answer").expect(200);
    server.me().confirm(&id(&grant)).await.expect(200);
    assert_eq!(std::fs::read(object_of(&env, &id(&grant))).expect("the object"), b"laterbytes");
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_file_also_ends_an_upload_that_replaced_another() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let grant = server.me().init("cargo", 10).await.expect(201);
    let earlier = start_upload(&server, &grant, b"early").await;
    wait_for_uploads(&env, 1).await;
    let later = start_upload(&server, &grant, b"later").await;
    earlier.answer.await.expect("an answer").expect_problem(409, "superseded");
    wait_for_uploads(&env, 1).await;
    server.me().delete(&format!("/api/v2/files/{}", id(&grant))).await.expect(204);
    later.answer.await.expect("an answer").expect_problem(410, "gone");
}

/// The temporary name of an upload whose object is in place, as a crash before the second check leaves it.
fn leave_temporary_name(env: &TestEnv, id: &str) -> std::path::PathBuf {
    let leftover =
        env.blob_dir().join(".incoming").join(format!("{id}.00000000-0000-4000-8000-000000000000"));
    std::fs::hard_link(object_of(env, id), &leftover).expect("a second name");
    leftover
}

/// The object of a confirmed file is kept, although the leftover looks like one of a late upload.
#[tokio::test(flavor = "multi_thread")]
async fn a_leftover_of_a_confirmed_file_is_removed_without_its_object() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let file = server.me().upload("cargo", b"bytes").await;
    let leftover = leave_temporary_name(&env, &file);
    server.settle().await;
    assert!(!leftover.exists());
    server.me().get(&format!("/api/v2/files/{file}/download")).await.expect(302);
    oracle::all_is_healed(&env, &server).await;
}

/// The object was put in place after the cleanup of its deleted file.
#[tokio::test(flavor = "multi_thread")]
async fn a_leftover_of_a_deleted_file_is_removed_with_its_object() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let grant = server.me().init("cargo", 5).await.expect(201);
    server.me().delete(&format!("/api/v2/files/{}", id(&grant))).await.expect(204);
    server.settle().await;
    super::plant(&env, &id(&grant), b"bytes");
    leave_temporary_name(&env, &id(&grant));
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

/// Without the row, the leftover is the only record of the object, so it is kept for the operator.
#[tokio::test(flavor = "multi_thread")]
async fn a_leftover_without_a_row_is_kept() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let grant = server.me().init("cargo", 5).await.expect(201);
    server.me().delete(&format!("/api/v2/files/{}", id(&grant))).await.expect(204);
    server.settle().await;
    env.advance(31 * 86_400_000);
    server.settle().await;
    super::plant(&env, &id(&grant), b"bytes");
    let leftover = leave_temporary_name(&env, &id(&grant));
    server.settle().await;
    assert!(leftover.exists() && object_of(&env, &id(&grant)).exists());
}
