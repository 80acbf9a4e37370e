//! Uploads that are on their way for long: one a file, and none for a file that has ended, because bytes that are
//! not in place yet are nobody's charge.

use bytes::Bytes;
use reqwest::Body;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{id, object_of};
use crate::oracle;
use crate::test_app::{Answer, Database, TestApp, TestEnv};

/// An upload whose bytes come when the test sends them.
pub(super) struct Slow {
    pub bytes: mpsc::Sender<Result<Bytes, std::io::Error>>,
    pub answer: tokio::task::JoinHandle<Answer>,
}

pub(super) async fn begin(server: &TestApp, grant: &Value, first: &'static [u8]) -> Slow {
    let (bytes, stream) = mpsc::channel(4);
    bytes.send(Ok(Bytes::from_static(first))).await.expect("room");
    let body = futures::stream::unfold(stream, |mut stream| async move {
        let chunk = stream.recv().await?;
        Some((chunk, stream))
    });
    let url = grant["uploadUrl"].as_str().expect("a URL").to_owned();
    let request = server.http.put(url).body(Body::wrap_stream(body));
    let answer = tokio::spawn(async move { Answer::read(request.send().await.expect("an answer")).await });
    Slow { bytes, answer }
}

/// Until the server has taken the first bytes.
pub(super) async fn under_way(env: &TestEnv, count: usize) {
    let folder = env.blob_dir().join(".incoming");
    while std::fs::read_dir(&folder).expect("the folder of uploads on their way").count() != count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_file_ends_its_upload() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let grant = server.me().init("cargo", 10).await.expect(201);
    let slow = begin(&server, &grant, b"hello").await;
    under_way(&env, 1).await;
    server.me().delete(&format!("/api/v2/files/{}", id(&grant))).await.expect(204);
    slow.answer.await.expect("an answer").expect_problem(410, "gone");
    assert_eq!(server.me().used().await, 0);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_upload_takes_the_place_of_an_earlier() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let grant = server.me().init("cargo", 10).await.expect(201);
    let earlier = begin(&server, &grant, b"early").await;
    under_way(&env, 1).await;
    let later = begin(&server, &grant, b"later").await;
    earlier.answer.await.expect("an answer").expect_problem(409, "superseded");
    under_way(&env, 1).await;
    later.bytes.send(Ok(Bytes::from_static(b"bytes"))).await.expect("room");
    drop(later.bytes);
    later.answer.await.expect("an answer").expect(200);
    server.me().confirm(&id(&grant)).await.expect(200);
    assert_eq!(std::fs::read(object_of(&env, &id(&grant))).expect("the object"), b"laterbytes");
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_file_ends_the_later_of_its_uploads_too() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let grant = server.me().init("cargo", 10).await.expect(201);
    let earlier = begin(&server, &grant, b"early").await;
    under_way(&env, 1).await;
    let later = begin(&server, &grant, b"later").await;
    earlier.answer.await.expect("an answer").expect_problem(409, "superseded");
    under_way(&env, 1).await;
    server.me().delete(&format!("/api/v2/files/{}", id(&grant))).await.expect(204);
    later.answer.await.expect("an answer").expect_problem(410, "gone");
}

/// The note of an upload that is in place and was not looked at again, as a crash leaves it.
fn leave_note(env: &TestEnv, id: &str) -> std::path::PathBuf {
    let note = env.blob_dir().join(".incoming").join(format!("{id}.00000000-0000-4000-8000-000000000000"));
    std::fs::hard_link(object_of(env, id), &note).expect("a second name");
    note
}

/// The bytes of a file that was confirmed meanwhile are not taken for late ones.
#[tokio::test(flavor = "multi_thread")]
async fn the_note_of_a_confirmed_file_goes_and_its_object_stays() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let file = server.me().upload("cargo", b"bytes").await;
    let note = leave_note(&env, &file);
    server.settle().await;
    assert!(!note.exists());
    server.me().get(&format!("/api/v2/files/{file}/download")).await.expect(302);
    oracle::all_is_healed(&env, &server).await;
}

/// Bytes that came in place after their file had ended and its order was carried out.
#[tokio::test(flavor = "multi_thread")]
async fn the_note_of_an_ended_file_goes_with_its_object() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let grant = server.me().init("cargo", 5).await.expect(201);
    server.me().delete(&format!("/api/v2/files/{}", id(&grant))).await.expect(204);
    server.settle().await;
    super::plant(&env, &id(&grant), b"bytes");
    leave_note(&env, &id(&grant));
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

/// Where even the row is forgotten, the note is all that says that there is an object: it stays for a person.
#[tokio::test(flavor = "multi_thread")]
async fn the_note_of_a_forgotten_file_is_kept() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let grant = server.me().init("cargo", 5).await.expect(201);
    server.me().delete(&format!("/api/v2/files/{}", id(&grant))).await.expect(204);
    server.settle().await;
    env.advance(31 * 86_400_000);
    server.settle().await;
    super::plant(&env, &id(&grant), b"bytes");
    let note = leave_note(&env, &id(&grant));
    server.settle().await;
    assert!(note.exists() && object_of(&env, &id(&grant)).exists());
}
