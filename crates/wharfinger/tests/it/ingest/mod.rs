//! Events: the program with the role `ingest`, and the batches that arrive in its store.

mod accept;
mod archive;
mod batches;
mod damage;
mod disk;
mod kill;
mod outage;
mod power;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flate2::read::MultiGzDecoder;
use futures::TryStreamExt as _;
use harness::proxy::Proxy;
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::{EventsFolder, ObjectKey};
use wharfinger_stores::BlobStore;
use wharfinger_stores::s3::{S3Credentials, S3Options, S3Store};

use crate::cli::program::{Place, Served};

/// The limit of every wait.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A server that accepts events. It can be stopped and started again in the same folder.
pub struct EventServer {
    pub place: Place,
    environment: Vec<(String, String)>,
    pub served: Option<Served>,
    http: reqwest::Client,
    store: EventStore,
}

/// The store of the events. The tests read it directly.
enum EventStore {
    Disk(PathBuf),
    Bucket(Arc<dyn BlobStore>),
}

impl EventServer {
    /// Stores on the local disk, and closes batches after 50 ms.
    pub fn new(environment: &[(&str, &str)]) -> EventServer {
        let place = Place::new();
        let store = EventStore::Disk(place.data().join("blobs"));
        EventServer::at(place, store, environment)
    }

