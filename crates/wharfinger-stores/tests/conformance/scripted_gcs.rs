//! Google Cloud Storage with a scripted server, because there is no local server from Google. Tests the requests, the
//! retries and the classification of answers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::TryStreamExt as _;
use harness::scripted::{ReceivedRequest, ScriptedServer};
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::gcs::{GcsCredentials, GcsOptions, GcsStore};
use wharfinger_stores::{BlobError, BlobStore as _, MultipartStore as _, Part, WriteMode};

use super::fixture::{key, pin};
use super::scripted_s3::{error, xml};

fn store(server: &ScriptedServer) -> GcsStore {
    let private_key = include_str!("../../src/gcs/testdata/key.pem").replace('\n', "\\n");
    let account = format!(
        "{{\"type\":\"service_account\",\"client_email\":\"a@b\",\"private_key\":\"{private_key}\"}}"
    );
    let options = GcsOptions {
        bucket: "box".into(),
        prefix: "w/".into(),
        endpoint: Some(format!("http://{}/", server.address())),
        credentials: Some(GcsCredentials::Json(account)),
        ..GcsOptions::default()
    };
    GcsStore::connect(&options).expect("connected")
}

fn file() -> ObjectKey {
    key("uploads/t/u/f")
}

fn answer(status: u16, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} So\r\ncontent-length: {length}\r\nconnection: close\r\n");
    format!("{head}{headers}\r\n{body}").into_bytes()
}

const OBJECT: &str = "etag: \"e1\"\r\nx-goog-generation: 7\r\nx-goog-stored-content-length: 9\r\n\
    x-goog-stored-content-encoding: gzip\r\nlast-modified: Thu, 01 Jan 1970 00:00:05 GMT\r\n";

fn head_of(request: &ReceivedRequest) -> String {
    String::from_utf8_lossy(&request.raw).split("\r\n\r\n").next().unwrap_or_default().to_lowercase()
}

/// Methods and paths without their signatures.
fn paths(server: &ScriptedServer) -> Vec<String> {
    let plain = |request: ReceivedRequest| {
        let (path, query) = request.path.split_once('?').expect("a signed request");
        let unsigned = query.split('&').filter(|field| !field.starts_with("X-Goog-"));
        format!("{} {path}?{}", request.method, unsigned.collect::<Vec<_>>().join("&"))
    };
    server.requests().into_iter().map(plain).collect()
}

#[tokio::test]
async fn the_size_is_of_the_stored_object() {
    let server = ScriptedServer::start(|_, _| answer(200, OBJECT, ""));
    let meta = store(&server).head(&file(), Some("7")).await.expect("present");
    assert_eq!((meta.size, meta.etag.as_str(), meta.version_id.as_deref()), (9, "e1", Some("7")));
    assert_eq!((meta.modified_at, meta.content_encoding.as_deref()), (Some(5_000), Some("gzip")));
    assert_eq!(paths(&server), ["HEAD /box/w/uploads/t/u/f?generation=7"]);
}

#[tokio::test]
async fn only_an_explicit_error_code_means_absent() {
    for (code, status) in [("NoSuchKey", 404), ("NoSuchBucket", 404), ("", 404), ("AccessDenied", 403)] {
        let server = ScriptedServer::start(move |request, _| match request.method.as_str() {
            "HEAD" => answer(status, "", ""),
            _ => error(status, code),
        });
        let failed = store(&server).head(&file(), None).await.expect_err("not there");
        match (code, status) {
            ("NoSuchKey", _) => assert!(matches!(failed, BlobError::NotFound), "{failed}"),
            ("", _) => assert!(failed.is_retryable(), "{failed}"),
            _ => assert!(matches!(failed, BlobError::Refused(_)), "{code}: {failed}"),
        }
    }
}

