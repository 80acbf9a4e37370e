//! One file's way to the server: hash, init, PUT, confirm, each tried again while that can help.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use reqwest::header::CONTENT_LENGTH;
use reqwest::{Body, Method, RequestBuilder, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::retry::Backoff;

use super::batch::CallBatch;
use super::files::LocalFile;
use super::parts::Multipart;
use super::progress::{Counter, FileProgress, Progress};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Uploaded,
    Unchanged,
    Failed,
}

pub(super) struct Client {
    pub(super) http: reqwest::Client,
    server: String,
    token: String,
    /// Set apart from all calls before, where everything is to be uploaded again.
    once: String,
    pub(super) parts_at_once: usize,
    /// Files that are the same to the server take turns: the second finds what the first has done.
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Grant {
    file_id: String,
    status: String,
    batch_id: Option<String>,
    upload_url: Option<String>,
    method: Option<String>,
    headers: Option<std::collections::BTreeMap<String, String>>,
    multipart: Option<Multipart>,
}

/// A file that is on the server.
pub(super) struct Carried {
    pub(super) id: String,
    pub(super) batch: Option<String>,
    pub(super) status: String,
    /// It was there before.
    pub(super) unchanged: bool,
}

pub(super) enum Trouble {
    /// Trying again may help.
    Passing(String),
    /// The same again gets the same answer.
    Final { code: String, message: String },
}

pub(super) const TRIES_MAX: u32 = 10;
const PAUSE: Backoff = Backoff { base_ms: 250, cap_ms: 10_000 };
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 256 * 1024;
/// As slowly as a server may read what it confirms before we give up on it, some seconds for each.
const CONFIRM_BYTES_A_TRY: u64 = 64 << 20;
/// A store that takes nothing more and says nothing for so long is not heard of again.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// A file that was uploaded and deleted since gets a new key, and so does a batch that has ended; so often and no more.
pub(super) const GENERATIONS_MAX: u32 = 100;

impl Client {
    pub(super) fn new(
        server: String,
        token: String,
        again: bool,
        parts_at_once: usize,
    ) -> Result<Client, String> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .build()
            .map_err(|error| error.to_string())?;
        let once = if again { uuid::Uuid::new_v4().to_string() } else { String::new() };
        Ok(Client { http, server, token, once, parts_at_once, turns: Mutex::default() })
    }

    /// For a batch of this call.
    pub(super) fn batch_of(&self, files: &[LocalFile]) -> CallBatch {
        CallBatch::new(files, &self.once)
    }

    pub(super) async fn put(&self, file: &LocalFile, batch: &CallBatch, progress: &Progress) -> Ended {
        let bar = progress.file(file);
        match self.carry(file, batch, &bar).await {
            Ok(carried) => {
                bar.ends(true);
                progress.uploaded(file, &carried);
                if carried.unchanged { Ended::Unchanged } else { Ended::Uploaded }
            }
            Err(message) => {
                bar.ends(false);
                progress.failed(&file.path, &message);
                Ended::Failed
            }
        }
    }

    async fn carry(
        &self,
        file: &LocalFile,
        batch: &CallBatch,
        bar: &FileProgress,
    ) -> Result<Carried, String> {
        bar.says("hashing");
        let sha256 = hash(file).await.map_err(|error| error.to_string())?;
        let body = announcement(file, &sha256);
        let turn = self.turn(body.to_string());
        let _turn = turn.lock().await;
        let grant = self.init(&body, batch, bar).await?;
        let (id, batch) = (grant.file_id.clone(), grant.batch_id.clone());
        if grant.upload_url.is_none() && grant.multipart.is_none() {
            return Ok(Carried { id, batch, status: grant.status, unchanged: true });
        }
        let mut next = Some(grant);
        let mut attempt = 1;
        loop {
            let (progressed, outcome) = match next.take() {
                Some(grant) => self.send(file, &grant, bar).await,
                None => match self.reissue(&id).await {
                    Ok(grant) => self.send(file, &grant, bar).await,
                    Err(trouble) => (false, Err(trouble)),
                },
            };
            match outcome {
                Ok(()) => break,
                Err(Trouble::Final { code, .. }) if code == "already_confirmed" => break,
                Err(trouble) => {
                    // A large file may be cut off any number of times, as long as it gets further.
                    attempt = if progressed { 1 } else { attempt };
                    self.say_and_pause(trouble, &mut attempt, bar).await?;
                }
            }
            bar.starts_at(0);
        }
        bar.says("confirming");
        let status = self.confirm(&id, file.size, bar).await?;
        Ok(Carried { id, batch, status, unchanged: false })
    }

