//! `wharfinger reconcile` on real object stores: unusual characters in keys, prefixes without a slash, versions, pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use harness::proxy::Proxy;
use harness::{azurite, radosgw};
use serde_json::Value;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::azure::{AzureCredentials, AzureOptions, AzureStore};
use wharfinger_stores::s3::{S3Credentials, S3Options, S3Store};
use wharfinger_stores::{BlobStore, WriteMode};

use super::{refused, report, samples};
use crate::cli::program::{Place, Ran};

/// The time of an object in a store cannot be set, so the tests use a short grace and wait.
pub(super) const GRACE: [&str; 2] = ["--grace", "1s"];
const OLD_ENOUGH: Duration = Duration::from_millis(2_500);
/// Longer than the retries of the S3 client.
const OUTAGE: Duration = Duration::from_secs(5);

pub(super) struct Bucket {
    pub(super) place: Place,
    pub(super) url: String,
    pub(super) name: String,
    pub(super) store: Arc<dyn BlobStore>,
    environment: Vec<(&'static str, String)>,
}

impl Bucket {
    pub(super) async fn s3() -> Bucket {
        let place = Place::new();
        let gateway = radosgw::shared();
        let name = gateway.create_bucket();
        let (access_key, secret_key) = (gateway.access_key().to_owned(), gateway.secret_key().to_owned());
        let options = S3Options {
            bucket: name.clone(),
            region: Some("us-east-1".into()),
            endpoint: Some(gateway.endpoint()),
            credentials: Some(S3Credentials {
                access_key: access_key.clone(),
                secret_key: secret_key.clone(),
                session_token: None,
            }),
            ..S3Options::default()
        };
        Bucket {
            url: format!("s3://{name}"),
            store: Arc::new(S3Store::connect(&options).await.expect("a store")),
            name,
            place,
            environment: vec![
                ("AWS_ENDPOINT_URL", gateway.endpoint()),
                ("AWS_ACCESS_KEY_ID", access_key),
                ("AWS_SECRET_ACCESS_KEY", secret_key),
                ("AWS_REGION", "us-east-1".into()),
            ],
        }
    }

    pub(super) async fn azure() -> Bucket {
        let place = Place::new();
        let server = azurite::shared();
        let name = server.create_container();
        let store = AzureStore::connect(&AzureOptions {
            account: server.account().into(),
            container: name.clone(),
            endpoint: Some(server.endpoint()),
            credentials: Some(AzureCredentials::AccountKey(server.key().into())),
            ..AzureOptions::default()
        });
        Bucket {
            url: format!("az://{name}"),
            store: Arc::new(store.expect("a store")),
            name,
            place,
            environment: vec![
                ("AZURE_STORAGE_ACCOUNT_NAME", server.account().into()),
                ("AZURE_STORAGE_ACCOUNT_KEY", server.key().into()),
                ("AZURE_STORAGE_ENDPOINT", server.endpoint()),
            ],
        }
    }

    pub(super) async fn put<K: Into<String>>(&self, keys: impl IntoIterator<Item = K>) {
        let puts = keys.into_iter().map(|key| {
            let key: String = key.into();
            let store = self.store.clone();
            async move {
                let name = ObjectKey::from_foreign_bucket(&key).expect("a key");
                store
                    .put(&name, Bytes::from(key.clone().into_bytes()), WriteMode::Overwrite)
                    .await
                    .expect(&key);
            }
        });
        futures::stream::iter(puts).buffer_unordered(16).collect::<Vec<()>>().await;
    }

    /// Waits until all objects are older than the grace.
    pub(super) async fn age(&self) {
        tokio::time::sleep(OLD_ENOUGH).await;
    }

    pub(super) async fn keys(&self) -> Vec<String> {
        self.store.list("", None).map(|object| object.expect("listed").key).collect().await
    }

    pub(super) fn run_at(&self, url: &str, more: &[&str]) -> Ran {
        let environment: Vec<(&str, &str)> =
            self.environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let arguments = [&["reconcile", "--bucket", url], &GRACE[..], more].concat();
        self.place.run_with(&environment, &arguments)
    }

    pub(super) fn run(&self, more: &[&str]) -> Ran {
        self.run_at(&self.url, more)
    }