#[tokio::test]
async fn ranges_are_requested_with_the_pinned_etag() {
    let server = ScriptedServer::start(|_, _| answer(206, OBJECT, "bytes"));
    let store = store(&server);
    for (start, length, expected) in
        [(0, None, None), (3, None, Some("range: bytes=3-")), (3, Some(5), Some("range: bytes=3-7"))]
    {
        let read = store.get(&file(), &pin("e1"), start, length).await.expect("readable");
        assert_eq!(read.try_collect::<Vec<Bytes>>().await.expect("read").concat(), b"bytes");
        let head = head_of(server.requests().last().expect("request"));
        assert!(head.contains("if-match: \"e1\"") && head.contains("accept-encoding: gzip"), "{head}");
        assert_eq!(head.contains("\r\nrange: "), expected.is_some(), "{head}");
        assert!(expected.is_none_or(|expected| head.contains(expected)), "{head}");
    }
    let request = server.requests().len();
    let nothing = store.get(&file(), &pin("e1"), 3, Some(0)).await.expect("the pinned object");
    assert_eq!(nothing.try_collect::<Vec<Bytes>>().await.expect("read"), Vec::<Bytes>::new());
    assert_eq!(
        server.requests()[request..].iter().map(|request| request.method.as_str()).collect::<Vec<_>>(),
        ["HEAD"]
    );
    assert!(matches!(store.get(&file(), &pin("e0"), 3, Some(0)).await, Err(BlobError::Changed)));
    // A server that ignores the condition answers with what it has.
    assert!(matches!(store.get(&file(), &pin("e0"), 0, None).await, Err(BlobError::Changed)));
}

#[tokio::test]
async fn a_failed_condition_can_mean_absent() {
    for (exists, status, code) in
        [(true, 412, "PreconditionFailed"), (false, 412, "PreconditionFailed"), (true, 416, "InvalidRange")]
    {
        let server = ScriptedServer::start(move |request, _| match (request.method.as_str(), exists) {
            ("HEAD", true) => answer(200, OBJECT, ""),
            ("HEAD", false) => answer(404, "", ""),
            ("GET", _) if head_of(request).contains("if-match") => error(status, code),
            _ => error(404, "NoSuchKey"),
        });
        let read = store(&server).get(&file(), &pin("e1"), 20, None).await.map(drop);
        match (exists, status) {
            (true, 412) => assert!(matches!(read, Err(BlobError::Changed)), "{read:?}"),
            (true, _) => assert!(read.is_ok(), "a range after the end is empty: {read:?}"),
            (false, _) => assert!(matches!(read, Err(BlobError::NotFound)), "{read:?}"),
        }
    }
}

/// After a lost answer, the existing object can be our own, so these calls are not retried.
#[tokio::test]
async fn only_idempotent_calls_are_repeated() {
    let server = ScriptedServer::start(|_, _| error(503, "SlowDown"));
    let store = store(&server);
    let body = Bytes::from_static(b"x");
    let put = store.put(&file(), body.clone(), WriteMode::Overwrite).await;
    let put_new = store.put(&file(), body, WriteMode::CreateOnly).await;
    let started = store.start(&file(), None).await.map(drop);
    let deleted = store.delete_many(&[file()]).await.pop().expect("an outcome");
    for failed in [put, put_new, started, deleted] {
        let failed = failed.expect_err("busy");
        assert!(failed.is_retryable() && failed.to_string().contains("SlowDown (Because)"), "{failed}");
    }
    let methods: Vec<String> = server.requests().into_iter().map(|request| request.method).collect();
    assert_eq!(methods, ["PUT", "PUT", "PUT", "PUT", "POST", "DELETE", "DELETE", "DELETE"]);
    let create_only = server
        .requests()
        .iter()
        .filter(|request| head_of(request).contains("x-goog-if-generation-match: 0"))
        .count();
    assert_eq!(create_only, 1);
}

