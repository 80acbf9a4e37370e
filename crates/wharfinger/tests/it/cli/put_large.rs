//! `wharfinger put` of a large file to S3 and to local disk: parallel parts, cut connections, a client that is killed and
//! runs again, and a delete during the upload. `WHARFINGER_TEST_LARGE_BYTES` sets the size.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use harness::proxy::Proxy;
use harness::radosgw::{self, Options, Radosgw};
use sha2::{Digest as _, Sha256};
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::key::ObjectKey;

use super::program::{Place, Ran};
use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv};

const DEFAULT_BYTES: u64 = 150 << 20;
/// Five parts.
const DEFAULT_BYTES_ON_DISK: u64 = 64 << 20;
const BLOCK_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    S3,
    Disk,
}

fn large_bytes(store: Store) -> u64 {
    let default = if store == Store::S3 { DEFAULT_BYTES } else { DEFAULT_BYTES_ON_DISK };
    let bytes = std::env::var("WHARFINGER_TEST_LARGE_BYTES").ok();
    bytes.map_or(default, |text| text.parse().expect("a number of bytes"))
}

/// Writes different blocks, and a last block that is not full. Returns the file and its SHA-256.
fn make_file(place: &Place, size: u64) -> (PathBuf, String) {
    let path = place.path().join("large.bin");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).expect("a file"));
    let mut hasher = Sha256::new();
    let mut block: Vec<u8> =
        (0..BLOCK_BYTES).map(|n| ((n as u32).wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut left = size;
    let mut number = 0_u64;
    while left > 0 {
        block[..8].copy_from_slice(&number.to_le_bytes());
        let bytes = &block[..BLOCK_BYTES.min(usize::try_from(left).unwrap_or(usize::MAX))];
        file.write_all(bytes).expect("written");
        hasher.update(bytes);
        left -= bytes.len() as u64;
        number += 1;
    }
    file.flush().expect("written");
    (path, to_hex(&hasher.finalize()))
}

/// Large files do not fit into memory, so their gateway uses the disk.
fn gateway() -> &'static Radosgw {
    static ON_DISK: OnceLock<Radosgw> = OnceLock::new();
    if large_bytes(Store::S3) <= 1 << 30 {
        return radosgw::shared();
    }
    ON_DISK.get_or_init(|| Radosgw::start_with(Options { on_disk: true }).expect("a gateway"))
}

struct Fixture {
    place: Place,
    env: TestEnv,
    server: TestApp,
    proxy: Proxy,
    file: PathBuf,
    sum: String,
}

impl Fixture {
    async fn new(store: Store) -> Fixture {
        match store {
            Store::S3 => Fixture::on_s3(gateway()).await,
            Store::Disk => Fixture::on_disk().await,
        }
    }

    async fn on_s3(gateway: &Radosgw) -> Fixture {
        let proxy = Proxy::to(("127.0.0.1", gateway.port())).expect("a proxy");
        let public = format!("http://{}", proxy.addr());
        let settings = [
            ("WHARFINGER_BLOB_PUBLIC_ENDPOINT", public.as_str()),
            ("AWS_ACCESS_KEY_ID", gateway.access_key()),
            ("AWS_SECRET_ACCESS_KEY", gateway.secret_key()),
        ];
        let bucket = gateway.create_bucket();
        let env = TestEnv::in_bucket(Database::Sqlite, &bucket, &gateway.endpoint(), &settings);
        let server = env.start().await;
        Fixture::with(env, server, proxy, large_bytes(Store::S3)).await
    }

    /// Only the signed URLs lead through the proxy.
    async fn on_disk() -> Fixture {
        let proxy = Proxy::to(("127.0.0.1", 1)).expect("a proxy");
        let public = format!("http://{}", proxy.addr());
        let settings = [("WHARFINGER_PUBLIC_URL", public.as_str()), ("MULTIPART_THRESHOLD_BYTES", "1MiB")];
        let env = TestEnv::with(Database::Sqlite, &settings);
        let server = env.start().await;
        proxy.point_at(server.url.trim_start_matches("http://")).expect("the server");
        Fixture::with(env, server, proxy, large_bytes(Store::Disk)).await
    }

    async fn with(env: TestEnv, server: TestApp, proxy: Proxy, bytes: u64) -> Fixture {
        server
            .operator()
            .put("/api/v2/tenants/t/quota", serde_json::json!({ "limit": 1_u64 << 40 }))
            .await
            .expect(200);
        let place = Place::new();
        let (file, sum) = make_file(&place, bytes + 5);
        Fixture { place, env, server, proxy, file, sum }
    }

    fn put(&self) -> Child {
        let token = self.server.me().token;
        let mut command = self.place.command(&["put".as_ref(), self.file.as_os_str(), "--json".as_ref()]);
        let command = command.env("WHARFINGER_URL", &self.server.url).env("WHARFINGER_TOKEN", token);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    }

    async fn finish(&self, child: Child) -> Ran {
        let ended = tokio::task::spawn_blocking(move || child.wait_with_output().expect("the program ends"));
        Ran::from(ended.await.expect("waited for"))
    }

