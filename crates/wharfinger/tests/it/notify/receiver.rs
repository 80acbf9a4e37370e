//! A webhook receiver. The test sets its answers, and it stores the requests.

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
pub struct ReceivedRequest {
    pub id: String,
    pub headers: HeaderMap,
    pub raw: Bytes,
    pub body: Value,
    /// The status of the answer.
    pub status: u16,
}

impl ReceivedRequest {
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

type Answer = dyn Fn(&ReceivedRequest) -> Response + Send + Sync;

pub struct Receiver {
    pub url: String,
    got: Arc<Mutex<Vec<ReceivedRequest>>>,
    answer: Arc<Mutex<Arc<Answer>>>,
    stop: CancellationToken,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Receiver {
    /// Starts a receiver that answers 200.
    pub async fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/hook/hush-hush", listener.local_addr().expect("bound"));
        let got: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
        let always: Arc<Answer> = Arc::new(|_: &ReceivedRequest| StatusCode::OK.into_response());
        let answer = Arc::new(Mutex::new(always));
        let stop = CancellationToken::new();
        let (seen, answers, stopped) = (got.clone(), answer.clone(), stop.clone());
        let hook = move |headers: HeaderMap, raw: Bytes| {
            let (seen, answers) = (seen.clone(), answers.clone());
            async move { receive(&seen, &answers, headers, raw) }
        };
        let router = Router::new().fallback(hook);
        tokio::spawn(async move {
            axum::serve(listener, router).with_graceful_shutdown(stopped.cancelled_owned()).await
        });
        Receiver { url, got, answer, stop }
    }

    pub fn answers(&self, answer: impl Fn(&ReceivedRequest) -> StatusCode + Send + Sync + 'static) {
        self.answers_in_full(move |got| answer(got).into_response());
    }

    pub fn answers_in_full(&self, answer: impl Fn(&ReceivedRequest) -> Response + Send + Sync + 'static) {
        *self.answer.lock().expect("not poisoned") = Arc::new(answer);
    }

    /// All requests in the order of their arrival.
    pub fn got(&self) -> Vec<ReceivedRequest> {
        self.got.lock().expect("not poisoned").clone()
    }

    /// The requests that were answered with 200.
    pub fn taken(&self) -> Vec<ReceivedRequest> {
        self.got().into_iter().filter(|got| got.status == 200).collect()
    }

    pub fn distinct(&self) -> BTreeSet<String> {
        self.taken().into_iter().map(|got| got.id).collect()
    }
}

fn receive(
    seen: &Mutex<Vec<ReceivedRequest>>,
    answers: &Mutex<Arc<Answer>>,
    headers: HeaderMap,
    raw: Bytes,
) -> Response {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut got = ReceivedRequest {
        id: text("webhook-id").unwrap_or_default(),
        body: serde_json::from_slice(&raw).expect("JSON"),
        headers,
        raw,
        status: 0,
    };
    let answer = answers.lock().expect("not poisoned").clone();
    let answer = answer(&got);
    got.status = answer.status().as_u16();
    seen.lock().expect("not poisoned").push(got);
    answer
}