/// The refusal contains the store's time, so the next signature is correct.
#[tokio::test]
async fn a_refusal_that_shows_a_wrong_clock_is_retried() {
    let date = |server: &ScriptedServer| head_of(server.requests().last().expect("request"));
    let server = ScriptedServer::start(|_, before| match before {
        0 => answer(
            403,
            "date: Fri, 01 Jan 2100 00:00:00 GMT\r\n",
            "<Error><Code>SignatureDoesNotMatch</Code></Error>",
        ),
        _ => answer(200, OBJECT, ""),
    });
    let store = store(&server);
    store.head(&file(), None).await.expect("present");
    assert!(date(&server).contains("x-goog-date=2100"), "{}", date(&server));
    let real = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis())
        .expect("soon");
    assert!(store.now() > real + 1_000_000_000);
}

#[tokio::test]
async fn pages_are_listed_in_order() {
    let page = |keys: &[&str], more: &str| {
        let contents: String =
            keys.iter().map(|key| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>")).collect();
        xml(200, &format!("<ListBucketResult><Name>box</Name>{contents}{more}</ListBucketResult>"))
    };
    let more = "<IsTruncated>true</IsTruncated><NextContinuationToken>n&amp;1</NextContinuationToken>";
    let server = ScriptedServer::start(move |_, before| match before {
        0 => page(&["w/a", "w/b"], more),
        _ => page(&["w/c"], ""),
    });
    let listed: Vec<_> = store(&server).list("", Some("a")).try_collect().await.expect("listed");
    assert_eq!(listed.iter().map(|listed| listed.key.as_str()).collect::<Vec<_>>(), ["b", "c"]);
    let request = [
        "GET /box?list-type=2&prefix=w%2F&start-after=w%2Fa",
        "GET /box?continuation-token=n%261&list-type=2&prefix=w%2F",
    ];
    assert_eq!(paths(&server), request);

    let server = ScriptedServer::start(move |_, _| page(&["w/b", "w/a"], ""));
    let failed = store(&server).list("", None).try_collect::<Vec<_>>().await.expect_err("out of order");
    assert!(matches!(failed, BlobError::Refused(_)), "{failed}");
    let server = ScriptedServer::start(move |_, _| page(&["w/a"], "<IsTruncated>true</IsTruncated>"));
    let failed = store(&server).list("", None).try_collect::<Vec<_>>().await.expect_err("truncated");
    assert!(failed.to_string().contains("truncated listing"), "{failed}");
    let server = ScriptedServer::start(|_, _| answer(200, "", "<html></html>"));
    let failed = store(&server).list("", None).try_collect::<Vec<_>>().await.expect_err("a web page");
    assert!(failed.is_retryable() && failed.to_string().contains("not from Google"), "{failed}");
}

#[tokio::test]
async fn multipart_uploads_are_listed_completed_and_aborted() {
    let server = ScriptedServer::start(|request, _| match (request.method.as_str(), request.path.as_str()) {
        ("DELETE", _) => answer(204, "", ""),
        ("POST", _) => error(400, "InvalidPart"),
        (_, path) if path.contains("part-number-marker=1") => xml(
            200,
            "<ListPartsResult><UploadId>u</UploadId><Part><PartNumber>2</PartNumber><Size>5</Size><ETag>\"b\"</ETag></Part>\
             </ListPartsResult>",
        ),
        (_, path) if path.contains("uploadId") => xml(
            200,
            "<ListPartsResult><UploadId>u</UploadId><Part><PartNumber>1</PartNumber><Size>4</Size><ETag>\"a\"</ETag></Part>\
             <IsTruncated>true</IsTruncated><NextPartNumberMarker>1</NextPartNumberMarker></ListPartsResult>",
        ),
        (_, path) if path.contains("key-marker=") => {
            let is_second_page = path.contains("upload-id-marker=u1");
            assert!(is_second_page, "{path}");
            xml(
                200,
                "<ListMultipartUploadsResult><Bucket>box</Bucket><Upload><Key>w/uploads/t/u/f</Key><UploadId>u2</UploadId>\
                 </Upload><Upload><Key>w/uploads/t/u/f2</Key><UploadId>u3</UploadId></Upload></ListMultipartUploadsResult>",
            )
        }
        _ => xml(
            200,
            "<ListMultipartUploadsResult><Bucket>box</Bucket><Upload><Key>w/uploads/t/u/f</Key><UploadId>u1</UploadId>\
             <Initiated>1970-01-01T00:00:05.000Z</Initiated></Upload><IsTruncated>true</IsTruncated>\
             <NextKeyMarker>w/uploads/t/u/f</NextKeyMarker><NextUploadIdMarker>u1</NextUploadIdMarker>\
             </ListMultipartUploadsResult>",
        ),
    });
    let store = store(&server);
    let part = |number, size, etag: &str| Part { number, size, etag: etag.into() };
    let parts = store.list_parts(&file(), "u").await.expect("listed");
    assert_eq!(parts, [part(1, 4, "a"), part(2, 5, "b")]);
    assert!(matches!(store.complete(&file(), "u", None, &parts).await, Err(BlobError::NotFound)));
    let unfinished: Vec<_> = store.list_unfinished("").try_collect().await.expect("listed");
    assert_eq!((unfinished.len(), unfinished[0].started_at), (3, Some(5_000)));
    store.abort_all(&file()).await.expect("aborted");
    let deleted: Vec<String> = paths(&server).into_iter().filter(|path| path.starts_with("DELETE")).collect();
    assert_eq!(deleted, ["u1", "u2"].map(|id| format!("DELETE /box/w/uploads/t/u/f?uploadId={id}")));
}

/// A server with a bucket that stores only names. If `strict`, it enforces the same conditions as Google.
fn bucket(strict: bool, objects: Arc<Mutex<BTreeSet<String>>>) -> ScriptedServer {
    let nothing = "<ListBucketResult><Name>box</Name></ListBucketResult>";
    let uploads = "<ListMultipartUploadsResult><Bucket>box</Bucket></ListMultipartUploadsResult>";
    let started = "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
    ScriptedServer::start(move |request, _| {
        let mut objects = objects.lock().expect("no thread panics with the lock");
        let (name, query) = request.path.split_once('?').expect("a signed request");
        let head = head_of(request);
        let length = request.raw.len() - head.len() - 4;
        match request.method.as_str() {
            "PUT" if strict && !head.contains(&format!("x-goog-content-length-range: {length},{length}")) => {
                error(400, "EntityTooSmall")
            }
            "PUT" if strict && !head.contains("content-type: text/plain") => {
                error(403, "SignatureDoesNotMatch")
            }
            "PUT" if strict && objects.contains(name) => error(412, "PreconditionFailed"),
            "PUT" => {
                objects.insert(name.to_owned());
                answer(200, OBJECT, "")
            }
            "DELETE" if query.contains("uploadId") || objects.remove(name) => answer(204, "", ""),
            "POST" => xml(200, started),
            "GET" if query.contains("versioning") => xml(200, "<VersioningConfiguration/>"),
            "GET" if query.contains("uploadId") => {
                xml(200, "<ListPartsResult><UploadId>u</UploadId></ListPartsResult>")
            }
            "GET" if query.contains("uploads") => xml(200, uploads),
            "GET" if query.contains("list-type") => xml(200, nothing),
            "HEAD" => answer(404, "", ""),
            _ => error(404, "NoSuchKey"),
        }
    })
}

#[tokio::test]
async fn a_probe_detects_what_is_enforced_and_leaves_nothing() {
    for strict in [true, false] {
        let objects = Arc::<Mutex<BTreeSet<String>>>::default();
        let server = bucket(strict, objects.clone());
        let store = store(&server);
        let probed = store.probe().await.expect("a usable store");
        assert_eq!((probed.clock_ahead_ms, probed.notes), (0, Vec::<String>::new()));
        let caps = store.capabilities();
        let enforced = (caps.enforces_size, caps.enforces_content_type, caps.create_only);
        assert_eq!(enforced, (strict, strict, strict), "{caps:?}");
        assert!(!caps.enforces_checksum && !caps.versioned, "{caps:?}");
        assert_eq!(*objects.lock().expect("no thread panics with the lock"), BTreeSet::new());
    }
}
