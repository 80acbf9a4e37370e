//! Wrong settings of stores. The error names the setting to fix. No object is reported as absent or deleted.

use bytes::Bytes;
use futures::TryStreamExt as _;
use harness::radosgw::{self, Radosgw, Rights};
use wharfinger_stores::s3::{S3Credentials, S3Options, S3Store};
use wharfinger_stores::{BlobError, BlobStore as _, MultipartStore as _, Part, WriteMode};

use super::fixture::{ceph_options, key, pin, strict_options};

/// The error of every call, with the name of the call, on a store where every call fails.
pub(super) async fn every_call(store: &S3Store) -> Vec<(&'static str, BlobError)> {
    let key = key("uploads/t/u/f");
    let mut errors = Vec::new();
    let mut record = |call, outcome: Result<(), BlobError>| match outcome {
        Ok(()) => panic!("{call} worked"),
        Err(error) => errors.push((call, error)),
    };
    record("check", store.check().await);
    record("probe", store.probe().await.map(drop));
    record("head", store.head(&key, None).await.map(drop));
    record("get", store.get(&key, &pin("etag"), 0, None).await.map(drop));
    record("get none", store.get(&key, &pin("etag"), 0, Some(0)).await.map(drop));
    record("put", store.put(&key, Bytes::from_static(b"x"), WriteMode::Overwrite).await);
    record("put new", store.put(&key, Bytes::from_static(b"x"), WriteMode::CreateOnly).await);
    record("list", store.list("", None).try_collect::<Vec<_>>().await.map(drop));
    for outcome in store.delete_many(&[key.clone(), key.clone()]).await {
        record("delete", outcome);
    }
    record("start", store.start(&key, None).await.map(drop));
    record("parts", store.list_parts(&key, "upload").await.map(drop));
    let part = Part { number: 1, size: 1, etag: "etag".into() };
    record("complete", store.complete(&key, "upload", None, &[part]).await);
    record("abort", store.abort_all(&key).await);
    record("unfinished", store.list_unfinished("").try_collect::<Vec<_>>().await.map(drop));
    errors
}

async fn connected(options: &S3Options) -> S3Store {
    S3Store::connect(options).await.expect("connected")
}

fn with_keys(options: &S3Options, access_key: &str, secret_key: &str) -> S3Options {
    let (access_key, secret_key) = (access_key.to_owned(), secret_key.to_owned());
    S3Options {
        credentials: Some(S3Credentials { access_key, secret_key, session_token: None }),
        ..options.clone()
    }
}

/// Otherwise every object would look absent, and the program would forget it.
#[tokio::test]
async fn a_missing_bucket_is_refused_and_nothing_is_absent() {
    for options in [ceph_options(), strict_options()] {
        let store = connected(&S3Options { bucket: "no-such-bucket".into(), ..options }).await;
        for (call, error) in every_call(&store).await {
            let text = error.to_string();
            assert!(matches!(error, BlobError::Refused(_)), "{call}: {text}");
            assert!(text.contains("NoSuchBucket") && text.contains("WHARFINGER_BLOB_URL"), "{call}: {text}");
        }
    }
}

#[tokio::test]
async fn wrong_credentials_are_reported() {
    for options in [ceph_options(), strict_options()] {
        let right = options.credentials.clone().expect("given").access_key;
        for (access_key, code) in
            [(right.as_str(), "SignatureDoesNotMatch"), ("UNKNOWN", "InvalidAccessKeyId")]
        {
            let store = connected(&with_keys(&options, access_key, "guessed")).await;
            for (call, error) in every_call(&store).await {
                let text = error.to_string();
                assert!(matches!(error, BlobError::Refused(_)), "{call}: {text}");
                assert!(text.contains("AWS_SECRET_ACCESS_KEY"), "{call}: {text}");
                // The answer to a HEAD has no error code.
                let by_head = matches!(call, "head" | "get none" | "put new");
                assert!(by_head || text.contains(code), "{call}: {text}");
            }
        }
    }
}

#[tokio::test]
async fn a_wrong_region_is_reported() {
    let options = S3Options { region: Some("us-west-2".into()), ..strict_options() };
    let error = connected(&options).await.check().await.expect_err("another region");
    let text = error.to_string();
    assert!(matches!(error, BlobError::Refused(_)), "{text}");
    assert!(text.contains("AWS_REGION") && text.contains(strict_s3::REGION), "{text}");
}