    fn turn(&self, same: String) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        turns.entry(same).or_default().clone()
    }

    async fn init(&self, body: &Value, batch: &CallBatch, bar: &FileProgress) -> Result<Grant, String> {
        let mut batch_id = batch.id(self, None).await?;
        let mut generation = 0;
        let mut attempt = 1;
        loop {
            // A file that is known is known in whatever batch it was: the key says nothing of it.
            let key = self.key(&format!("{body}\0{}\0{generation}", self.once));
            let mut request_body = body.clone();
            request_body["batchId"] = Value::from(batch_id.as_str());
            let request = self.call(Method::POST, "/api/v2/files/init").header("idempotency-key", key);
            match answer(request.json(&request_body)).await {
                Ok(value) => return serde_json::from_value(value).map_err(|error| error.to_string()),
                Err(Trouble::Final { code, .. }) if code == "gone" && generation < GENERATIONS_MAX => {
                    generation += 1;
                }
                Err(Trouble::Final { code, .. }) if code == "batch_closed" => {
                    batch_id = batch.id(self, Some(&batch_id)).await?;
                }
                Err(trouble) => self.say_and_pause(trouble, &mut attempt, bar).await?,
            }
        }
    }

    /// An Idempotency-Key for something that is the same in every run.
    pub(super) fn key(&self, identity: &str) -> String {
        format!("put-{}", to_hex(&Sha256::digest(format!("{}\0{identity}", self.server))))
    }

    async fn reissue(&self, id: &str) -> Result<Grant, Trouble> {
        let value = answer(self.call(Method::POST, &format!("/api/v2/files/{id}/url"))).await?;
        serde_json::from_value(value)
            .map_err(|error| Trouble::Final { code: String::new(), message: error.to_string() })
    }

    /// Whether anything got further, and how it ended.
    async fn send(&self, file: &LocalFile, grant: &Grant, bar: &FileProgress) -> (bool, Result<(), Trouble>) {
        match &grant.multipart {
            Some(multipart) => {
                let (sent, outcome) = self.send_parts(file, multipart, bar).await;
                (sent > 0, outcome)
            }
            None => (false, self.send_whole(file, grant, bar).await),
        }
    }

    async fn send_whole(&self, file: &LocalFile, grant: &Grant, bar: &FileProgress) -> Result<(), Trouble> {
        let (Some(url), Some(method)) = (&grant.upload_url, &grant.method) else { return Ok(()) };
        bar.says("sending");
        let opened = file.open().await?;
        let counted = bar.counter();
        let taken = counted.clone();
        let chunks = ReaderStream::with_capacity(opened.take(file.size), READ_BYTES)
            .inspect(move |chunk| taken.sent(chunk.as_ref().map_or(0, |bytes| bytes.len() as u64)));
        let method = Method::from_bytes(method.as_bytes()).unwrap_or(Method::PUT);
        let mut request = self.http.request(method, url).header(CONTENT_LENGTH, file.size);
        for (name, value) in grant.headers.iter().flatten() {
            request = request.header(name, value);
        }
        match store_answer(request.body(Body::wrap_stream(chunks)), &counted).await {
            Ok(()) => Ok(()),
            // The answer of an earlier attempt was lost: the bytes are there, and confirm says if they are right.
            Err(Trouble::Final { code, .. }) if code == "object_exists" => Ok(()),
            // A URL can die on the way, or another process send the same; the next attempt brings a fresh one.
            Err(Trouble::Final { code, message }) if code == "url_expired" || code == "superseded" => {
                Err(Trouble::Passing(message))
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// The server may have to read a large object to the end before it can say that it is right.
    async fn confirm(&self, id: &str, size: u64, bar: &FileProgress) -> Result<String, String> {
        let tries_max = TRIES_MAX + u32::try_from(size / CONFIRM_BYTES_A_TRY).unwrap_or(u32::MAX / 2);
        for attempt in 1..=tries_max {
            match answer(self.call(Method::POST, &format!("/api/v2/files/{id}/confirm"))).await {
                Ok(value) => return Ok(value["status"].as_str().unwrap_or_default().to_owned()),
                // What is there can never be confirmed; the next run begins anew.
                Err(Trouble::Final { code, message }) if code == "checksum_mismatch" => {
                    let removed = answer(self.call(Method::DELETE, &format!("/api/v2/files/{id}"))).await;
                    let outcome = if removed.is_ok() { "removed: run this again" } else { "not removed" };
                    return Err(format!("{message}; what was uploaded is {outcome}"));
                }
                Err(trouble) => {
                    let mut attempt =
                        if attempt < tries_max { attempt.min(TRIES_MAX - 1) } else { TRIES_MAX };
                    self.say_and_pause(trouble, &mut attempt, bar).await?;
                }
            }
        }
        Err("given up".into())
    }

    pub(super) fn call(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.server));
        request.bearer_auth(&self.token).timeout(Duration::from_secs(90))
    }

    async fn say_and_pause(
        &self,
        trouble: Trouble,
        attempt: &mut u32,
        bar: &FileProgress,
    ) -> Result<(), String> {
        if let Trouble::Passing(message) = &trouble {
            bar.says(&format!("again ({attempt}): {message}"));
        }
        self.pause(trouble, attempt).await
    }

    /// Waits before the next attempt, if another can help.
    pub(super) async fn pause(&self, trouble: Trouble, attempt: &mut u32) -> Result<(), String> {
        match trouble {
            Trouble::Final { message, .. } => Err(message),
            Trouble::Passing(message) if *attempt >= TRIES_MAX => Err(message),
            Trouble::Passing(_) => {
                self.wait(*attempt).await;
                *attempt += 1;
                Ok(())
            }
        }
    }

    pub(super) async fn wait(&self, attempt: u32) {
        tokio::time::sleep(Duration::from_millis(PAUSE.delay_ms(attempt, rand::random()))).await;
    }
}