    fn at(place: Place, store: EventStore, environment: &[(&str, &str)]) -> EventServer {
        let mut all = vec![("INGEST_BATCH_AGE_MS".to_owned(), "50".to_owned())];
        all.extend(environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        EventServer { place, environment: all, served: None, http: reqwest::Client::new(), store }
    }

    /// Stores in a new bucket, behind a proxy that can be cut.
    pub async fn in_bucket(environment: &[(&str, &str)]) -> (EventServer, Proxy) {
        let ceph = harness::radosgw::shared();
        let bucket = ceph.create_bucket();
        let proxy =
            Proxy::to(ceph.endpoint().trim_start_matches("http://").trim_end_matches('/')).expect("a proxy");
        let options = S3Options {
            bucket: bucket.clone(),
            prefix: "events/".into(),
            region: Some(ceph.region().into()),
            endpoint: Some(ceph.endpoint()),
            public_endpoint: None,
            virtual_host: None,
            credentials: Some(S3Credentials {
                access_key: ceph.access_key().into(),
                secret_key: ceph.secret_key().into(),
                session_token: None,
            }),
        };
        let place = Place::new();
        let store = Arc::new(S3Store::connect(&options).await.expect("a store"));
        let mut server = EventServer::at(place, EventStore::Bucket(store), environment);
        for (name, value) in [
            ("WHARFINGER_BLOB_URL", format!("s3://{bucket}/events")),
            ("AWS_ENDPOINT_URL", format!("http://{}", proxy.addr())),
            ("AWS_ACCESS_KEY_ID", ceph.access_key().into()),
            ("AWS_SECRET_ACCESS_KEY", ceph.secret_key().into()),
            ("AWS_REGION", ceph.region().into()),
        ] {
            server.environment.push((name.into(), value));
        }
        (server, proxy)
    }

    pub fn set(&mut self, name: &str, value: impl ToString) {
        self.environment.retain(|(set, _)| set != name);
        self.environment.push((name.into(), value.to_string()));
    }

    pub fn start(&mut self) {
        self.start_as("ingest");
    }

    pub fn start_as(&mut self, roles: &str) {
        let environment: Vec<(&str, &str)> =
            self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.served = Some(self.place.serve_as(roles, &environment));
    }

    /// Kills the process without a graceful stop.
    pub fn kill(&mut self) {
        self.served = None;
    }

    /// Stops all threads of the process with SIGSTOP, and waits until they have stopped.
    pub fn freeze(&self) {
        let served = self.served.as_ref().expect("a server");
        served.signal("STOP");
        let tasks = PathBuf::from(format!("/proc/{}/task", served.pid()));
        let stopped = |task: PathBuf| {
            let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        };
        let all_stopped = || {
            let tasks = std::fs::read_dir(&tasks).expect("its threads");
            tasks.flatten().all(|task| stopped(task.path()))
        };
        while !all_stopped() {
            std::thread::yield_now();
        }
    }

    pub fn terminate(&mut self) {
        let ended = self.served.take().expect("a server").terminate();
        assert!(ended.success(), "{}", self.place.log());
    }

    pub fn url(&self) -> &str {
        &self.served.as_ref().expect("a server").url
    }

    pub fn token(&self) -> String {
        self.place.token("acme", "anna", "user")
    }

    pub fn sender(&self) -> Sender {
        Sender { http: self.http.clone(), url: self.url().to_owned(), token: self.token() }
    }

    pub fn sender_of(&self, tenant: &str) -> Sender {
        let token = self.place.token(tenant, "anna", "user");
        Sender { http: self.http.clone(), url: self.url().to_owned(), token }
    }

    pub async fn metric(&self, name: &str) -> f64 {
        let answer = self.http.get(format!("{}/metrics", self.url())).send().await.expect("metrics");
        let text = answer.text().await.expect("text");
        let of_name = |line: &&str| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ') || rest.starts_with('{'))
        };
        let values =
            text.lines().filter(of_name).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    }

    /// Waits until the log contains these words.
    pub async fn until_logged(&self, words: &str) {
        let started = Instant::now();
        while !self.place.log().contains(words) {
            assert!(started.elapsed() < TIMEOUT, "no {words:?} in {}", self.place.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a metric meets a condition.
    pub async fn until(&self, name: &str, condition: impl Fn(f64) -> bool) {
        let started = Instant::now();
        loop {
            let value = self.metric(name).await;
            if condition(value) {
                return;
            }
            assert!(started.elapsed() < TIMEOUT, "timeout: {name} is {value}; log: {}", self.place.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// All objects under `RAW/` or `RAW_DLQ/`, by their names below it.
    pub async fn objects(&self, folder: EventsFolder) -> BTreeMap<String, Vec<u8>> {
        match &self.store {
            EventStore::Disk(root) => below(&root.join(folder.as_str())),
            EventStore::Bucket(store) => {
                let mut objects = BTreeMap::new();
                let listed: Vec<_> =
                    store.list(folder.as_str(), None).try_collect().await.expect("a listing");
                for object in listed {
                    let name = object.key.strip_prefix(folder.as_str()).expect("below it");
                    let key = ObjectKey::events(folder, name).expect("a key");
                    let meta = store.head(&key, None).await.expect("an object");
                    let pin = Pin { etag: meta.etag, version_id: meta.version_id };
                    let chunks = store.get(&key, &pin, 0, None).await.expect("an object");
                    let chunks: Vec<bytes::Bytes> = chunks.try_collect().await.expect("its bytes");
                    objects.insert(name.to_owned(), chunks.concat());
                }
                objects
            }
        }
    }

    /// The lines of each batch in the store.
    pub async fn stored(&self) -> BTreeMap<String, Vec<Value>> {
        let objects = self.objects(EventsFolder::Raw).await;
        objects.into_iter().map(|(name, gz)| (name, lines(&gz))).collect()
    }

    /// The ids of all stored events, sorted.
    pub async fn ids(&self) -> Vec<u64> {
        let stored = self.stored().await;
        let mut ids: Vec<u64> =
            stored.values().flatten().map(|line| line["body"]["id"].as_u64().expect("an id")).collect();
        ids.sort_unstable();
        ids
    }

    /// Waits until this number of events is stored, and returns their ids.
    pub async fn ids_once(&self, count: usize) -> Vec<u64> {
        let started = Instant::now();
        loop {
            let ids = self.ids().await;
            if ids.len() >= count {
                return ids;
            }
            assert!(
                started.elapsed() < TIMEOUT,
                "{} of {count} are stored; log: {}",
                ids.len(),
                self.place.log()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub fn spool(&self) -> PathBuf {
        let set = self.environment.iter().find(|(name, _)| name == "DLQ_DIR");
        set.map_or_else(|| self.place.data().join("dlq"), |(_, folder)| folder.into())
    }
}

/// A client with a token.
#[derive(Clone)]
pub struct Sender {
    http: reqwest::Client,
    pub url: String,
    token: String,
}

impl Sender {
    pub async fn send(&self, body: impl Into<reqwest::Body>, headers: &[(&str, &str)]) -> Response {
        let mut request =
            self.http.post(format!("{}/api/v2/events", self.url)).bearer_auth(&self.token).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.expect("an answer")
    }

    /// Whether the events were accepted. False: the server rejected them or did not answer.
    pub async fn try_ids(&self, ids: std::ops::Range<u64>) -> bool {
        let request = self
            .http
            .post(format!("{}/api/v2/events", self.url))
            .bearer_auth(&self.token)
            .timeout(TIMEOUT)
            .body(of_ids(ids));
        request.send().await.is_ok_and(|answer| answer.status() == StatusCode::ACCEPTED)
    }

    pub async fn ids(&self, ids: std::ops::Range<u64>) {
        let count = ids.end - ids.start;
        let answer = self.send(of_ids(ids), &[]).await;
        let status = answer.status();
        let body: Value = answer.json().await.expect("JSON");
        assert_eq!((status, &body), (StatusCode::ACCEPTED, &json!({ "accepted": count })));
    }
}

pub fn of_ids(ids: std::ops::Range<u64>) -> String {
    ids.map(|id| format!("{{\"id\":{id},\"name\":\"clicked\",\"at\":\"somewhere\"}}\n")).collect()
}

pub fn lines(gz: &[u8]) -> Vec<Value> {
    let mut text = String::new();
    MultiGzDecoder::new(gz).read_to_string(&mut text).expect("valid gzip");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

pub fn gzip(text: &[u8]) -> Vec<u8> {
    wharfinger_events::pack::Packer::default().pack(text)
}

/// The files below a folder, by their relative paths.
pub fn below(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(bytes) = std::fs::read(&path) {
                files.insert(path.strip_prefix(folder).expect("below it").display().to_string(), bytes);
            }
        }
    }
    files
}

/// The batches in a spool.
pub fn spooled(folder: &Path) -> Vec<String> {
    below(folder).into_keys().filter(|name| name.ends_with(".jsonl.gz")).collect()
}

/// A mounted file system. It is unmounted when dropped. Mounting needs root.
pub struct Mount(PathBuf);

impl Mount {
    /// Whether this user may mount. If not, the test is skipped, and a message goes directly to standard error, because
    /// the test runner captures normal output.
    pub fn is_allowed(test: &str) -> bool {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().display().to_string();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "server", &at]).output();
        let is_allowed = mounted.is_ok_and(|ran| ran.status.success());
        match is_allowed {
            true => run("umount", &[&at]),
            false => {
                let message = format!("\nNOT RUN: {test}: it mounts a file system; run it as root\n");
                std::io::stderr().write_all(message.as_bytes()).expect("standard error");
            }
        }
        is_allowed
    }

    pub fn tmpfs(at: &Path, size: &str) -> Mount {
        std::fs::create_dir_all(at).expect("a folder");
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "server", &at.display().to_string()]);
        Mount(at.to_path_buf())
    }

    /// Creates a disk image with ext4.
    pub fn format(image: &Path) {
        let file = std::fs::File::create(image).expect("a file");
        file.set_len(256 << 20).expect("a disk");
        run("mkfs.ext4", &["-q", &image.display().to_string()]);
    }

    pub fn in_file(at: &Path, image: &Path) -> Mount {
        std::fs::create_dir_all(at).expect("a folder");
        run("mount", &["-o", "loop", &image.display().to_string(), &at.display().to_string()]);
        Mount(at.to_path_buf())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A process with open files may need a moment to end. After a failed test the server may still run.
        for is_lazy in [false, false, false, true] {
            let mut command = Command::new("umount");
            command.args(is_lazy.then_some("-l")).arg(&self.0);
            if command.output().is_ok_and(|ran| ran.status.success()) {
                assert!(!is_lazy || std::thread::panicking(), "{} is still in use", self.0.display());
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[track_caller]
pub fn run(program: &str, arguments: &[&str]) {
    let ran = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(ran.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
}