/// A gateway that can create keys. The shared gateway cannot if another process started it.
fn gateway_with_keys() -> &'static Radosgw {
    static OWN: std::sync::OnceLock<Radosgw> = std::sync::OnceLock::new();
    match radosgw::shared() {
        shared if shared.pid().is_some() => shared,
        _ => OWN.get_or_init(|| Radosgw::start().expect("an S3 server for this process")),
    }
}

/// A bucket, with the credentials of its owner and restricted credentials. `own_bucket`: the restricted ones own the
/// bucket.
fn restricted(rights: Rights, own_bucket: bool) -> (S3Options, S3Options) {
    let server = gateway_with_keys();
    let keys = server.add_keys(rights).expect("made");
    let bucket = if own_bucket {
        let name = keys.access_key.to_lowercase();
        let answer = server.request_as(&keys, "PUT", &format!("/{name}"), b"").expect("answered");
        assert_eq!(answer.status, 200);
        name
    } else {
        server.create_bucket()
    };
    let owner = S3Options {
        bucket,
        region: Some(server.region().to_owned()),
        endpoint: Some(server.endpoint()),
        ..S3Options::default()
    };
    let owner = with_keys(&owner, server.access_key(), server.secret_key());
    let restricted = with_keys(&owner, &keys.access_key, &keys.secret_key);
    (owner, restricted)
}

#[tokio::test]
async fn credentials_without_write_permission_are_reported() {
    let (owner, reader) = restricted(Rights::ReadOnly, false);
    let (owner, reader) = (connected(&owner).await, connected(&reader).await);
    let key = key("uploads/t/u/f");
    owner.put(&key, Bytes::from_static(b"kept"), WriteMode::Overwrite).await.expect("put");
    let text = reader.probe().await.expect_err("it lacks the write permission").to_string();
    assert!(text.contains("cannot write objects: AccessDenied"), "{text}");
    let error = reader
        .put(&key, Bytes::from_static(b"x"), WriteMode::Overwrite)
        .await
        .expect_err("it lacks the write permission");
    assert!(matches!(error, BlobError::Refused(_)), "{error}");
    let outcomes = reader.delete_many(std::slice::from_ref(&key)).await;
    assert!(matches!(outcomes[..], [Err(BlobError::Refused(_))]), "{outcomes:?}");
    assert_eq!(owner.head(&key, None).await.expect("kept").size, 4);
}

#[tokio::test]
async fn credentials_without_read_permission_are_reported() {
    let (owner, writer) = restricted(Rights::WriteOnly, false);
    let (owner, writer) = (connected(&owner).await, connected(&writer).await);
    let key = key("uploads/t/u/f");
    owner.put(&key, Bytes::from_static(b"kept"), WriteMode::Overwrite).await.expect("put");
    let text = writer.probe().await.expect_err("it lacks the list permission").to_string();
    assert!(text.contains("cannot list the bucket: AccessDenied"), "{text}");
    let error = writer.head(&key, None).await.expect_err("it lacks the read permission");
    assert!(matches!(error, BlobError::Refused(_)), "the object is not reported as absent: {error}");
    let error = writer.get(&key, &pin("etag"), 0, None).await.err().expect("it lacks the read permission");
    assert!(matches!(error, BlobError::Refused(_)), "{error}");
    let error =
        writer.list("", None).try_collect::<Vec<_>>().await.expect_err("it lacks the list permission");
    assert!(matches!(error, BlobError::Refused(_)), "{error}");
}

#[tokio::test]
async fn credentials_without_delete_permission_are_reported() {
    let (_, owner) = restricted(Rights::WithoutDelete, true);
    let owner = connected(&owner).await;
    let key = key("uploads/t/u/f");
    owner.put(&key, Bytes::from_static(b"kept"), WriteMode::Overwrite).await.expect("put");
    let text = owner.probe().await.expect_err("it lacks the delete permission").to_string();
    assert!(text.contains("cannot delete objects: AccessDenied"), "{text}");
    let outcomes = owner.delete_many(std::slice::from_ref(&key)).await;
    assert!(matches!(outcomes[..], [Err(BlobError::Refused(_))]), "{outcomes:?}");
    assert_eq!(owner.head(&key, None).await.expect("kept").size, 4);
}

#[tokio::test]
async fn an_unreachable_store_is_retryable() {
    let endpoint = Some("http://127.0.0.1:1".to_owned());
    let store = connected(&S3Options { endpoint, ..strict_options() }).await;
    let error = store.check().await.expect_err("no server listens");
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains("Connection refused"), "{error}");
    let error = store.head(&key("uploads/t/u/f"), None).await.expect_err("no server listens");
    assert!(error.is_retryable(), "{error}");
}
