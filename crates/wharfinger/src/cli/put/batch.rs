//! The batch of a call: opened with the first file that needs it, completed at the end. Run again after a cut, the same
//! call finds the same batch; where that one takes no more files, the next of its generations does.

use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use wharfinger_lifecycle::checksum::to_hex;

use super::client::{Client, GENERATIONS_MAX, TRIES_MAX, Trouble, answer};
use super::files::LocalFile;

/// The batch as this call knows it; whoever asks first opens it for all.
pub(super) struct CallBatch {
    /// What makes two calls the same.
    identity: String,
    current: tokio::sync::Mutex<Current>,
}

#[derive(Default)]
struct Current {
    generation: u32,
    /// Its id, or why there is none.
    opened: Option<Result<String, String>>,
}

impl CallBatch {
    pub(super) fn new(files: &[LocalFile], once: &str) -> CallBatch {
        let mut identity = Sha256::new();
        for file in files {
            let path = file.path.as_os_str().as_encoded_bytes();
            identity.update((path.len() as u64).to_be_bytes());
            identity.update(path);
            identity.update(file.size.to_be_bytes());
        }
        let identity = format!("{}\0{once}", to_hex(&identity.finalize()));
        CallBatch { identity, current: tokio::sync::Mutex::default() }
    }

    /// The batch that files are added to. `closed` is one that was found to take no more.
    pub(super) async fn id(&self, client: &Client, closed: Option<&str>) -> Result<String, String> {
        let mut current = self.current.lock().await;
        match &current.opened {
            Some(Ok(id)) if closed == Some(id) => {
                current.generation += 1;
                current.opened = None;
            }
            Some(opened) => return opened.clone(),
            None => {}
        }
        let opened = self.open(client, &mut current.generation).await;
        current.opened = Some(opened.clone());
        opened
    }

    async fn open(&self, client: &Client, generation: &mut u32) -> Result<String, String> {
        let mut attempt = 1;
        while *generation < GENERATIONS_MAX {
            let key = client.key(&format!("{}\0{generation}", self.identity));
            let request = client.call(Method::POST, "/api/v2/batches").header("idempotency-key", key);
            match answer(request.json(&json!({ "files": [] }))).await {
                Ok(batch) => return text(&batch, "batchId"),
                // Cancelled or expired.
                Err(Trouble::Final { code, .. }) if code == "gone" => *generation += 1,
                Err(trouble) => client.pause(trouble, &mut attempt).await?,
            }
        }
        Err("every batch of this call has ended".into())
    }

    /// Says that no more files come. What failed and is still waited for keeps the batch open, for another run.
    pub(super) async fn complete(&self, client: &Client, some_failed: bool) -> Result<(), String> {
        let Some(Ok(id)) = self.current.lock().await.opened.clone() else { return Ok(()) };
        let mut attempt = 1;
        loop {
            match answer(client.call(Method::POST, &format!("/api/v2/batches/{id}/complete"))).await {
                Ok(_) => return Ok(()),
                Err(Trouble::Final { code, .. }) if code == "batch_incomplete" && some_failed => {
                    return Ok(());
                }
                // Another call of the same may still be at it.
                Err(Trouble::Final { code, message })
                    if code == "batch_incomplete" && attempt < TRIES_MAX =>
                {
                    client.pause(Trouble::Passing(message), &mut attempt).await?;
                }
                Err(trouble) => client.pause(trouble, &mut attempt).await?,
            }
        }
    }
}

fn text(answer: &Value, member: &str) -> Result<String, String> {
    answer[member].as_str().map(str::to_owned).ok_or_else(|| format!("the server's answer has no {member}"))
}
