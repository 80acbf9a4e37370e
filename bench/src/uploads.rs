//! Init, confirm and delete over HTTP, on the embedded default and on PostgreSQL, beside the same SQL without our
//! program. The client writes the object itself, as in a direct upload to a store.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::limits;
use crate::server::{Server, client};
use crate::timing::{Timing, rate, say};

const WORKERS: [usize; 3] = [1, 16, 64];
const RUN: Duration = Duration::from_secs(8);

#[derive(Default)]
struct Timings {
    init: Timing,
    confirm: Timing,
    delete: Timing,
    pairs: usize,
}

pub(crate) async fn run() {
    say(
        "Each pair is followed by a delete; all of one tenant and one user, the hardest case for PostgreSQL.",
    );
    say("== embedded default: SQLite and local disk");
    let server = Server::start(None).await;
    for workers in WORKERS {
        measure(&server, workers).await;
    }
    drop(server);
    limits::sqlite().await;

    say("== PostgreSQL and local disk");
    let postgres = harness::postgres::shared();
    let server = Server::start(Some(&postgres.create_database())).await;
    for workers in WORKERS {
        measure(&server, workers).await;
    }
    drop(server);
    limits::postgres(postgres).await;
}

async fn measure(server: &Server, workers: usize) {
    let http = client();
    let (until, cpu) = (Instant::now() + RUN, server.cpu_seconds());
    let started = Instant::now();
    let tasks: Vec<_> = (0..workers)
        .map(|_| {
            let (http, url, token) = (http.clone(), server.url.clone(), server.token.clone());
            let folder = server.blob_dir().join("uploads/t/u");
            tokio::spawn(async move {
                std::fs::create_dir_all(&folder).expect("the user's folder");
                let mut timings = Timings::default();
                while Instant::now() < until {
                    one(&http, &url, &token, &folder, &mut timings).await;
                }
                timings
            })
        })
        .collect();
    let mut all = Timings::default();
    for task in tasks {
        let timings = task.await.expect("a worker");
        all.init.merge(timings.init);
        all.confirm.merge(timings.confirm);
        all.delete.merge(timings.delete);
        all.pairs += timings.pairs;
    }
    let took = started.elapsed();
    say(format!(
        "{workers:>3} clients: {:>6.0} init+confirm(+delete)/s, {:.2} ms server CPU a pair",
        rate(all.pairs, took),
        (server.cpu_seconds() - cpu) * 1e3 / all.pairs as f64
    ));
    say(all.init.line("init"));
    say(all.confirm.line("confirm"));
    say(all.delete.line("delete"));
}

async fn one(
    http: &reqwest::Client,
    url: &str,
    token: &str,
    folder: &std::path::Path,
    timings: &mut Timings,
) {
    let body = json!({ "fileName": "x", "size": 4 });
    let (grant, took) = call(http, token, Method::POST, format!("{url}/api/v2/files/init"), Some(body)).await;
    timings.init.add(took);
    let id = grant["fileId"].as_str().expect("an id").to_owned();
    // The reaper may remove an empty folder at any time.
    while std::fs::write(folder.join(&id), b"data").is_err() {
        std::fs::create_dir_all(folder).expect("the user's folder");
    }
    let path = format!("{url}/api/v2/files/{id}");
    timings.confirm.add(call(http, token, Method::POST, format!("{path}/confirm"), Some(json!({}))).await.1);
    timings.delete.add(call(http, token, Method::DELETE, path, None).await.1);
    timings.pairs += 1;
}

pub(crate) async fn call(
    http: &reqwest::Client,
    token: &str,
    method: Method,
    url: String,
    body: Option<Value>,
) -> (Value, Duration) {
    let mut request = http.request(method, url).bearer_auth(token);
    if let Some(body) = body {
        request = request.json(&body);
    }
    let started = Instant::now();
    let answer = request.send().await.expect("an answer");
    assert!(answer.status().is_success(), "{}", answer.status());
    let text = answer.text().await.expect("a whole answer");
    (serde_json::from_str(&text).unwrap_or(Value::Null), started.elapsed())
}
