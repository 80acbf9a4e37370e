//! Uploads one file: hash, init, PUT, confirm. Each step is retried if that can help.

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

use super::super::remote::{Peer, connection_error};
use super::batch::CallBatch;
use super::files::LocalFile;
use super::parts::Multipart;
use super::progress::{Counter, FileProgress, Progress};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutOutcome {
    Uploaded,
    Unchanged,
    Failed,
}

pub(super) struct Client {
    pub(super) http: reqwest::Client,
    server: String,
    token: String,
    /// Random with `--again`, so that no earlier upload is recognized. Empty otherwise.
    run_id: String,
    /// None: all stages of the server.
    stages: Option<Vec<String>>,
    pub(super) parts_at_once: usize,
    /// One lock per init body: of equal files, the second waits and finds the upload of the first.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
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

/// A file that is now on the server.
pub(super) struct ServerFile {
    pub(super) id: String,
    pub(super) batch: Option<String>,
    pub(super) status: String,
    /// It was already there.
    pub(super) unchanged: bool,
}

pub(super) enum CallError {
    /// Another try may help.
    Retryable(String),
    /// The same call would fail again.
    Final { code: String, message: String },
}

pub(super) const TRIES_MAX: u32 = 10;
const PAUSE: Backoff = Backoff { base_ms: 250, cap_ms: 10_000 };
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 256 * 1024;
/// One more confirm is tried per this many bytes: the server may read the whole object for its checksum.
const CONFIRM_BYTES_PER_TRY: u64 = 64 << 20;
/// A store that takes no bytes and sends no answer for this long is given up.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// A file that was deleted after its upload gets a new Idempotency-Key, and so does a batch that has ended: at most this
/// often.
pub(super) const GENERATIONS_MAX: u32 = 100;

impl Client {
    pub(super) fn new(
        server: String,
        token: String,
        again: bool,
        stages: Option<Vec<String>>,
        parts_at_once: usize,
    ) -> Result<Client, String> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .build()
            .map_err(|error| error.to_string())?;
        let run_id = if again { uuid::Uuid::new_v4().to_string() } else { String::new() };
        Ok(Client { http, server, token, run_id, stages, parts_at_once, locks: Mutex::default() })
    }

    pub(super) fn batch_of(&self, files: &[LocalFile]) -> CallBatch {
        CallBatch::new(files, &self.run_id)
    }

    pub(super) async fn put(&self, file: &LocalFile, batch: &CallBatch, progress: &Progress) -> PutOutcome {
        let bar = progress.file(file);
        match self.upload(file, batch, &bar).await {
            Ok(on_server) => {
                bar.finish(true);
                progress.uploaded(file, &on_server);
                if on_server.unchanged { PutOutcome::Unchanged } else { PutOutcome::Uploaded }
            }
            Err(message) => {
                bar.finish(false);
                progress.failed(&file.path, &message);
                PutOutcome::Failed
            }
        }
    }

    async fn upload(
        &self,
        file: &LocalFile,
        batch: &CallBatch,
        bar: &FileProgress,
    ) -> Result<ServerFile, String> {
        bar.message("hashing");
        let sha256 = hash(file).await.map_err(|error| error.to_string())?;
        let mut body = init_body(file, &sha256);
        if let Some(stages) = &self.stages {
            body["stages"] = json!(stages);
        }
        let lock = self.lock_of(body.to_string());
        let _guard = lock.lock().await;
        let grant = self.init(&body, batch, bar).await?;
        let (id, batch) = (grant.file_id.clone(), grant.batch_id.clone());
        if grant.upload_url.is_none() && grant.multipart.is_none() {
            return Ok(ServerFile { id, batch, status: grant.status, unchanged: true });
        }
        let mut next = Some(grant);
        let mut attempt = 1;
        loop {
            let (progressed, outcome) = match next.take() {
                Some(grant) => self.send(file, &grant, bar).await,
                None => match self.reissue(&id).await {
                    Ok(grant) => self.send(file, &grant, bar).await,
                    Err(error) => (false, Err(error)),
                },
            };
            match outcome {
                Ok(()) => break,
                Err(CallError::Final { code, .. }) if code == "already_confirmed" => break,
                Err(error) => {
                    // A large file may be interrupted any number of times, as long as each try sends some parts.
                    attempt = if progressed { 1 } else { attempt };
                    self.report_and_pause(error, &mut attempt, bar).await?;
                }
            }
            bar.restart_at(0);
        }
        bar.message("confirming");
        let status = self.confirm(&id, file.size, bar).await?;
        Ok(ServerFile { id, batch, status, unchanged: false })
    }

