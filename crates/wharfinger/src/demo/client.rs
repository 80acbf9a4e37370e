//! Clients of the demo: each a user with a token, who speaks HTTP like any other.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::cargo::Crate;

const TIMEOUT: Duration = Duration::from_secs(10);

/// A caller with a token. What goes wrong is what the demo is about: answers are looked at, errors are not.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    token: String,
}

/// All who take part.
pub struct Crew {
    pub users: Vec<Client>,
    /// Whoever looks at the page.
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
        let told = answer.json().await.unwrap_or(Value::Null);
        is_success.then_some(told)
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

    fn announcement(cargo: &Crate) -> Value {
        json!({ "fileName": cargo.name, "size": cargo.bytes.len(), "contentType": cargo.content_type })
    }

    pub async fn init(&self, cargo: &Crate) -> Option<Value> {
        self.post("/api/v2/files/init", Client::announcement(cargo)).await
    }

    /// Straight to the store.
    pub async fn put(&self, grant: &Value, cargo: &Crate) -> Option<()> {
        let mut request = self.http.put(grant["uploadUrl"].as_str()?).body(cargo.bytes.clone());
        for (name, value) in grant["headers"].as_object()? {
            request = request.header(name, value.as_str()?);
        }
        request.send().await.ok()?.status().is_success().then_some(())
    }

    /// From init to confirm; answers the file.
    pub async fn upload(&self, cargo: &Crate) -> Option<String> {
        let grant = self.init(cargo).await?;
        self.put(&grant, cargo).await?;
        let file = grant["fileId"].as_str()?.to_owned();
        self.post(&format!("/api/v2/files/{file}/confirm"), json!({})).await?;
        Some(file)
    }

    /// A batch of which so many are uploaded, and which is completed if that was all.
    pub async fn batch(&self, cargo: &[Crate], uploaded: usize) -> Option<()> {
        let files: Vec<Value> = cargo.iter().map(Client::announcement).collect();
        let batch = self.post("/api/v2/batches", json!({ "files": files })).await?;
        for (grant, cargo) in batch["files"].as_array()?.iter().zip(cargo).take(uploaded) {
            self.put(grant, cargo).await?;
        }
        if uploaded == cargo.len() {
            self.post(&format!("/api/v2/batches/{}/complete", batch["batchId"].as_str()?), json!({})).await?;
        }
        Some(())
    }

    /// Files of a status, the newest first.
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
