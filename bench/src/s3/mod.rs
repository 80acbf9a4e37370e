//! On S3 (a Ceph gateway in memory): whole uploads beside the calls of a bare client for the same bytes, and a listing
//! of 100,000 objects beside that of the bare client.

pub(crate) mod put;

use std::time::{Duration, Instant};

use aws_sdk_s3::Client;
use aws_sdk_s3::config::{Credentials, Region};
use futures::StreamExt as _;
use harness::radosgw::{self, Radosgw};
use reqwest::Method;
use serde_json::json;
use wharfinger_stores::BlobStore as _;
use wharfinger_stores::s3::{S3Credentials, S3Options, S3Store};

use crate::server::{Server, client};
use crate::timing::{Timing, rate, say};
use crate::uploads::call;

const WORKERS: [usize; 3] = [1, 16, 64];
const RUN: Duration = Duration::from_secs(8);
const OBJECTS: usize = 100_000;
const ROUNDS: usize = 3;

pub(crate) async fn run() {
    let gateway = radosgw::shared();
    let bare = bare_client(gateway);
    say("== init, PUT of 4 bytes by its signed URL, confirm; beside it a bare client: PUT, HEAD");
    let bucket = gateway.create_bucket();
    let server = Server::start_with(None, &environment(gateway, &bucket)).await;
    for workers in WORKERS {
        ours(&server, workers).await;
        bare_uploads(&bare, &gateway.create_bucket(), workers).await;
    }
    drop(server);

    say(format!("== {OBJECTS} objects listed, {ROUNDS} times each in turn"));
    let bucket = gateway.create_bucket();
    fill(&bare, &bucket).await;
    let store = S3Store::connect(&options(gateway, &bucket)).await.expect("connected");
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let count =
            store.list("uploads/", None).filter(|listed| std::future::ready(listed.is_ok())).count().await;
        let ours = started.elapsed();
        let started = Instant::now();
        let mut pages = bare.list_objects_v2().bucket(&bucket).prefix("uploads/").into_paginator().send();
        let mut bare_count = 0;
        while let Some(page) = pages.next().await {
            bare_count += page.expect("a page").contents().len();
        }
        let bare_took = started.elapsed();
        assert_eq!((count, bare_count), (OBJECTS, OBJECTS));
        say(format!(
            "ours {:>7.0}/s, the bare client {:>7.0}/s: {:.2}",
            rate(count, ours),
            rate(count, bare_took),
            bare_took.as_secs_f64() / ours.as_secs_f64()
        ));
    }
}

pub(crate) fn environment(gateway: &Radosgw, bucket: &str) -> Vec<(&'static str, String)> {
    vec![
        ("WHARFINGER_BLOB_URL", format!("s3://{bucket}")),
        ("AWS_ENDPOINT_URL", gateway.endpoint()),
        ("AWS_ACCESS_KEY_ID", gateway.access_key().to_owned()),
        ("AWS_SECRET_ACCESS_KEY", gateway.secret_key().to_owned()),
        ("AWS_REGION", gateway.region().to_owned()),
    ]
}

fn options(gateway: &Radosgw, bucket: &str) -> S3Options {
    S3Options {
        bucket: bucket.to_owned(),
        region: Some(gateway.region().to_owned()),
        endpoint: Some(gateway.endpoint()),
        credentials: Some(S3Credentials {
            access_key: gateway.access_key().to_owned(),
            secret_key: gateway.secret_key().to_owned(),
            session_token: None,
        }),
        ..S3Options::default()
    }
}

pub(crate) fn bare_client(gateway: &Radosgw) -> Client {
    let keys = Credentials::new(gateway.access_key(), gateway.secret_key(), None, None, "bench");
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(aws_config::BehaviorVersion::latest())
        .region(Region::new(gateway.region().to_owned()))
        .endpoint_url(gateway.endpoint())
        .credentials_provider(keys)
        .http_client(wharfinger_stores::s3::http_client())
        .force_path_style(true)
        .build();
    Client::from_conf(config)
}

pub(crate) async fn ours(server: &Server, workers: usize) {
    let http = client();
    let (until, cpu, started) = (Instant::now() + RUN, server.cpu_seconds(), Instant::now());
    let tasks: Vec<_> = (0..workers)
        .map(|_| {
            let (http, url, token) = (http.clone(), server.url.clone(), server.token.clone());
            tokio::spawn(async move {
                let mut timings = [Timing::default(), Timing::default(), Timing::default()];
                let mut count = 0;
                while Instant::now() < until {
                    let body = json!({ "fileName": "x", "size": 4 });
                    let init = format!("{url}/api/v2/files/init");
                    let (grant, took) = call(&http, &token, Method::POST, init, Some(body)).await;
                    timings[0].add(took);
                    let put_started = Instant::now();
                    let mut put = http.put(grant["uploadUrl"].as_str().expect("a URL")).body("data");
                    for (name, value) in grant["headers"].as_object().into_iter().flatten() {
                        put = put.header(name, value.as_str().expect("text"));
                    }
                    assert!(put.send().await.expect("an answer").status().is_success());
                    timings[1].add(put_started.elapsed());
                    let id = grant["fileId"].as_str().expect("an id");
                    let confirm = format!("{url}/api/v2/files/{id}/confirm");
                    timings[2].add(call(&http, &token, Method::POST, confirm, Some(json!({}))).await.1);
                    count += 1;
                }
                (timings, count)
            })
        })
        .collect();
    let mut all = [Timing::default(), Timing::default(), Timing::default()];
    let mut count = 0;
    for task in tasks {
        let (timings, done) = task.await.expect("a worker");
        for (all, one) in all.iter_mut().zip(timings) {
            all.merge(one);
        }
        count += done;
    }
    let took = started.elapsed();
    say(format!(
        "{workers:>3} clients: {:>6.0} uploads/s, {:.2} ms server CPU each",
        rate(count, took),
        (server.cpu_seconds() - cpu) * 1e3 / count as f64
    ));
    for (timing, name) in all.into_iter().zip(["init", "PUT", "confirm"]) {
        say(timing.line(name));
    }
}

async fn bare_uploads(bare: &Client, bucket: &str, workers: usize) {
    let (until, started) = (Instant::now() + RUN, Instant::now());
    let tasks: Vec<_> = (0..workers)
        .map(|worker| {
            let (bare, bucket) = (bare.clone(), bucket.to_owned());
            tokio::spawn(async move {
                let mut count = 0;
                while Instant::now() < until {
                    let key = format!("uploads/t/u/{worker}-{count}");
                    let body = aws_sdk_s3::primitives::ByteStream::from_static(b"data");
                    bare.put_object().bucket(&bucket).key(&key).body(body).send().await.expect("put");
                    bare.head_object().bucket(&bucket).key(&key).send().await.expect("head");
                    count += 1;
                }
                count
            })
        })
        .collect();
    let mut count = 0;
    for task in tasks {
        count += task.await.expect("a worker");
    }
    say(format!("    bare client: {:>6.0} PUT+HEAD/s", rate(count, started.elapsed())));
}

async fn fill(bare: &Client, bucket: &str) {
    let put = |n: usize| {
        let key = format!("uploads/t/u/{n:08}");
        let put = bare.put_object().bucket(bucket).key(key);
        async move { put.send().await.expect("put") }
    };
    futures::stream::iter(0..OBJECTS)
        .map(put)
        .buffer_unordered(64)
        .for_each(|_| std::future::ready(()))
        .await;
}