    fn lock_of(&self, init_body: String) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        locks.entry(init_body).or_default().clone()
    }

    async fn init(&self, body: &Value, batch: &CallBatch, bar: &FileProgress) -> Result<Grant, String> {
        let mut batch_id = batch.id(self, None, bar).await?;
        let mut generation = 0;
        let mut attempt = 1;
        loop {
            // Without the batch: a file that was uploaded in an earlier batch is recognized too.
            let key = self.key(&format!("{body}\0{}\0{generation}", self.run_id));
            let mut request_body = body.clone();
            request_body["batchId"] = Value::from(batch_id.as_str());
            let request = self.call(Method::POST, "/api/v2/files/init").header("idempotency-key", key);
            match server_answer(request.json(&request_body)).await {
                Ok(value) => return serde_json::from_value(value).map_err(|error| error.to_string()),
                Err(CallError::Final { code, .. }) if code == "gone" && generation < GENERATIONS_MAX => {
                    generation += 1;
                }
                Err(CallError::Final { code, .. }) if code == "batch_closed" => {
                    batch_id = batch.id(self, Some(&batch_id), bar).await?;
                }
                Err(error) => self.report_and_pause(error, &mut attempt, bar).await?,
            }
        }
    }

    /// An Idempotency-Key that depends only on the server and the identity, so it is the same in every run.
    pub(super) fn key(&self, identity: &str) -> String {
        format!("put-{}", to_hex(&Sha256::digest(format!("{}\0{identity}", self.server))))
    }

    async fn reissue(&self, id: &str) -> Result<Grant, CallError> {
        let value = server_answer(self.call(Method::POST, &format!("/api/v2/files/{id}/url"))).await?;
        serde_json::from_value(value)
            .map_err(|error| CallError::Final { code: String::new(), message: error.to_string() })
    }

    /// Returns whether any part was sent, and the outcome.
    async fn send(
        &self,
        file: &LocalFile,
        grant: &Grant,
        bar: &FileProgress,
    ) -> (bool, Result<(), CallError>) {
        match &grant.multipart {
            Some(multipart) => {
                let (sent, outcome) = self.send_parts(file, multipart, bar).await;
                (sent > 0, outcome)
            }
            None => (false, self.send_whole(file, grant, bar).await),
        }
    }

    async fn send_whole(&self, file: &LocalFile, grant: &Grant, bar: &FileProgress) -> Result<(), CallError> {
        let (Some(url), Some(method)) = (&grant.upload_url, &grant.method) else { return Ok(()) };
        bar.message("sending");
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
            // The answer to an earlier attempt was lost. The bytes are there, and confirm checks them.
            Err(CallError::Final { code, .. }) if code == "object_exists" => Ok(()),
            // The URL expired, or another process uploads the same file. The next attempt gets a fresh URL.
            Err(CallError::Final { code, message }) if code == "url_expired" || code == "superseded" => {
                Err(CallError::Retryable(message))
            }
            Err(error) => Err(error),
        }
    }

    /// The server may have to read a large object before it can answer.
    async fn confirm(&self, id: &str, size: u64, bar: &FileProgress) -> Result<String, String> {
        let tries_max = TRIES_MAX + u32::try_from(size / CONFIRM_BYTES_PER_TRY).unwrap_or(u32::MAX / 2);
        for attempt in 1..=tries_max {
            match server_answer(self.call(Method::POST, &format!("/api/v2/files/{id}/confirm"))).await {
                Ok(value) => return Ok(value["status"].as_str().unwrap_or_default().to_owned()),
                // These bytes can never be confirmed: delete the file, so that the next run starts over.
                Err(CallError::Final { code, message }) if code == "checksum_mismatch" => {
                    let removed =
                        server_answer(self.call(Method::DELETE, &format!("/api/v2/files/{id}"))).await;
                    let outcome = match removed {
                        Ok(_) => "The uploaded file was deleted. Run the command again",
                        Err(_) => {
                            "The uploaded file could not be deleted. Delete it, then run the command again"
                        }
                    };
                    return Err(format!("{message}. {outcome}"));
                }
                Err(error) => {
                    let mut attempt =
                        if attempt < tries_max { attempt.min(TRIES_MAX - 1) } else { TRIES_MAX };
                    self.report_and_pause(error, &mut attempt, bar).await?;
                }
            }
        }
        Err("the server did not confirm the upload in time".into())
    }

    pub(super) fn call(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.server));
        request.bearer_auth(&self.token).timeout(Duration::from_secs(90))
    }

    pub(super) async fn report_and_pause(
        &self,
        error: CallError,
        attempt: &mut u32,
        bar: &FileProgress,
    ) -> Result<(), String> {
        if let CallError::Retryable(message) = &error {
            bar.message(&format!("retry {attempt}: {message}"));
        }
        self.pause(error, attempt).await
    }

    /// Waits before the next attempt, or returns the message if no attempt can help.
    pub(super) async fn pause(&self, error: CallError, attempt: &mut u32) -> Result<(), String> {
        match error {
            CallError::Final { message, .. } => Err(message),
            CallError::Retryable(message) if *attempt >= TRIES_MAX => Err(message),
            CallError::Retryable(_) => {
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

fn init_body(file: &LocalFile, sha256: &str) -> Value {
    let metadata = file.relative.as_ref().map(|path| json!({ "path": path }));
    // By the name: a server may require a type, and browsers show a file only by its type.
    let content_type = mime_guess::from_path(&file.name).first_raw();
    json!({
        "fileName": file.name, "size": file.size, "contentType": content_type, "checksumSha256": sha256,
        "metadata": metadata,
    })
}

pub(super) fn read_error(error: std::io::Error) -> CallError {
    CallError::Final { code: String::new(), message: error.to_string() }
}

/// Sends bytes to a store. Our local store answers like the API. The refusals of other stores are retried with a fresh
/// URL, because that helps against most of them: an expired URL, a conflicting upload, a wrong clock.
pub(super) async fn store_answer(request: RequestBuilder, sent: &Counter) -> Result<(), CallError> {
    let idle = async {
        let mut before = None;
        while before.replace(sent.count()) != Some(sent.count()) {
            tokio::time::sleep(IDLE_MAX).await;
        }
    };
    let answered = tokio::select! {
        answered = answer(request, Peer::Store) => answered,
        () = idle => Err(CallError::Retryable(format!("the store took no bytes for {} s", IDLE_MAX.as_secs()))),
    };
    match answered {
        Ok(_) => Ok(()),
        Err(CallError::Final { code, message }) if code.is_empty() => {
            if message.starts_with("412 ") || message.contains("<Code>BlobAlreadyExists</Code>") {
                return Err(CallError::Final { code: "object_exists".into(), message });
            }
            let store_code = message.split("<Code>").nth(1).and_then(|rest| rest.split("</Code>").next());
            let short = store_code.map(|code| format!("the store answered {code}"));
            Err(CallError::Retryable(short.unwrap_or(message)))
        }
        Err(error) => Err(error),
    }
}

pub(super) async fn server_answer(request: RequestBuilder) -> Result<Value, CallError> {
    answer(request, Peer::Server).await
}

async fn answer(request: RequestBuilder, peer: Peer) -> Result<Value, CallError> {
    let failed = |error| CallError::Retryable(connection_error(&error, peer));
    let response = request.send().await.map_err(failed)?;
    let status = response.status();
    let text = response.text().await.map_err(failed)?;
    let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    if status.is_success() {
        return Ok(body);
    }
    let detail = body["detail"].as_str().unwrap_or(text.as_str());
    let message = format!("{} {}", status.as_u16(), detail.chars().take(300).collect::<String>());
    let is_retryable = status.is_server_error()
        || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS);
    if is_retryable {
        return Err(CallError::Retryable(message));
    }
    Err(CallError::Final { code: body["code"].as_str().unwrap_or_default().to_owned(), message })
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
