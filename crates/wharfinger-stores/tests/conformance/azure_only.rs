//! Tests for Azure only: create-only uploads, and multipart uploads as blocks.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt as _;
use reqwest::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::azure::{AzureCredentials, AzureOptions, AzureStore};
use wharfinger_stores::{
    BlobError, BlobStore, Disposition, GetGrant, MultipartStore as _, Part, PartGrant, PutGrant,
    SignedRequest, UnfinishedUpload, WriteMode,
};

use super::fixture::{LIFETIME, azure_options, key, pin};

async fn store() -> AzureStore {
    let store = AzureStore::connect(&azure_options()).expect("connected");
    store.probe().await.expect("a usable store");
    store
}

fn grant(key: &ObjectKey) -> PutGrant {
    let (content_type, lifetime) = (Some("text/plain".into()), LIFETIME);
    PutGrant { key: key.clone(), size: 5, content_type, checksum_sha256: None, lifetime }
}

async fn send(signed: &SignedRequest, bytes: &'static [u8]) -> u16 {
    let method = Method::from_bytes(signed.method.as_bytes()).expect("a method");
    send_to(method, &signed.url, &signed.headers, bytes).await
}

async fn send_to(method: Method, url: &str, headers: &[(String, String)], bytes: &'static [u8]) -> u16 {
    let mut request = reqwest::Client::new().request(method, url);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.header("content-length", bytes.len()).body(bytes);
    request.send().await.expect("answered").status().as_u16()
}

async fn read(store: &AzureStore, key: &ObjectKey) -> Vec<u8> {
    let etag = store.head(key, None).await.expect("present").etag;
    let bytes = store.get(key, &pin(&etag), 0, None).await.expect("readable");
    bytes.try_collect::<Vec<Bytes>>().await.expect("read").concat()
}

async fn delete(store: &AzureStore, key: &ObjectKey) {
    assert!(matches!(store.delete_many(std::slice::from_ref(key)).await[..], [Ok(())]));
}