fn announcement(file: &LocalFile, sha256: &str) -> Value {
    let metadata = file.relative.as_ref().map(|path| json!({ "path": path }));
    json!({ "fileName": file.name, "size": file.size, "checksumSha256": sha256, "metadata": metadata })
}

pub(super) fn local_trouble(error: std::io::Error) -> Trouble {
    Trouble::Final { code: String::new(), message: error.to_string() }
}

/// What a store says to an upload. Ours speaks like the API; another's refusal names no remedy that holds for all of
/// them, and a fresh URL is one for most: expired, begun anew elsewhere, a clock that was off.
pub(super) async fn store_answer(request: RequestBuilder, sent: &Counter) -> Result<(), Trouble> {
    let idle = async {
        let mut before = None;
        while before.replace(sent.count()) != Some(sent.count()) {
            tokio::time::sleep(IDLE_MAX).await;
        }
    };
    let answered = tokio::select! {
        answered = answer(request) => answered,
        () = idle => Err(Trouble::Passing("the store takes nothing more and says nothing".into())),
    };
    match answered {
        Ok(_) => Ok(()),
        Err(Trouble::Final { code, message }) if code.is_empty() => {
            if message.starts_with("412 ") || message.contains("<Code>BlobAlreadyExists</Code>") {
                return Err(Trouble::Final { code: "object_exists".into(), message });
            }
            let said = message.split("<Code>").nth(1).and_then(|rest| rest.split("</Code>").next());
            let said = said.map(|said| format!("the store says {said}"));
            Err(Trouble::Passing(said.unwrap_or(message)))
        }
        Err(trouble) => Err(trouble),
    }
}

pub(super) async fn answer(request: RequestBuilder) -> Result<Value, Trouble> {
    let response = request.send().await.map_err(|error| {
        let cause = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        Trouble::Passing(format!("{}{cause}", error.without_url()))
    })?;
    let status = response.status();
    let text = response.text().await.map_err(|error| Trouble::Passing(error.without_url().to_string()))?;
    let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    if status.is_success() {
        return Ok(body);
    }
    let said = body["detail"].as_str().unwrap_or(text.as_str());
    let message = format!("{} {}", status.as_u16(), said.chars().take(300).collect::<String>());
    let passing = status.is_server_error()
        || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS);
    if passing {
        return Err(Trouble::Passing(message));
    }
    Err(Trouble::Final { code: body["code"].as_str().unwrap_or_default().to_owned(), message })
}

async fn hash(file: &LocalFile) -> std::io::Result<String> {
    let mut opened = tokio::fs::File::open(&file.path).await?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count = opened.read(&mut buffer).await?;
        if count == 0 {
            return Ok(to_hex(&hasher.finalize()));
        }
        hasher.update(&buffer[..count]);
    }
}
