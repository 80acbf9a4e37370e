//! Uploads a large file in parallel parts. Each part has its own retries. Parts that the store already has are not sent
//! again, so an interrupted upload resumes.

use std::io::SeekFrom;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::{StreamExt as _, TryStreamExt as _};
use reqwest::header::CONTENT_LENGTH;
use reqwest::{Body, Method};
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio_util::io::ReaderStream;

use super::client::{CallError, Client, read_error, store_answer};
use super::files::LocalFile;
use super::progress::FileProgress;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Multipart {
    part_size: u64,
    parts: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    number: u32,
    url: String,
    size: u64,
    #[serde(default)]
    uploaded: bool,
}

/// Tries of one part before fresh URLs are requested.
const TRIES_MAX: u32 = 3;
const READ_BYTES: usize = 1 << 20;

impl Client {
    /// Sends the missing parts. Returns how many were sent, also after an error.
    pub(super) async fn send_parts(
        &self,
        file: &LocalFile,
        multipart: &Multipart,
        bar: &FileProgress,
    ) -> (u32, Result<(), CallError>) {
        let there: u64 = multipart.parts.iter().filter(|part| part.uploaded).map(|part| part.size).sum();
        bar.restart_at(there);
        bar.message("sending");
        let missing: Vec<&Part> = multipart.parts.iter().filter(|part| !part.uploaded).collect();
        let stopped = AtomicBool::new(false);
        let send = |part| {
            let stopped = &stopped;
            async move {
                match stopped.load(Ordering::Relaxed) {
                    true => Ok(false),
                    false => self.send_part(file, multipart.part_size, part, bar).await.map(|()| true),
                }
            }
        };
        let mut outcomes = futures::stream::iter(missing).map(send).buffer_unordered(self.parts_at_once);
        let (mut sent, mut error) = (0, None);
        while let Some(outcome) = outcomes.next().await {
            match outcome {
                Ok(true) => sent += 1,
                Ok(false) => {}
                // Parts in progress are finished, so that the next try need not send them again.
                Err(first) => {
                    error.get_or_insert(first);
                    stopped.store(true, Ordering::Relaxed);
                }
            }
        }
        (sent, error.map_or(Ok(()), Err))
    }

    async fn send_part(
        &self,
        file: &LocalFile,
        part_size: u64,
        part: &Part,
        bar: &FileProgress,
    ) -> Result<(), CallError> {
        let mut attempt = 1;
        loop {
            let counted = bar.counter();
            let outcome = self.put_part(file, part_size, part, &counted).await;
            match outcome {
                // The file is complete: an earlier confirm has joined the parts. The next confirm checks it.
                Err(CallError::Final { code, .. }) if code == "object_exists" => return Ok(()),
                // Only fresh URLs help: this one has expired, the store has lost the upload, or another process sends it.
                Err(CallError::Final { code, message }) if code == "url_expired" || code == "superseded" => {
                    counted.subtract();
                    return Err(CallError::Retryable(message));
                }
                Err(error) => {
                    counted.subtract();
                    if attempt >= TRIES_MAX || !matches!(error, CallError::Retryable(_)) {
                        return Err(error);
                    }
                    self.wait(attempt).await;
                    attempt += 1;
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    async fn put_part(
        &self,
        file: &LocalFile,
        part_size: u64,
        part: &Part,
        counted: &super::progress::Counter,
    ) -> Result<(), CallError> {
        let mut opened = file.open().await?;
        let start = u64::from(part.number.saturating_sub(1)).saturating_mul(part_size);
        opened.seek(SeekFrom::Start(start)).await.map_err(read_error)?;
        let taken = counted.clone();
        let chunks = ReaderStream::with_capacity(opened.take(part.size), READ_BYTES)
            .inspect_ok(move |chunk| taken.sent(chunk.len() as u64))
            .boxed();
        let request = self.http.request(Method::PUT, &part.url).header(CONTENT_LENGTH, part.size);
        store_answer(request.body(Body::wrap_stream(chunks)), counted).await
    }
}
