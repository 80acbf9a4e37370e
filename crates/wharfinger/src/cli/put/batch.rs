//! The batch of one `put` call: opened for the first file, completed at the end. The same call run again finds the same
//! batch. If that batch takes no more files, the call opens the next generation.

use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use wharfinger_lifecycle::checksum::to_hex;

use super::client::{CallError, Client, GENERATIONS_MAX, TRIES_MAX, server_answer};
use super::files::LocalFile;
use super::progress::FileProgress;

/// The batch of this call. The first file that needs it opens it for all.
pub(super) struct CallBatch {
    /// Equal for two calls with the same files.
    identity: String,
    current: tokio::sync::Mutex<Current>,
}

#[derive(Default)]
struct Current {
    generation: u32,
    /// The batch id, or the error.
    opened: Option<Result<String, String>>,
}

impl CallBatch {
    pub(super) fn new(files: &[LocalFile], run_id: &str) -> CallBatch {
        let mut identity = Sha256::new();
        for file in files {
            let path = file.path.as_os_str().as_encoded_bytes();
            identity.update((path.len() as u64).to_be_bytes());
            identity.update(path);
            identity.update(file.size.to_be_bytes());
        }
        let identity = format!("{}\0{run_id}", to_hex(&identity.finalize()));
        CallBatch { identity, current: tokio::sync::Mutex::default() }
    }

    /// The batch that files are added to. `closed` is a batch that refused another file.
    pub(super) async fn id(
        &self,
        client: &Client,
        closed: Option<&str>,
        bar: &FileProgress,
    ) -> Result<String, String> {
        let mut current = self.current.lock().await;
        match &current.opened {
            Some(Ok(id)) if closed == Some(id) => {
                current.generation += 1;
                current.opened = None;
            }
            Some(opened) => return opened.clone(),
            None => {}
        }
        let opened = self.open(client, &mut current.generation, bar).await;
        current.opened = Some(opened.clone());
        opened
    }

    async fn open(
        &self,
        client: &Client,
        generation: &mut u32,
        bar: &FileProgress,
    ) -> Result<String, String> {
        let mut attempt = 1;
        while *generation < GENERATIONS_MAX {
            let key = client.key(&format!("{}\0{generation}", self.identity));
            let request = client.call(Method::POST, "/api/v2/batches").header("idempotency-key", key);
            match server_answer(request.json(&json!({ "files": [] }))).await {
                Ok(batch) => return text(&batch, "batchId"),
                // Cancelled or expired.
                Err(CallError::Final { code, .. }) if code == "gone" => *generation += 1,
                Err(error) => client.report_and_pause(error, &mut attempt, bar).await?,
            }
        }
        Err("every batch of this call has ended".into())
    }

    /// Completes the batch. If some files failed, it may stay open, so that the next run can add them.
    pub(super) async fn complete(&self, client: &Client, some_failed: bool) -> Result<(), String> {
        let Some(Ok(id)) = self.current.lock().await.opened.clone() else { return Ok(()) };
        let mut attempt = 1;
        loop {
            match server_answer(client.call(Method::POST, &format!("/api/v2/batches/{id}/complete"))).await {
                Ok(_) => return Ok(()),
                Err(CallError::Final { code, .. }) if code == "batch_incomplete" && some_failed => {
                    return Ok(());
                }
                // The same call may run twice at once and still upload.
                Err(CallError::Final { code, message })
                    if code == "batch_incomplete" && attempt < TRIES_MAX =>
                {
                    client.pause(CallError::Retryable(message), &mut attempt).await?;
                }
                Err(error) => client.pause(error, &mut attempt).await?,
            }
        }
    }
}

fn text(body: &Value, member: &str) -> Result<String, String> {
    body[member]
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| format!("the server's answer has no `{member}`. Is it a Wharfinger server?"))
}
