//! Answers that are not from S3, truncated, contradictory or missing. They are retried or reported as errors. They
//! never make an object absent or deleted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use bytes::Bytes;
use futures::TryStreamExt as _;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::s3::{S3Options, S3Store};
use wharfinger_stores::{BlobError, BlobStore as _, MultipartStore as _, PartGrant, PutGrant, WriteMode};

use super::bad_stores::every_call;
use harness::scripted::{ReceivedRequest, ScriptedServer, response};

use super::fixture::{LIFETIME, key, pin, put_signed, strict_options};
use super::scripted_s3::{error, options_of, relayed, store, xml};
use super::sending::Client;

const PAGE: &str = "<!DOCTYPE html><html><body>Welcome to the proxy<br></body></html>";

/// For example the page of a proxy or the login page of a router. Its status says nothing about objects.
#[tokio::test]
async fn a_web_page_is_not_an_answer_of_the_store() {
    for (status, expected) in [(200, "AWS_ENDPOINT_URL"), (404, "AWS_ENDPOINT_URL")] {
        let server = ScriptedServer::start(move |_, _| response(status, "text/html", PAGE));
        let store = store(&server).await;
        for (call, error) in every_call(&store).await {
            assert!(error.is_retryable(), "{status}: {call}: {error}");
            assert!(error.to_string().contains(expected), "{status}: {call}: {error}");
        }
    }
}

/// Also for a store without bulk delete.
#[tokio::test]
async fn a_web_page_deletes_nothing() {
    let server = ScriptedServer::start(|request, _| match request.method.as_str() {
        "POST" => error(501, "NotImplemented"),
        _ => response(404, "text/html", PAGE),
    });
    let outcomes = store(&server).await.delete_many(&[key("uploads/t/u/f")]).await;
    assert!(matches!(outcomes[..], [Err(BlobError::Unavailable(_))]), "{outcomes:?}");
}

fn listing(keys: &[&str], more: &str) -> String {
    let modified = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>";
    let contents: String = keys
        .iter()
        .map(|key| format!("<Contents><Key>{key}</Key>{modified}<Size>1</Size></Contents>"))
        .collect();
    format!("<ListBucketResult><Name>bucket</Name>{contents}{more}</ListBucketResult>")
}

async fn listed(store: &S3Store) -> Result<Vec<String>, BlobError> {
    let all: Vec<_> = store.list("", None).try_collect().await?;
    Ok(all.into_iter().map(|listed| listed.key).collect())
}

