//! A folder of real documents is uploaded by `wharfinger put`, and each gets the expected status.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use harness::documents::{self, SAMPLES};
use serde_json::Value;

use crate::cli::program::Place;

const TIME_LIMIT: Duration = Duration::from_secs(240);

/// Documents that do not become ready, with their status and a part of the reason.
const BAD: [(&str, &str, &str); 6] = [
    ("corrupted.pdf", "failed", "corrupted"),
    ("truncated.docx", "failed", "corrupted"),
    ("encrypted.pdf", "failed", "encrypted"),
    ("encrypted.docx", "failed", "encrypted"),
    ("bomb.docx", "failed", "too large"),
    ("eicar.txt", "quarantined", "infected"),
];

struct Reader {
    http: reqwest::Client,
    url: String,
    token: String,
}

impl Reader {
    async fn get(&self, path: &str) -> Value {
        let request = self.http.get(format!("{}{path}", self.url)).bearer_auth(&self.token);
        let answer = request.send().await.expect("an answer");
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        answer.json().await.expect("JSON")
    }

    /// All files by name, when each has its final status.
    async fn settled(&self) -> BTreeMap<String, Value> {
        let started = Instant::now();
        loop {
            let page = self.get("/api/v2/files?limit=1000").await;
            let files = page["files"].as_array().expect("a list").clone();
            let has_ended =
                |file: &Value| matches!(file["status"].as_str(), Some("ready" | "failed" | "quarantined"));
            if files.iter().all(has_ended) {
                return files.into_iter().map(|file| (name(&file), file)).collect();
            }
            assert!(started.elapsed() < TIME_LIMIT, "some files are stuck: {files:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn name(file: &Value) -> String {
    file["fileName"].as_str().expect("a name").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_document_gets_the_expected_status() {
    let place = Place::new();
    let folder = place.path().join("documents");
    std::fs::create_dir(&folder).expect("a folder");
    let bad = BAD.iter().map(|(file, ..)| *file);
    let names = SAMPLES.iter().map(|sample| sample.file).chain(bad).chain(["picture.png"]);
    for file in names {
        std::fs::copy(documents::folder().join(file), folder.join(file)).expect("a document");
    }
    let served = place.serve(&[
        ("PIPELINE_STAGES", "scan,extract,chunk,embed"),
        ("EXTRACT_INFLATED_BYTES_MAX", "64MiB"),
        ("CHUNK_SIZE", "500"),
        ("CHUNK_OVERLAP", "50"),
    ]);
    let token = place.token("t", "u", "user");
    let client = [("WHARFINGER_URL", served.url.as_str()), ("WHARFINGER_TOKEN", token.as_str())];
    place.run_with(&client, &["put", "documents"]).expect(0);
    let reader = Reader { http: reqwest::Client::new(), url: served.url.clone(), token };
    let files = reader.settled().await;

    for (bad, status, word) in BAD {
        let file = files.get(bad).unwrap_or_else(|| panic!("{bad} among {:?}", files.keys()));
        assert_eq!(file["status"], status, "{file}");
        let why = file["error"].as_str().expect("a reason");
        assert!(why.contains(word), "{bad}: {why}");
    }
    let picture = &files["picture.png"];
    assert_eq!((&picture["status"], &picture["textStatus"]), (&"ready".into(), &"none".into()), "{picture}");
    for sample in SAMPLES.iter().filter(|sample| BAD.iter().all(|(bad, ..)| *bad != sample.file)) {
        let file = &files[sample.file];
        assert_eq!(file["status"], "ready", "{file}");
        let id = file["fileId"].as_str().expect("an id");
        let chunks = reader.get(&format!("/api/v2/files/{id}/chunks?limit=1000")).await;
        let chunks = chunks["chunks"].as_array().expect("a list").clone();
        let text = joined(&chunks);
        for piece in sample.contains {
            let found = with_single_spaces(&text).contains(&with_single_spaces(piece));
            assert!(found, "{piece:?} in {}: {text:?}", sample.file);
        }
    }
    let notifications = reader.get("/api/v2/notifications?limit=1000").await;
    assert_eq!(notifications["notifications"].as_array().expect("a list").len(), files.len(), "one per file");
    let search = reader
        .http
        .post(format!("{}/api/v2/search", reader.url))
        .bearer_auth(&reader.token)
        .json(&serde_json::json!({ "query": "nobody signs for cargo they have not seen", "limit": 3 }));
    let hits: Value = search.send().await.expect("an answer").json().await.expect("JSON");
    assert!(hits["hits"][0]["text"].as_str().expect("a hit").contains("Nobody signs"), "{hits}");
    served.terminate();
}

/// The text, joined from overlapping chunks.
fn joined(chunks: &[Value]) -> String {
    let mut characters: Vec<char> = Vec::new();
    for chunk in chunks {
        let start = chunk["start"].as_u64().expect("a start") as usize;
        characters.resize(start.max(characters.len().min(start)), ' ');
        characters.truncate(start);
        characters.extend(chunk["text"].as_str().expect("a text").chars());
    }
    characters.into_iter().collect()
}

/// Chunks omit the spaces between them, so the number of spaces is not compared.
fn with_single_spaces(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