    /// Compares with a list, separated by NUL, and returns the report.
    pub(super) fn found(&self, keys: &[&str], more: &[&str]) -> Value {
        self.place.write("keys", keys.iter().map(|key| format!("{key}\0")).collect::<String>());
        report(&self.run(&[&["--keys", "keys", "--null", "--json"], more].concat()).expect(0))
    }
}

/// Names that are valid in buckets and cause problems in URLs, XML, CSV, shells and file systems.
const ODD_KEYS: [&str; 19] = [
    " leading and trailing ",
    "#?&=;",
    "%2F%41%",
    "+plus+",
    "/slash",
    "a//b",
    "a\tb",
    "backslash\\",
    "emoji 🦀",
    "line\nbreak",
    "nfc-\u{e9}",
    "nfd-e\u{301}",
    "quotes'\"`<>&amp;",
    "semi:colon*",
    "tilde~",
    "trailing.",
    "ünï/cödé",
    "\u{10ffff}last",
    "\u{feff}mark",
];

#[tokio::test(flavor = "multi_thread")]
async fn unusual_names_are_compared_and_deleted_exactly() {
    let bucket = Bucket::s3().await;
    bucket.put(ODD_KEYS.map(|key| format!("orphans/{key}"))).await;
    bucket.put(ODD_KEYS).await;
    bucket.age().await;
    let found = bucket.found(&ODD_KEYS, &["--delete", "--yes", "--limit-percent", "50"]);
    assert_eq!((&found["listed"]["objects"], &found["kept"]["objects"]), (&38.into(), &19.into()));
    assert_eq!((&found["orphans"]["objects"], &found["missing"]["keys"]), (&19.into(), &0.into()), "{found}");
    assert_eq!(
        (&found["deletion"]["objects"], &found["deletion"]["failed"]),
        (&19.into(), &0.into()),
        "{found}"
    );
    let mut left = ODD_KEYS.map(str::to_owned);
    left.sort_unstable();
    assert_eq!(bucket.keys().await, left);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_is_a_folder_with_or_without_a_slash() {
    let bucket = Bucket::s3().await;
    bucket.put(["images/kept", "images/orphan", "images2/other", "images", "imagesque"]).await;
    bucket.age().await;
    bucket.place.write("keys", "images/kept\nimages2/absent\nelsewhere\n");
    for prefix in ["images", "images/"] {
        let ran = bucket.run_at(&format!("{}/{prefix}", bucket.url), &["--keys", "keys", "--json"]);
        let found = report(&ran.expect(0));
        assert_eq!(
            (&found["listed"]["objects"], &found["keys"]["outside"]),
            (&2.into(), &2.into()),
            "{found}"
        );
        assert_eq!(samples(&found["orphans"]), ["images/orphan"]);
        assert_eq!(found["missing"]["keys"], 0);
    }
    // If another spelling of a missing key is below the prefix, its object is not an orphan.
    for other_spelling in ["/images/orphan", "Images/orphan", &format!("{}/images/orphan", bucket.url)] {
        bucket.place.write("keys", format!("images/kept\n{other_spelling}\n"));
        let delete = [
            "--keys",
            "keys",
            "--delete",
            "--yes",
            "--limit-percent",
            "100",
            "--as-of",
            "2100-01-01T00:00:00Z",
        ];
        refused(
            bucket.run_at(&format!("{}/images", bucket.url), &delete),
            &["differ only in spelling", other_spelling],
        );
    }
    let relative = ["--keys", "keys", "--key-prefix", "images/", "--json"];
    bucket.place.write("keys", "kept\n");
    let found = report(&bucket.run_at(&format!("{}/images", bucket.url), &relative).expect(0));
    assert_eq!(samples(&found["orphans"]), ["images/orphan"]);
    refused(
        bucket.run_at(&format!("{}/images", bucket.url), &["--keys", "keys"]),
        &["none of the 1 keys", "--key-prefix images/"],
    );
    refused(bucket.run_at("s3://no-such-bucket-anywhere", &["--keys", "keys"]), &["no-such-bucket-anywhere"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_marker_above_the_prefix_is_found() {
    let bucket = Bucket::s3().await;
    bucket.put(["app/.wharfinger/store", "app/uploads/orphan"]).await;
    bucket.put((0..19).map(|n| format!("app/uploads/kept-{n}"))).await;
    bucket.age().await;
    bucket.place.write("keys", (0..19).map(|n| format!("app/uploads/kept-{n}\n")).collect::<String>());
    let ran = bucket.run_at(&format!("{}/app/uploads", bucket.url), &["--keys", "keys", "--delete", "--yes"]);
    refused(ran, &["app/.wharfinger/store", "nothing was deleted"]);
    assert!(bucket.keys().await.contains(&"app/uploads/orphan".to_owned()));
}

/// The bucket has several pages, and the list is in another order.
#[tokio::test(flavor = "multi_thread")]
async fn many_pages_on_s3_are_compared() {
    let bucket = Bucket::s3().await;
    bucket.put((0..2_345).map(|n| format!("p/{n:05}"))).await;
    bucket.age().await;
    let mut keys: Vec<String> = (0..2_345).filter(|n| n % 100 != 7).map(|n| format!("p/{n:05}")).collect();
    keys.reverse();
    keys.extend((0..30).map(|n| format!("q/{n}")));
    let found = bucket.found(&keys.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    assert_eq!((&found["listed"]["objects"], &found["orphans"]["objects"]), (&2_345.into(), &24.into()));
    assert_eq!((&found["missing"]["keys"], &found["missing"]["rechecked"]), (&30.into(), &30.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_continues_after_a_store_outage() {
    let mut bucket = Bucket::s3().await;
    bucket.put((0..5_000).map(|n| format!("p/{n:05}"))).await;
    bucket.age().await;
    bucket
        .place
        .write("keys", (0..5_000).filter(|n| n % 50 != 1).map(|n| format!("p/{n:05}\n")).collect::<String>());
    let gateway = radosgw::shared().endpoint();
    let proxy = Arc::new(Proxy::to(gateway.trim_start_matches("http://")).expect("a proxy"));
    bucket.environment[0].1 = format!("http://{}", proxy.addr());
    let checkpoint = bucket.place.path().join("state/checkpoint.json");
    // The listing may finish before the thread cuts the connection. Then the test tries again.
    for _ in 0..20 {
        let is_finished = Arc::new(AtomicBool::new(false));
        let outage = {
            let (proxy, checkpoint, is_finished) = (proxy.clone(), checkpoint.clone(), is_finished.clone());
            std::thread::spawn(move || {
                let has_started =
                    || std::fs::read_to_string(&checkpoint).is_ok_and(|text| text.contains("\"after\":\"p/"));
                while !has_started() {
                    if is_finished.load(Ordering::SeqCst) {
                        return false;
                    }
                    std::thread::yield_now();
                }
                proxy.cut();
                let was_cut = !is_finished.load(Ordering::SeqCst);
                std::thread::sleep(OUTAGE);
                proxy.repair().expect("repaired");
                was_cut
            })
        };
        let more = ["--keys", "keys", "--json", "--state", "state", "--objects-per-checkpoint", "1000"];
        let ran = bucket.run(&more);
        is_finished.store(true, Ordering::SeqCst);
        let found = report(&ran.expect(0));
        assert_eq!((&found["listed"]["objects"], &found["orphans"]["objects"]), (&5_000.into(), &100.into()));
        if outage.join().expect("no panic") {
            return;
        }
    }
    panic!("the listing always finished before the cut");
}

#[tokio::test(flavor = "multi_thread")]
async fn older_versions_are_kept_without_all_versions() {
    let bucket = Bucket::s3().await;
    let body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    let answer = radosgw::shared().request("PUT", &format!("/{}?versioning=", bucket.name), body);
    assert_eq!(answer.expect("an answer").status, 200);
    let delete = ["--delete", "--yes", "--limit-percent", "50"];
    for (more, kept, versions_left) in [(&[][..], true, 4), (&["--all-versions"], false, 0)] {
        for key in ["orphan", "orphan", "orphan", "kept"] {
            bucket.put([key]).await;
        }
        bucket.age().await;
        let found = bucket.found(&["kept"], &[&delete[..], more].concat());
        let deletion = &found["deletion"];
        assert_eq!(
            (&deletion["objects"], &deletion["olderVersionsKept"]),
            (&1.into(), &kept.into()),
            "{found}"
        );
        assert_eq!(bucket.keys().await, ["kept"]);
        let path = format!("/{}?versions=", bucket.name);
        let versions = radosgw::shared().request("GET", &path, b"").expect("an answer").body;
        let versions = String::from_utf8(versions).expect("XML");
        assert_eq!(
            versions.matches("<Key>orphan<").count(),
            versions_left,
            "including the delete marker: {versions}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn azure_blobs_are_compared_and_deleted() {
    let bucket = Bucket::azure().await;
    let kept = ["a b", "folder/ünï", "z+%41"];
    bucket.put(["folder/orphan", "orphan #2"]).await;
    bucket.put(kept).await;
    bucket.age().await;
    let list = ["a b", "folder/ünï", "z+%41", "absent"];
    let found = bucket.found(&list, &["--delete", "--yes", "--limit-percent", "50"]);
    assert_eq!((&found["orphans"]["objects"], &found["missing"]["keys"]), (&2.into(), &1.into()), "{found}");
    assert_eq!(
        (&found["deletion"]["objects"], &found["deletion"]["failed"]),
        (&2.into(), &0.into()),
        "{found}"
    );
    assert_eq!(bucket.keys().await, kept);
    refused(bucket.run(&["--keys", "nowhere"]), &["nowhere"]);
}
