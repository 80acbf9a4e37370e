//! Addresses in signed URLs: the bucket in the host name, a public address, session tokens.

use wharfinger_stores::s3::{S3Options, S3Store};
use wharfinger_stores::{BlobStore as _, PutGrant, SignedRequest};

use super::fixture::{LIFETIME, ceph_options, key, strict_options};
use super::sending::Client;

async fn signed(options: &S3Options) -> SignedRequest {
    let store = S3Store::connect(options).await.expect("connected");
    let key = key("uploads/h%C3%A4fen/ada/f");
    let grant = PutGrant { key, size: 4, content_type: None, checksum_sha256: None, lifetime: LIFETIME };
    store.sign_put(&grant).await.expect("signed")
}

#[tokio::test]
async fn the_bucket_can_be_part_of_the_host() {
    let mut options = ceph_options();
    let own = S3Store::connect(&options).await.expect("connected");
    let port = harness::radosgw::shared().port();
    options.endpoint = Some(format!("http://localhost:{port}"));
    options.virtual_host = Some(true);
    let signed = signed(&options).await;
    let host = format!("{}.localhost", options.bucket);
    assert!(signed.url.starts_with(&format!("http://{host}:{port}/uploads/")), "{}", signed.url);
    let client = Client::resolving(&host, ([127, 0, 0, 1], port).into());
    let answer = client.send(&signed, b"four").await;
    assert!(answer.accepted(), "{} {}", answer.status, answer.text());
    assert_eq!(own.head(&key("uploads/h%C3%A4fen/ada/f"), None).await.expect("stored").size, 4);
}

/// The program and its clients use different addresses of the store.
#[tokio::test]
async fn urls_are_signed_for_the_public_address() {
    let mut options = strict_options();
    let address = strict_s3::shared().address();
    options.public_endpoint = Some(format!("http://files.example:{}", address.port()));
    let store = S3Store::connect(&options).await.expect("connected");
    store.probe().await.expect("usable through its own address");
    let signed = signed(&options).await;
    assert!(signed.url.starts_with("http://files.example:"), "{}", signed.url);
    let client = Client::resolving("files.example", address);
    let answer = client.send(&signed, b"four").await;
    assert!(answer.accepted(), "{} {}", answer.status, answer.text());
}

#[tokio::test]
async fn a_session_token_is_part_of_the_url() {
    let mut options = strict_options();
    let credentials = options.credentials.as_mut().expect("given");
    credentials.session_token = Some("token/of+a=session".into());
    let signed = signed(&options).await;
    assert!(signed.url.contains("X-Amz-Security-Token=token%2Fof%2Ba%3Dsession"), "{}", signed.url);
    let answer = Client::new().send(&signed, b"four").await;
    assert!(answer.accepted(), "the token is part of the signature: {} {}", answer.status, answer.text());
}
