//! The HTTP clients of the demo. Each has the token of one user.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::files::DemoFile;

const TIMEOUT: Duration = Duration::from_secs(10);

/// A caller with a token. Calls return no errors: failed calls are part of the demo.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    token: String,
}

/// All clients that take part.
pub struct DemoClients {
    pub users: Vec<Client>,
    /// The user `local`, whose notifications the link to the page shows.
    pub local: Client,
    pub operator: Client,
    pub worker: Client,
}

impl Client {
    pub fn new(url: &str, token: String) -> Client {
        let http = reqwest::Client::builder().timeout(TIMEOUT).no_proxy().build().unwrap_or_default();
        Client { http, url: url.to_owned(), token }
    }

    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Option<Value> {
        let request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        let request = match body {
            Some(body) => request.json(&body),
            None => request,
        };
        let answer = request.send().await.ok()?;
        let is_success = answer.status().is_success();
        let body = answer.json().await.unwrap_or(Value::Null);
        is_success.then_some(body)
    }

    pub async fn get(&self, path: &str) -> Option<Value> {
        self.call(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Option<Value> {
        self.call(Method::POST, path, Some(body)).await
    }

    pub async fn delete(&self, file: &str) {
        self.call(Method::DELETE, &format!("/api/v2/files/{file}"), None).await;
    }

    fn registration(file: &DemoFile) -> Value {
        json!({ "fileName": file.name, "size": file.bytes.len(), "contentType": file.content_type })
    }

    pub async fn init(&self, file: &DemoFile) -> Option<Value> {
        self.post("/api/v2/files/init", Client::registration(file)).await
    }

    /// Sends the bytes directly to the store.
    pub async fn put(&self, grant: &Value, file: &DemoFile) -> Option<()> {
        let mut request = self.http.put(grant["uploadUrl"].as_str()?).body(file.bytes.clone());
        for (name, value) in grant["headers"].as_object()? {
            request = request.header(name, value.as_str()?);
        }
        request.send().await.ok()?.status().is_success().then_some(())
    }

    /// From init to confirm. Returns the id of the file.
    pub async fn upload(&self, file: &DemoFile) -> Option<String> {
        let grant = self.init(file).await?;
        self.put(&grant, file).await?;
        let id = grant["fileId"].as_str()?.to_owned();
        self.post(&format!("/api/v2/files/{id}/confirm"), json!({})).await?;
        Some(id)
    }

    /// Opens a batch and uploads the first `uploaded` files. Completes the batch if these are all.
    pub async fn batch(&self, files: &[DemoFile], uploaded: usize) -> Option<()> {
        let registrations: Vec<Value> = files.iter().map(Client::registration).collect();
        let batch = self.post("/api/v2/batches", json!({ "files": registrations })).await?;
        for (grant, file) in batch["files"].as_array()?.iter().zip(files).take(uploaded) {
            self.put(grant, file).await?;
        }
        if uploaded == files.len() {
            self.post(&format!("/api/v2/batches/{}/complete", batch["batchId"].as_str()?), json!({})).await?;
        }
        Some(())
    }

    /// The user's files with this status, newest first.
    pub async fn files(&self, status: &str) -> Vec<Value> {
        let listed = self.get("/api/v2/files?limit=200").await.unwrap_or_default();
        let files = listed["files"].as_array().cloned().unwrap_or_default();
        files.into_iter().filter(|file| file["status"] == status).collect()
    }

    pub async fn events(&self, lines: String) -> Option<()> {
        let request = self.http.post(format!("{}/api/v2/events", self.url)).bearer_auth(&self.token);
        let sent = request.header("content-type", "application/x-ndjson").body(lines).send().await.ok()?;
        sent.status().is_success().then_some(())
    }

    pub async fn metrics(&self) -> String {
        let answer = self.http.get(format!("{}/metrics", self.url)).send().await;
        match answer {
            Ok(answer) => answer.text().await.unwrap_or_default(),
            Err(_) => String::new(),
        }
    }

    pub async fn is_ready(&self) -> bool {
        let answer = self.http.get(format!("{}/readyz", self.url)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }
}