#[tokio::test]
async fn a_busy_store_is_retried() {
    let server = ScriptedServer::start(|_, before| match before {
        0 | 1 => error(503, "SlowDown"),
        _ => xml(200, &listing(&["a", "b"], "")),
    });
    assert_eq!(listed(&store(&server).await).await.expect("success after retries"), ["a", "b"]);
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn a_store_that_stays_busy_is_unavailable() {
    let server = ScriptedServer::start(|_, _| error(503, "SlowDown"));
    let error = listed(&store(&server).await).await.expect_err("busy");
    assert!(error.is_retryable() && error.to_string().contains("SlowDown"), "{error}");
    assert_eq!(server.requests().len(), 3, "the number of retries is limited");
}

/// A comparison with the catalog would report objects in use as orphans.
#[tokio::test]
async fn a_listing_out_of_order_is_an_error() {
    for keys in [["b", "a"], ["a", "a"]] {
        let server = ScriptedServer::start(move |_, _| xml(200, &listing(&keys, "")));
        let error = listed(&store(&server).await).await.expect_err("out of order");
        assert!(matches!(error, BlobError::Refused(_)), "{error}");
        assert!(error.to_string().contains("in byte order"), "{error}");
    }
    // Each page is sorted, but the second page sorts before the first.
    let server = ScriptedServer::start(|_, before| {
        let more = "<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>";
        xml(200, &if before == 0 { listing(&["c", "d"], more) } else { listing(&["a", "b"], "") })
    });
    listed(&store(&server).await).await.expect_err("out of order");
}

/// The missing rest would look like absent objects, ended uploads and deleted versions.
#[tokio::test]
async fn a_truncated_listing_without_a_marker_is_an_error() {
    let truncated = "<IsTruncated>true</IsTruncated>";
    let server = ScriptedServer::start(move |request, _| {
        let versioning = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
        match request.path.as_str() {
            path if path.contains("versioning") => xml(200, versioning),
            path if path.contains("uploadId") => {
                xml(200, &format!("<ListPartsResult><UploadId>x</UploadId>{truncated}</ListPartsResult>"))
            }
            path if path.contains("?uploads") => xml(
                200,
                &format!(
                    "<ListMultipartUploadsResult><Bucket>bucket</Bucket>{truncated}</ListMultipartUploadsResult>"
                ),
            ),
            path if path.contains("versions") => {
                xml(200, &format!("<ListVersionsResult><Name>bucket</Name>{truncated}</ListVersionsResult>"))
            }
            path if path.contains("max-keys") => xml(200, &listing(&[], "")),
            path if path.contains("list-type") => xml(200, &listing(&["a"], truncated)),
            _ => error(403, "AccessDenied"),
        }
    });
    let store = store(&server).await;
    let key = key("uploads/t/u/f");
    // The probe fails early, but it has already detected versioning.
    store.probe().await.expect_err("the script has no answer");
    assert!(store.capabilities().versioned);
    let [Err(deleted)] = &store.delete_many(std::slice::from_ref(&key)).await[..] else {
        panic!("one error is expected");
    };
    for (call, outcome) in [
        ("list", listed(&store).await.map(drop)),
        ("parts", store.list_parts(&key, "x").await.map(drop)),
        ("unfinished", store.list_unfinished("").try_collect::<Vec<_>>().await.map(drop)),
        ("abort", store.abort_all(&key).await),
        ("delete", Err(deleted.clone())),
    ] {
        let error = outcome.expect_err(call);
        assert!(error.is_retryable(), "{call}: {error}");
        assert!(error.to_string().contains("truncated listing"), "{call}: {error}");
    }
}

fn three() -> [ObjectKey; 3] {
    ["uploads/t/u/a", "uploads/t/u/b", "uploads/t/u/c"].map(key)
}

fn deleted(names: &[&str], errors: &str) -> Vec<u8> {
    let deleted: String =
        names.iter().map(|name| format!("<Deleted><Key>uploads/t/u/{name}</Key></Deleted>")).collect();
    xml(200, &format!("<DeleteResult>{deleted}{errors}</DeleteResult>"))
}

#[tokio::test]
async fn a_successful_bulk_delete_can_contain_errors() {
    let server = ScriptedServer::start(|_, _| {
        let error = |name: &str, code: &str| {
            format!("<Error><Key>uploads/t/u/{name}</Key><Code>{code}</Code><Message>No.</Message></Error>")
        };
        deleted(&["a"], &format!("{}{}", error("b", "AccessDenied"), error("c", "InternalError")))
    });
    let outcomes = store(&server).await.delete_many(&three()).await;
    let [Ok(()), Err(BlobError::Refused(why)), Err(BlobError::Unavailable(_))] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    assert_eq!(why, "AccessDenied (No)");
}

#[tokio::test]
async fn a_key_missing_in_the_answer_is_not_deleted() {
    let server = ScriptedServer::start(|_, _| deleted(&["a", "c"], ""));
    let outcomes = store(&server).await.delete_many(&three()).await;
    let [Ok(()), Err(BlobError::Unavailable(why)), Ok(())] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(why.contains("does not mention this key"), "{why}");
}

#[tokio::test]
async fn a_store_without_bulk_delete_deletes_one_by_one() {
    for refusal in [(501, "NotImplemented"), (405, "MethodNotAllowed")] {
        let server = ScriptedServer::start(move |request, _| {
            match (request.method.as_str(), request.path.as_bytes()) {
                ("POST", _) => error(refusal.0, refusal.1),
                (_, path) if path.starts_with(b"/bucket/uploads/t/u/b") => error(403, "AccessDenied"),
                _ => b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_vec(),
            }
        });
        let store = store(&server).await;
        for _ in 0..2 {
            let outcomes = store.delete_many(&three()).await;
            assert!(matches!(outcomes[..], [Ok(()), Err(BlobError::Refused(_)), Ok(())]), "{outcomes:?}");
        }
        let bulk = server.requests().iter().filter(|request| request.method == "POST").count();
        assert_eq!(bulk, 1, "the missing bulk delete is remembered");
    }
}

/// The body is shorter than its content-length.
#[tokio::test]
async fn a_truncated_body_is_an_error() {
    let server = ScriptedServer::start(|_, _| {
        b"HTTP/1.1 200 OK\r\netag: \"x\"\r\ncontent-length: 100\r\nconnection: close\r\n\r\nonly so much"
            .to_vec()
    });
    let store = store(&server).await;
    let bytes = store.get(&key("uploads/t/u/f"), &pin("x"), 0, None).await.expect("the answer starts");
    let error = bytes.try_collect::<Vec<_>>().await.expect_err("it was truncated");
    assert!(error.is_retryable(), "{error}");
}

/// If the store does not support create-only, a HEAD comes first. Its failure does not mean that the object is absent.
#[tokio::test]
async fn nothing_is_created_without_a_check_for_an_existing_object() {
    let server = ScriptedServer::start(|request, _| match request.method.as_str() {
        "PUT" => b"HTTP/1.1 200 OK\r\netag: \"x\"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec(),
    });
    let store = store(&server).await;
    let put = store.put(&key("uploads/t/u/f"), Bytes::from_static(b"x"), WriteMode::CreateOnly).await;
    assert!(matches!(put, Err(BlobError::Refused(_))), "{put:?}");
    assert!(server.requests().iter().all(|request| request.method != "PUT"));
}

/// The retry finds the object of the first attempt. The caller must check whether the object is its own.
#[tokio::test]
async fn an_object_is_created_although_the_answer_is_lost() {
    let lost_before = AtomicBool::new(false);
    let (_server, store, direct) = with_lost_answers(move |request, _| {
        request.method == "PUT"
            && request.path.contains("/uploads/")
            && !lost_before.swap(true, Ordering::SeqCst)
    })
    .await;
    store.probe().await.expect("a usable store");
    assert!(store.capabilities().create_only);
    let key = key("uploads/t/u/f");
    let put = store.put(&key, Bytes::from_static(b"four"), WriteMode::CreateOnly).await;
    assert!(matches!(put, Err(BlobError::Changed)), "{put:?}");
    assert_eq!(direct.head(&key, None).await.expect("the object exists").size, 4);
}

/// A proxy to a real server that drops some answers.
async fn with_lost_answers(
    lost: impl Fn(&ReceivedRequest, usize) -> bool + Send + Sync + 'static,
) -> (ScriptedServer, S3Store, S3Store) {
    let options = strict_options();
    let address = strict_s3::shared().address();
    let server = ScriptedServer::start(move |request, before| {
        let answer = relayed(request, address);
        if lost(request, before) { Vec::new() } else { answer }
    });
    let through = S3Options { endpoint: options_of(&server).endpoint, ..options.clone() };
    let through = S3Store::connect(&through).await.expect("connected");
    (server, through, S3Store::connect(&options).await.expect("connected"))
}

#[tokio::test]
async fn a_put_whose_answer_is_lost_is_unknown() {
    let (_server, store, direct) = with_lost_answers(|request, _| request.method == "PUT").await;
    let key = key("uploads/t/u/f");
    let error =
        store.put(&key, Bytes::from_static(b"four"), WriteMode::Overwrite).await.expect_err("no answer");
    assert!(error.is_retryable(), "{error}");
    assert_eq!(direct.head(&key, None).await.expect("the object exists").size, 4);
}

/// The retry finds no upload. The caller must check whether the object exists.
#[tokio::test]
async fn an_upload_is_completed_although_the_answer_is_lost() {
    for is_always_lost in [true, false] {
        let (_server, store, direct) = with_lost_answers(move |request, before| {
            request.method == "POST" && request.path.contains("uploadId") && (is_always_lost || before == 0)
        })
        .await;
        let key = key("uploads/t/u/f");
        let upload_id = direct.start(&key, None).await.expect("started");
        let grant = PartGrant {
            key: key.clone(),
            upload_id: upload_id.clone(),
            number: 1,
            offset: 0,
            size: 4,
            lifetime: LIFETIME,
        };
        let signed = direct.sign_part(&grant).await.expect("signed");
        assert!(Client::new().send(&signed, b"four").await.accepted());
        let parts = direct.list_parts(&key, &upload_id).await.expect("listed");
        let error = store.complete(&key, &upload_id, None, &parts).await.expect_err("no answer");
        match is_always_lost {
            true => assert!(error.is_retryable(), "{error}"),
            false => assert!(matches!(error, BlobError::NotFound), "{error}"),
        }
        assert_eq!(direct.head(&key, None).await.expect("the object exists").size, 4);
    }
}

/// The proxy reports a clock that is five minutes slow. The server itself refuses a difference of ten minutes.
#[tokio::test]
async fn urls_are_dated_by_the_clock_of_the_store() {
    const BEHIND: Duration = Duration::from_secs(300);
    let address = strict_s3::shared().address();
    let server = ScriptedServer::start(move |request, _| {
        let answer = relayed(request, address);
        let at = answer.windows(6).position(|six| six.eq_ignore_ascii_case(b"date: ")).expect("a date") + 6;
        let end = at + answer[at..].iter().position(|byte| *byte == b'\r').expect("the end of a line");
        let date = DateTime::from(SystemTime::now() - BEHIND).fmt(Format::HttpDate).expect("a date");
        // HTTP dates have no fraction of a second.
        let date = date.split_once('.').map_or(date.clone(), |(whole, _)| format!("{whole} GMT"));
        [&answer[..at], date.as_bytes(), &answer[end..]].concat()
    });
    let options = S3Options { endpoint: options_of(&server).endpoint, ..strict_options() };
    let store = S3Store::connect(&options).await.expect("connected");
    let probed = store.probe().await.expect("a usable store");
    let difference = (probed.clock_ahead_ms - 300_000).abs();
    assert!(difference < 60_000, "{probed:?}");

    let key = key("uploads/t/u/f");
    let grant =
        PutGrant { key: key.clone(), size: 4, content_type: None, checksum_sha256: None, lifetime: LIFETIME };
    let signed = store.sign_put(&grant).await.expect("signed");
    let date = signed.url.split("X-Amz-Date=").nth(1).and_then(|rest| rest.get(..16)).expect("a date");
    let (day, time) = date.split_once('T').expect("a day and a time");
    let formatted =
        format!("{}-{}-{}T{}:{}:{}Z", &day[..4], &day[4..6], &day[6..], &time[..2], &time[2..4], &time[4..6]);
    let signed_at = DateTime::from_str(&formatted, Format::DateTime).expect("a date").secs();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    assert!((now - signed_at - 300).abs() < 60, "{date}");
    assert_eq!(put_signed(&Client::new(), &store, &key, b"four").await, 200);
}
