//! Direct uploads to S3 and Azure: what the store enforces, what confirm verifies, and which catalog owns the store. Large
//! files in parts, also on local disk.

mod marker;
mod parts;
mod whole;

use serde_json::{Value, json};

use crate::test_app::{Answer, Database, TestApp, TestEnv};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    S3,
    Azure,
    Disk,
}

/// The database and the store of a test.
#[derive(Clone, Copy, Debug)]
struct Setup {
    database: Database,
    store: Store,
}

impl Setup {
    fn env(self, settings: &[(&'static str, &str)]) -> TestEnv {
        match self.store {
            Store::S3 => TestEnv::on_s3(self.database, settings),
            Store::Azure => TestEnv::on_azure(self.database, settings),
            Store::Disk => TestEnv::with(self.database, settings),
        }
    }
}

/// Makes each of these functions a test on S3 with both databases, and on Azure.
macro_rules! on_each_store {
    ($($name:ident),* $(,)?) => {
        on_each_store!(@setup s3_sqlite Sqlite S3 $($name)*);
        on_each_store!(@setup s3_postgres Postgres S3 $($name)*);
        on_each_store!(@setup azure Sqlite Azure $($name)*);
    };
    (@setup $setup:ident $database:ident $store:ident $($name:ident)*) => {
        mod $setup {
            use super::super::{Setup, Store};
            use crate::test_app::Database;
            const SETUP: Setup = Setup { database: Database::$database, store: Store::$store };
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(SETUP).await;
            })*
        }
    };
}
use on_each_store;

/// Also on local disk.
macro_rules! on_each_store_and_disk {
    ($($name:ident),* $(,)?) => {
        on_each_store!($($name),*);
        on_each_store!(@setup disk Sqlite Disk $($name)*);
    };
}
use on_each_store_and_disk;

#[track_caller]
fn accepted(answer: &Answer) {
    assert!(answer.status.is_success(), "{} {}", answer.status, answer.body);
}

#[track_caller]
fn refused(answer: &Answer) {
    assert!(answer.status.is_client_error(), "{} {}", answer.status, answer.body);
}

/// Longer than the URL and the grace period of a small file.
const LONG_MS: i64 = 2 * 3_600_000;

fn id_of(grant: &Value) -> String {
    grant["fileId"].as_str().expect("an id").to_owned()
}

/// The bytes behind a file's download, with the answer's headers.
async fn downloaded(server: &TestApp, id: &str) -> (Vec<u8>, reqwest::header::HeaderMap) {
    let answer = server.me().get(&format!("/api/v2/files/{id}/download")).await;
    assert_eq!(answer.status, 302, "{}", answer.body);
    let url = answer.headers["location"].to_str().expect("a URL").to_owned();
    let stored = server.http.get(url).send().await.expect("an answer");
    assert_eq!(stored.status(), 200);
    let headers = stored.headers().clone();
    (stored.bytes().await.expect("all bytes").to_vec(), headers)
}

async fn init_file(server: &TestApp, body: Value) -> Value {
    server.me().post("/api/v2/files/init", body).await.expect(201)
}

fn init_body(size: usize) -> Value {
    json!({ "fileName": "cargo.bin", "size": size, "contentType": "application/x-cargo" })
}

/// Bytes without repeated parts.
fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|n| ((n as u32).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