async fn unfinished(store: &AzureStore, prefix: &str) -> Vec<UnfinishedUpload> {
    store.list_unfinished(prefix).try_collect().await.expect("listed")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_put_is_refused_and_changes_nothing() {
    let store = store().await;
    let caps = store.capabilities();
    assert!(caps.create_only && !caps.versioned, "{caps:?}");
    assert!(!caps.enforces_size && !caps.enforces_content_type && !caps.enforces_checksum, "{caps:?}");
    let key = key("uploads/t/u/f");
    let signed = store.sign_put(&grant(&key)).await.expect("signed");
    assert_eq!(send(&signed, b"first").await, 201);
    assert_eq!(send(&signed, b"again").await, 403);
    assert_eq!(read(&store, &key).await, b"first");
    // The URL permits no other request.
    for method in [Method::GET, Method::HEAD, Method::DELETE] {
        assert_eq!(send_to(method.clone(), &signed.url, &[], b"").await, 403, "{method}");
    }
    for query in ["comp=block&blockid=MDAwMQ%3D%3D", "comp=blocklist", "comp=metadata"] {
        let url = format!("{}&{query}", signed.url);
        assert_eq!(send_to(Method::PUT, &url, &signed.headers, b"x").await, 403, "{query}");
    }
    assert_eq!(read(&store, &key).await, b"first");
}

/// Copies of the URL, each with one query field changed or removed.
fn tampered(url: &str) -> Vec<String> {
    let (path, query) = url.split_once('?').expect("a query");
    let fields: Vec<&str> = query.split('&').collect();
    let mut all = Vec::new();
    for at in 0..fields.len() {
        let (name, value) = fields[at].split_once('=').expect("a field");
        let mut others: Vec<String> = match name {
            "sp" => ["r", "w", "cw", "racwdxl", ""].map(String::from).to_vec(),
            "se" => ["2099-01-01T00%3A00%3A00Z", "2001-01-01T00%3A00%3A00Z"].map(String::from).to_vec(),
            "sr" => ["c", "bs", "bv"].map(String::from).to_vec(),
            "sv" => ["2020-12-06", "2018-11-09", ""].map(String::from).to_vec(),
            _ => vec![format!("{value}x"), "x".into(), value[1..].to_owned()],
        };
        others.retain(|other| other != value);
        for other in others {
            let mut changed: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
            changed[at] = format!("{name}={other}");
            all.push(format!("{path}?{}", changed.join("&")));
        }
        let left: Vec<&str> =
            fields.iter().enumerate().filter(|(n, _)| *n != at).map(|(_, field)| *field).collect();
        all.push(format!("{path}?{}", left.join("&")));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tampered_sas_is_refused() {
    let store = store().await;
    let upload = key("uploads/h%C3%A4fen/ada/f");
    let signed = store.sign_put(&grant(&upload)).await.expect("signed");
    let all = tampered(&signed.url);
    assert!(all.len() > 12, "{all:?}");
    for url in all {
        let status = send_to(Method::PUT, &url, &signed.headers, b"evil!").await;
        assert_eq!(status, 403, "{url}");
    }
    let other_key = signed.url.replace("/ada/", "/eve/");
    assert_eq!(send_to(Method::PUT, &other_key, &signed.headers, b"evil!").await, 403);
    assert!(matches!(store.head(&upload, None).await, Err(BlobError::NotFound)));
    assert_eq!(send(&signed, b"right").await, 201);

    let download = GetGrant {
        key: upload,
        pin: pin("any"),
        content_type: Some("image/svg+xml".into()),
        file_name: "Übersicht & Plan 100%=?#.pdf".into(),
        disposition: Disposition::Attachment,
        lifetime: LIFETIME,
    };
    let signed = store.sign_get(&download).await.expect("signed");
    for url in tampered(&signed.url) {
        assert_eq!(send_to(Method::GET, &url, &[], b"").await, 403, "{url}");
    }
    let answer = reqwest::get(&signed.url).await.expect("answered");
    assert_eq!(answer.status().as_u16(), 200);
    assert_eq!(answer.headers()["content-type"], "image/svg+xml");
    let disposition = answer.headers()["content-disposition"].to_str().expect("plain").to_owned();
    assert!(disposition.starts_with("attachment; filename*=UTF-8''%C3%9Cbersicht%20"), "{disposition}");
    assert_eq!(answer.bytes().await.expect("read"), "right");
}

/// A server that refuses every request and sends this date.
async fn clock_at(date: &'static str) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 16 * 1_024];
            let _ = stream.read(&mut request).await;
            let answer = format!(
                "HTTP/1.1 403 no\r\nDate: {date}\r\nx-ms-error-code: AccountIsDisabled\r\n\
                 Content-Length: 0\r\nConnection: close\r\n\r\n"
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    format!("http://{address}/devstoreaccount1")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sas_expires_by_the_clock_of_the_store() {
    let options = azure_options();
    for (date, status) in [("Thu, 01 Jan 2026 00:00:00 GMT", 403), ("Fri, 01 Jan 2100 00:00:00 GMT", 201)] {
        let wrong = AzureOptions {
            endpoint: Some(clock_at(date).await),
            public_endpoint: options.endpoint.clone(),
            ..options.clone()
        };
        let store = AzureStore::connect(&wrong).expect("connected");
        let error = store.check().await.expect_err("refused").to_string();
        assert!(error.contains("AccountIsDisabled"), "{error}");
        let signed = store.sign_put(&grant(&key("uploads/t/u/f"))).await.expect("signed");
        assert_eq!(send(&signed, b"x").await, status, "{}", signed.url);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_setting_is_named() {
    let right = azure_options();
    let error_of = |options: AzureOptions| async move {
        let store = AzureStore::connect(&options).expect("connected");
        let checked = store.check().await.expect_err("refused");
        let absent = store.head(&key("uploads/t/u/f"), None).await.expect_err("refused");
        assert!(!matches!(absent, BlobError::NotFound), "the object is not reported as absent");
        let outcomes = store.delete_many(&[key("uploads/t/u/f")]).await;
        assert!(outcomes[0].is_err(), "the object is not reported as deleted");
        let put = store.put(&key("uploads/t/u/f"), Bytes::from_static(b"x"), WriteMode::Overwrite).await;
        assert!(put.is_err());
        assert!(store.list_unfinished("").try_collect::<Vec<_>>().await.is_err());
        assert!(store.list("", None).try_collect::<Vec<_>>().await.is_err());
        checked
    };
    let container = AzureOptions { container: "no-such-container".into(), ..right.clone() };
    let error = error_of(container).await;
    assert!(matches!(&error, BlobError::Refused(why) if why.contains("ContainerNotFound")), "{error}");
    assert!(error.to_string().contains("WHARFINGER_BLOB_URL"), "{error}");

    let wrong_key = Some(AzureCredentials::AccountKey("d3Jvbmc=".into()));
    let error = error_of(AzureOptions { credentials: wrong_key, ..right.clone() }).await;
    assert!(
        matches!(&error, BlobError::Refused(why) if why.contains("AZURE_STORAGE_ACCOUNT_KEY")),
        "{error}"
    );
    assert!(!error.to_string().contains("sig="), "{error}");

    let unreachable = AzureOptions { endpoint: Some("http://127.0.0.1:1/devstoreaccount1".into()), ..right };
    let error = error_of(unreachable).await;
    assert!(error.is_retryable() && error.to_string().contains("127.0.0.1"), "{error}");
    assert!(!error.to_string().contains("sig="), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_look_encoded_stay_different() {
    let store = store().await;
    let keys =
        ["uploads/a%2Eb/x", "uploads/a%252Eb/x", "uploads/%2E%2E/x", "uploads/a%20b/x", "uploads/~/-_"];
    let keys = keys.map(key);
    for key in &keys {
        let signed = store.sign_put(&grant(key)).await.expect("signed");
        assert_eq!(send(&signed, b"first").await, 201, "{key}");
        assert_eq!(send(&signed, b"again").await, 403, "{key}");
        assert_eq!(store.head(key, None).await.expect("present").size, 5);
    }
    let mut listed: Vec<String> =
        store.list("", None).map_ok(|listed| listed.key).try_collect().await.expect("listed");
    let mut wanted: Vec<String> = keys.iter().map(ToString::to_string).collect();
    wanted.sort();
    assert_eq!(listed, wanted);
    assert!(store.delete_many(&keys).await.iter().all(Result::is_ok));
    listed = store.list("", None).map_ok(|listed| listed.key).try_collect().await.expect("listed");
    assert_eq!(listed, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_can_overwrite_or_only_create() {
    let store = store().await;
    let marker = ObjectKey::marker();
    store.put(&marker, Bytes::from_static(b"one"), WriteMode::CreateOnly).await.expect("the object is new");
    let error =
        store.put(&marker, Bytes::from_static(b"two"), WriteMode::CreateOnly).await.expect_err("present");
    assert!(matches!(error, BlobError::Changed), "{error}");
    assert_eq!(read(&store, &marker).await, b"one");
    store.put(&marker, Bytes::from_static(b"three"), WriteMode::Overwrite).await.expect("overwritten");
    assert_eq!(read(&store, &marker).await, b"three");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_leaves_nothing_and_removes_nothing() {
    let store = store().await;
    let marker = ObjectKey::marker();
    store.put(&marker, Bytes::from_static(b"ours"), WriteMode::CreateOnly).await.expect("put");
    let probed = store.probe().await.expect("a usable store");
    assert_eq!((probed.clock_ahead_ms, probed.notes), (0, Vec::<String>::new()));
    let left: Vec<_> = store.list("", None).map_ok(|listed| listed.key).try_collect().await.expect("listed");
    assert_eq!(left, [marker.as_str()]);
    assert_eq!(unfinished(&store, "").await, []);
}

async fn put_part(store: &AzureStore, key: &ObjectKey, upload_id: &str, number: u32, bytes: &'static [u8]) {
    let (size, lifetime) = (bytes.len() as u64, LIFETIME);
    let grant =
        PartGrant { key: key.clone(), upload_id: upload_id.into(), number, offset: 0, size, lifetime };
    let signed = store.sign_part(&grant).await.expect("signed");
    assert_eq!(send(&signed, bytes).await, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_the_listed_blocks_become_the_blob() {
    let store = store().await;
    let key = key("uploads/t/u/large%2E1");
    let upload = store.start(&key, Some("text/csv")).await.expect("started");
    assert_eq!(store.list_parts(&key, &upload).await.expect("none yet"), []);
    // Out of order, one part twice, and one part that is not used.
    put_part(&store, &key, &upload, 50_000, b"the end").await;
    put_part(&store, &key, &upload, 1, b"wrong").await;
    put_part(&store, &key, &upload, 3, b"never").await;
    put_part(&store, &key, &upload, 1, b"the beginning, ").await;
    put_part(&store, &key, &upload, 2, b"the middle, ").await;
    let parts = store.list_parts(&key, &upload).await.expect("listed");
    assert_eq!(parts.iter().map(|part| part.number).collect::<Vec<_>>(), [1, 2, 3, 50_000]);
    assert_eq!(parts.iter().map(|part| part.size).collect::<Vec<_>>(), [15, 12, 5, 7]);
    assert!(
        matches!(store.head(&key, None).await, Err(BlobError::NotFound)),
        "the object does not exist before the upload is completed"
    );
    let left: Vec<_> = store.list("", None).try_collect().await.expect("listed");
    assert_eq!(left, [], "the upload is not listed as an object");

    let wanted = [parts[0].clone(), parts[1].clone(), parts[3].clone()];
    store.complete(&key, &upload, Some("text/csv"), &wanted).await.expect("completed");
    assert_eq!(read(&store, &key).await, b"the beginning, the middle, the end");
    let grant = GetGrant {
        key: key.clone(),
        pin: pin("any"),
        content_type: None,
        file_name: "f".into(),
        disposition: Disposition::Attachment,
        lifetime: LIFETIME,
    };
    let signed = store.sign_get(&grant).await.expect("signed");
    let answer = reqwest::get(&signed.url).await.expect("answered");
    assert_eq!(answer.headers()["content-type"], "text/csv");

    // A repeated completion reports that the upload has ended. The object stays.
    assert!(matches!(store.complete(&key, &upload, None, &wanted).await, Err(BlobError::NotFound)));
    assert!(matches!(store.list_parts(&key, &upload).await, Err(BlobError::NotFound)));
    assert_eq!(unfinished(&store, "").await, []);
    assert_eq!(read(&store, &key).await, b"the beginning, the middle, the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_or_missing_parts_are_not_completed() {
    let store = store().await;
    let key = key("uploads/t/u/f");
    let upload = store.start(&key, None).await.expect("started");
    put_part(&store, &key, &upload, 1, b"one").await;
    let parts = store.list_parts(&key, &upload).await.expect("listed");
    let other = store.start(&key, None).await.expect("started");
    put_part(&store, &key, &other, 2, b"two").await;
    let theirs = store.list_parts(&key, &other).await.expect("listed");
    let missing = Part { number: 2, size: 3, etag: parts[0].etag.clone() };
    let resized = Part { size: 4, ..parts[0].clone() };
    for wrong in [&[parts[0].clone(), missing][..], &[resized], &theirs] {
        let error = store.complete(&key, &upload, None, wrong).await.expect_err("a part is missing");
        assert!(matches!(error, BlobError::NotFound), "{error}");
    }
    let error = store.complete(&key, &upload, None, &[]).await.expect_err("no parts");
    assert!(matches!(error, BlobError::Refused(_)), "{error}");
    for unknown in ["", "without-upload", "0000000000000123456789"] {
        assert!(matches!(store.list_parts(&key, unknown).await, Err(BlobError::NotFound)), "{unknown}");
        assert!(matches!(store.complete(&key, unknown, None, &parts).await, Err(BlobError::NotFound)));
    }
    assert!(matches!(store.head(&key, None).await, Err(BlobError::NotFound)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_upload_is_removed_and_a_completed_one_stays() {
    let store = store().await;
    let aborted = key("uploads/t/u/a");
    let upload = store.start(&aborted, None).await.expect("started");
    put_part(&store, &aborted, &upload, 1, b"bytes").await;
    store.abort_all(&aborted).await.expect("aborted");
    assert!(matches!(store.list_parts(&aborted, &upload).await, Err(BlobError::NotFound)));
    assert!(matches!(store.head(&aborted, None).await, Err(BlobError::NotFound)));
    store.abort_all(&aborted).await.expect("an abort without an upload succeeds");
    store.abort(&aborted, &upload).await.expect("an abort without an upload succeeds");
    assert_eq!(unfinished(&store, "").await, []);

    // A part that arrives after the abort is listed and can be removed.
    put_part(&store, &aborted, &upload, 2, b"late").await;
    assert!(matches!(store.list_parts(&aborted, &upload).await, Err(BlobError::NotFound)));
    let late = unfinished(&store, "uploads/").await;
    assert_eq!(late.iter().map(|late| late.key.as_str()).collect::<Vec<_>>(), [aborted.as_str()]);
    store.abort(&aborted, &late[0].upload_id).await.expect("removed");
    assert_eq!(unfinished(&store, "").await, []);

    let whole = key("uploads/t/u/b");
    let empty = key("uploads/t/u/c");
    store.put(&whole, Bytes::from_static(b"whole"), WriteMode::CreateOnly).await.expect("put");
    store.put(&empty, Bytes::new(), WriteMode::CreateOnly).await.expect("put");
    for kept in [&whole, &empty] {
        let before = store.head(kept, None).await.expect("present");
        store.abort_all(kept).await.expect("nothing to do");
        let upload = store.start(kept, None).await.expect("started");
        store.abort(kept, &upload).await.expect("the object stays");
        assert!(matches!(store.list_parts(kept, &upload).await, Err(BlobError::NotFound)));
        let upload = store.start(kept, None).await.expect("started");
        put_part(&store, kept, &upload, 1, b"bytes").await;
        store.abort_all(kept).await.expect("the object stays");
        assert!(matches!(store.list_parts(kept, &upload).await, Err(BlobError::NotFound)));
        assert_eq!(unfinished(&store, kept.as_str()).await, []);
        assert_eq!(store.head(kept, None).await.expect("present"), before);
    }
    let left: Vec<_> = store.list("", None).map_ok(|listed| listed.key).try_collect().await.expect("listed");
    assert_eq!(left, [whole.as_str(), empty.as_str()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_uploads_is_aborted() {
    let store = store().await;
    let key = key("uploads/t/u/f");
    let one = store.start(&key, None).await.expect("started");
    let two = store.start(&key, None).await.expect("started");
    put_part(&store, &key, &one, 1, b"of the first").await;
    put_part(&store, &key, &two, 1, b"of the second").await;
    let mut ids: Vec<String> =
        unfinished(&store, "").await.into_iter().map(|unfinished| unfinished.upload_id).collect();
    let mut both = vec![one.clone(), two.clone()];
    ids.sort();
    both.sort();
    assert_eq!(ids, both);
    store.abort(&key, &one).await.expect("aborted");
    assert!(matches!(store.list_parts(&key, &one).await, Err(BlobError::NotFound)));
    let parts = store.list_parts(&key, &two).await.expect("the other upload continues");
    store.complete(&key, &two, None, &parts).await.expect("completed");
    assert_eq!(read(&store, &key).await, b"of the second");
    assert_eq!(unfinished(&store, "").await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_uploads_are_listed_with_their_time() {
    let mut options = azure_options();
    options.prefix = "wharf/".into();
    let store = Arc::new(AzureStore::connect(&options).expect("connected"));
    let unprefixed =
        AzureStore::connect(&AzureOptions { prefix: String::new(), ..options }).expect("connected");
    unprefixed.start(&key("wharfuploads/t/u/f"), None).await.expect("started");
    let keys = ["uploads/t/u/b", "uploads/t/u/a", "uploads/t2/u/f", "derived/f"].map(key);
    for key in &keys {
        store.start(key, None).await.expect("started");
    }
    let done = key("uploads/t/u/done");
    store.put(&done, Bytes::new(), WriteMode::CreateOnly).await.expect("put");
    let found = unfinished(&store, "uploads/t/").await;
    let names: Vec<&str> = found.iter().map(|unfinished| unfinished.key.as_str()).collect();
    assert_eq!(names, ["uploads/t/u/a", "uploads/t/u/b"]);
    let year_2020 = 1_577_836_800_000;
    assert!(
        found.iter().all(|unfinished| unfinished.started_at.is_some_and(|at| at > year_2020)),
        "{found:?}"
    );
    assert_eq!(unfinished(&store, "").await.len(), 4, "uploads outside the prefix are not listed");
    delete(&store, &done).await;
}

/// Azure cannot limit a SAS to one block. The pinned ETag detects the change.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_url_can_change_the_object_but_the_pinned_etag_shows_it() {
    let store = store().await;
    let key = key("uploads/t/u/f");
    let upload = store.start(&key, None).await.expect("started");
    put_part(&store, &key, &upload, 1, b"right").await;
    let parts = store.list_parts(&key, &upload).await.expect("listed");
    store.complete(&key, &upload, None, &parts).await.expect("completed");
    let pinned = store.head(&key, None).await.expect("present").etag;

    let part =
        PartGrant { key: key.clone(), upload_id: upload, number: 1, offset: 0, size: 5, lifetime: LIFETIME };
    let url = store.sign_part(&part).await.expect("signed").url;
    let url =
        format!("{}?{}", url.split_once('?').expect("a query").0, &url[url.find("sv=").expect("a permit")..]);
    let block_blob = [("x-ms-blob-type".to_owned(), "BlockBlob".to_owned())];
    assert_eq!(send_to(Method::PUT, &url, &block_blob, b"wrong").await, 201);
    assert!(matches!(store.get(&key, &pin(&pinned), 0, None).await, Err(BlobError::Changed)));
    for method in [Method::GET, Method::DELETE] {
        assert_eq!(send_to(method.clone(), &url, &[], b"").await, 403, "{method}");
    }

    // An empty removal blob that a crash left behind is removed too.
    let marker = ("x-ms-meta-wharfinger".to_owned(), "abandoned".to_owned());
    let removal_blob = [block_blob[0].clone(), marker];
    assert_eq!(send_to(Method::PUT, &url, &removal_blob, b"not empty").await, 201);
    store.abort_all(&key).await.expect("nothing to do");
    assert_eq!(read(&store, &key).await, b"not empty");
    assert_eq!(send_to(Method::PUT, &url, &removal_blob, b"").await, 201);
    store.abort_all(&key).await.expect("removed");
    assert!(matches!(store.head(&key, None).await, Err(BlobError::NotFound)));
}
