//! `wharfinger doctor` and `serve` with a store that has one problem: each problem is one line with what to do.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

use harness::packages;
use harness::radosgw::{self, Rights};
use serde_json::Value;

use super::program::{Place, Ran};

/// The settings of a store.
#[derive(Clone)]
struct Store {
    url: String,
    endpoint: String,
    access_key: String,
    secret_key: String,
}

impl Store {
    fn new() -> Store {
        let gateway = radosgw::shared();
        Store {
            url: format!("s3://{}/wharf", gateway.create_bucket()),
            endpoint: gateway.endpoint(),
            access_key: gateway.access_key().into(),
            secret_key: gateway.secret_key().into(),
        }
    }

    fn environment(&self) -> [(&str, &str); 5] {
        [
            ("WHARFINGER_BLOB_URL", self.url.as_str()),
            ("AWS_ENDPOINT_URL", self.endpoint.as_str()),
            ("AWS_ACCESS_KEY_ID", self.access_key.as_str()),
            ("AWS_SECRET_ACCESS_KEY", self.secret_key.as_str()),
            ("AWS_REGION", "us-east-1"),
        ]
    }

    fn run(&self, place: &Place, arguments: &[&str]) -> Ran {
        place.run_with(&self.environment(), arguments)
    }
}

/// Whether all checks with this name are ok, and their details.
fn result(ran: &Ran, check: &str) -> (bool, String) {
    let [report] = &ran.json()[..] else { panic!("one object: {ran:?}") };
    let of_name = |c: &&Value| c["check"] == check;
    let found: Vec<&Value> = report["checks"].as_array().expect("a list").iter().filter(of_name).collect();
    assert!(!found.is_empty(), "{check} in {ran:?}");
    let ok = found.iter().all(|check| check["ok"] == true);
    (ok, found.iter().filter_map(|check| check["detail"].as_str()).collect::<Vec<_>>().join("; "))
}

/// `doctor` reports the problem, and `serve` refuses to start.
#[track_caller]
fn both_report(store: &Store, words: &[&str]) {
    let place = Place::new();
    let ran = store.run(&place, &["doctor", "--json"]).expect(1);
    let (ok, detail) = result(&ran, "blobs");
    assert!(!ok);
    let refused = store.run(&place, &["serve", "--listen", "127.0.0.1:0"]).expect(1);
    for report in [&detail, &refused.stderr] {
        assert!(report.contains("WHARFINGER_BLOB_URL"), "{report}");
        for word in words {
            assert!(report.contains(word), "{word} in {report}");
        }
    }
}

#[test]
fn doctor_lists_what_the_store_enforces() {
    let (place, store) = (Place::new(), Store::new());
    let ran = store.run(&place, &["doctor", "--json"]).expect(0);
    let (ok, detail) = result(&ran, "blobs");
    assert!(ok && detail.contains("enforces size, content type, create-only"), "{detail}");
    assert!(
        detail.contains("confirm or a sweep checks the rest: checksum, no upload after a file has ended"),
        "{detail}"
    );

    let served = place.serve(&store.environment());
    let ready = get_json(&format!("{}/readyz", served.url));
    let blobs = &ready["backends"][1];
    assert_eq!((blobs["kind"].as_str(), blobs["ok"].as_bool()), (Some("s3"), Some(true)), "{ready}");
    assert_eq!(blobs["enforces"], serde_json::json!(["size", "content type", "create-only"]));
    let ran = store.run(&place, &["doctor", "--json"]).expect(0);
    assert_eq!(result(&ran, "store"), (true, "belongs to this catalog".to_owned()));
}

fn get_json(url: &str) -> Value {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { reqwest::get(url).await.expect("an answer").json().await.expect("JSON") })
}

#[test]
fn a_missing_bucket_is_reported() {
    let store = Store { url: "s3://no-such-bucket-here/x".into(), ..Store::new() };
    both_report(&store, &["NoSuchBucket", "check the name"]);
}

#[test]
fn a_wrong_secret_is_reported() {
    let store = Store { secret_key: "wrong".repeat(8), ..Store::new() };
    both_report(&store, &["SignatureDoesNotMatch", "check AWS_ACCESS_KEY_ID"]);
}

#[test]
fn missing_rights_are_reported() {
    let gateway = radosgw::shared();
    for (rights, words) in [
        (Rights::ReadOnly, "cannot write objects"),
        (Rights::WriteOnly, "cannot list the bucket"),
        (Rights::WithoutDelete, "cannot delete objects"),
    ] {
        let keys = gateway.add_keys(rights).expect("keys");
        let mut store = Store::new();
        if matches!(rights, Rights::WithoutDelete) {
            // These keys can use only buckets that they created.
            let bucket = format!("own-{}", keys.access_key.to_lowercase());
            let created = gateway.request_as(&keys, "PUT", &format!("/{bucket}"), b"").expect("answered");
            assert_eq!(created.status, 200);
            store.url = format!("s3://{bucket}");
        }
        (store.access_key, store.secret_key) = (keys.access_key, keys.secret_key);
        both_report(&store, &[words, "AccessDenied"]);
    }
}

/// The login page of a proxy, or a wrong port.
#[test]
fn an_endpoint_that_answers_html_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut request = [0; 4_096];
            let _ = stream.read(&mut request);
            let page = "<html><body>Please log in</body></html>";
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n";
            let _ = write!(stream, "{head}content-length: {}\r\n\r\n{page}", page.len());
        }
    });
    let store = Store { endpoint, ..Store::new() };
    let ran = store.run(&Place::new(), &["doctor", "--json"]).expect(1);
    let (ok, detail) = result(&ran, "blobs");
    assert!(!ok && detail.contains("not from S3: check AWS_ENDPOINT_URL"), "{detail}");
}

#[test]
fn an_endpoint_that_refuses_connections_is_reported() {
    let store = Store { endpoint: "http://127.0.0.1:1".into(), ..Store::new() };
    let ran = store.run(&Place::new(), &["doctor", "--json"]).expect(1);
    let (ok, detail) = result(&ran, "blobs");
    assert!(!ok && detail.contains("refused"), "{detail}");
}

#[test]
fn a_clock_with_a_large_offset_is_reported() {
    let root = packages::unpack(&["libfaketime"]).expect("libfaketime");
    let find =
        Command::new("find").arg(&root).args(["-name", "libfaketime.so.1"]).output().expect("find runs");
    let library = String::from_utf8(find.stdout).expect("a path").trim().to_owned();
    assert!(!library.is_empty(), "libfaketime below {}", root.display());
    for (offset, words) in [("+600s", "s ahead of the store's"), ("-600s", "s behind the store's")] {
        let (place, store) = (Place::new(), Store::new());
        let environment =
            [&store.environment()[..], &[("LD_PRELOAD", &library), ("FAKETIME", offset)]].concat();
        let ran = place.run_with(&environment, &["doctor", "--json"]).expect(1);
        let (ok, detail) = result(&ran, "clock");
        assert!(!ok && detail.contains(words) && detail.contains("NTP"), "{detail}");
        assert!(result(&ran, "blobs").0, "requests are signed with the store's time: {ran:?}");
        let served = place.serve(&environment);
        served.terminate();
        assert!(place.log().contains(words), "{}", place.log());
    }
}