    /// How many parts of the one unfinished upload the store has.
    async fn parts(&self) -> usize {
        let parts = self.server.app.core.blobs.multipart().expect("the store supports parts");
        let Some(upload) = parts.list_unfinished("").next().await else { return 0 };
        let upload = upload.expect("listed");
        let key = ObjectKey::parse(&upload.key).expect("a key");
        parts.list_parts(&key, &upload.upload_id).await.map_or(0, |parts| parts.len())
    }

    /// Starts an upload and returns when the store has `count` parts. Connections are cut in the middle of their third
    /// part. If the upload ends before this is seen, the next attempt starts.
    async fn with_parts(store: Store, count: usize) -> (Fixture, Child) {
        for _ in 0..10 {
            let fixture = Fixture::new(store).await;
            fixture.proxy.cut_after(40 << 20);
            let mut child = fixture.put();
            let started = Instant::now();
            while child.try_wait().expect("a child").is_none() {
                if fixture.parts().await >= count {
                    return (fixture, child);
                }
                assert!(started.elapsed() < Duration::from_secs(300), "the upload makes no progress");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            fixture.finish(child).await.expect(0);
        }
        panic!("no upload was seen in progress")
    }

    async fn sum_of_download(&self, id: &str) -> String {
        let answer = self.server.me().get(&format!("/api/v2/files/{id}/download")).await;
        let url = answer.headers["location"].to_str().expect("a URL").to_owned();
        let mut bytes = self.server.http.get(url).send().await.expect("an answer").bytes_stream();
        let mut hasher = Sha256::new();
        while let Some(chunk) = bytes.try_next().await.expect("all bytes") {
            hasher.update(&chunk);
        }
        to_hex(&hasher.finalize())
    }
}

fn has_checksum(path: &Path, sum: &str) -> bool {
    let mut file = std::fs::File::open(path).expect("the file");
    let mut hasher = Sha256::new();
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        match file.read(&mut block).expect("read") {
            0 => return to_hex(&hasher.finalize()) == sum,
            count => hasher.update(&block[..count]),
        }
    }
}

async fn a_cut_and_killed_upload_resumes_and_is_complete(store: Store) {
    let count = if store == Store::S3 { 4 } else { 2 };
    let (fixture, mut first) = Fixture::with_parts(store, count).await;
    first.kill().expect("killed");
    first.wait().expect("it ends");
    assert!(fixture.parts().await >= count);
    let child = fixture.put();
    let ran = fixture.finish(child).await.expect(0).json();
    assert_eq!(ran[0]["outcome"], "uploaded", "{ran:?}");
    let id = ran[0]["fileId"].as_str().expect("an id").to_owned();
    let file = fixture.server.me().get(&format!("/api/v2/files/{id}")).await.expect(200);
    assert_eq!(
        (file["status"].as_str(), file["checksumSha256"].as_str()),
        (Some("ready"), Some(fixture.sum.as_str()))
    );
    fixture.proxy.cut_after(None);
    assert!(has_checksum(&fixture.file, &fixture.sum));
    assert_eq!(fixture.sum_of_download(&id).await, fixture.sum);
    oracle::all_is_healed(&fixture.env, &fixture.server).await;
}

async fn a_deleted_upload_leaves_no_parts(store: Store) {
    let (fixture, child) = Fixture::with_parts(store, 2).await;
    let files = fixture.server.me().get("/api/v2/files").await.expect(200);
    let id = files["files"][0]["fileId"].as_str().expect("an id").to_owned();
    fixture.server.me().delete(&format!("/api/v2/files/{id}")).await.expect(204);
    fixture.server.settle().await;
    let ran = fixture.finish(child).await.expect(1).json();
    assert_eq!(ran[0]["outcome"], "failed", "{ran:?}");
    let error = ran[0]["error"].as_str().expect("a text");
    // Local disk refuses the parts of a deleted file. Otherwise the call for fresh URLs fails.
    let is_refused = store == Store::Disk && error.contains("This upload has ended");
    assert!(is_refused || error.contains("No such file"), "{ran:?}");
    // A later cleanup removes parts that arrived during the delete.
    fixture.env.advance(24 * 3_600_000);
    fixture.server.settle().await;
    assert_eq!(fixture.parts().await, 0);
    oracle::all_is_healed(&fixture.env, &fixture.server).await;
}

mod s3 {
    use super::Store;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_cut_and_killed_upload_resumes_and_is_complete() {
        super::a_cut_and_killed_upload_resumes_and_is_complete(Store::S3).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_deleted_upload_leaves_no_parts() {
        super::a_deleted_upload_leaves_no_parts(Store::S3).await;
    }
}

mod disk {
    use super::Store;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_cut_and_killed_upload_resumes_and_is_complete() {
        super::a_cut_and_killed_upload_resumes_and_is_complete(Store::Disk).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_deleted_upload_leaves_no_parts() {
        super::a_deleted_upload_leaves_no_parts(Store::Disk).await;
    }
}
