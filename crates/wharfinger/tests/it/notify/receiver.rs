//! A real receiver of webhooks, which answers what the test says and keeps what it got.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[derive(Clone, Debug)]
pub struct Got {
    pub id: String,
    pub headers: HeaderMap,
    pub raw: Bytes,
    pub body: Value,
    /// What it was answered.
    pub status: u16,
}

impl Got {
    pub fn kind(&self) -> &str {
        self.body["type"].as_str().expect("a type")
    }

    pub fn file(&self) -> &str {
        self.body["data"]["fileId"].as_str().expect("a file")
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().expect("text")
    }
}

type Answer = dyn Fn(&Got) -> Response + Send + Sync;

pub struct Receiver {
    pub url: String,
    got: Arc<Mutex<Vec<Got>>>,
    answer: Arc<Mutex<Arc<Answer>>>,
    stop: CancellationToken,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Receiver {
    /// One that takes everything.
    pub async fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/hook/hush-hush", listener.local_addr().expect("bound"));
        let got: Arc<Mutex<Vec<Got>>> = Arc::default();
        let always: Arc<Answer> = Arc::new(|_: &Got| StatusCode::OK.into_response());
        let answer = Arc::new(Mutex::new(always));
        let stop = CancellationToken::new();
        let (seen, says, stopped) = (got.clone(), answer.clone(), stop.clone());
        let hook = move |headers: HeaderMap, raw: Bytes| {
            let (seen, says) = (seen.clone(), says.clone());
            async move { receive(&seen, &says, headers, raw) }
        };
        let router = Router::new().fallback(hook);
        tokio::spawn(async move {
            axum::serve(listener, router).with_graceful_shutdown(stopped.cancelled_owned()).await
        });
        Receiver { url, got, answer, stop }
    }

    pub fn answers(&self, answer: impl Fn(&Got) -> StatusCode + Send + Sync + 'static) {
        self.answers_in_full(move |got| answer(got).into_response());
    }

    pub fn answers_in_full(&self, answer: impl Fn(&Got) -> Response + Send + Sync + 'static) {
        *self.answer.lock().expect("unharmed") = Arc::new(answer);
    }

    /// Everything, in the order of its arrival.
    pub fn got(&self) -> Vec<Got> {
        self.got.lock().expect("unharmed").clone()
    }

    /// What it took.
    pub fn taken(&self) -> Vec<Got> {
        self.got().into_iter().filter(|got| got.status == 200).collect()
    }

    pub fn distinct(&self) -> BTreeSet<String> {
        self.taken().into_iter().map(|got| got.id).collect()
    }
}

fn receive(seen: &Mutex<Vec<Got>>, says: &Mutex<Arc<Answer>>, headers: HeaderMap, raw: Bytes) -> Response {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut got = Got {
        id: text("webhook-id").unwrap_or_default(),
        body: serde_json::from_slice(&raw).expect("JSON"),
        headers,
        raw,
        status: 0,
    };
    let says = says.lock().expect("unharmed").clone();
    let answer = says(&got);
    got.status = answer.status().as_u16();
    seen.lock().expect("unharmed").push(got);
    answer
}
