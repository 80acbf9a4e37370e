//! What others put into the bucket, under keys that are none of ours: listed like the rest, and in the way of nothing.

use std::sync::Arc;

use futures::TryStreamExt as _;
use harness::radosgw;
use wharfinger_stores::BlobStore as _;
use wharfinger_stores::s3::{S3Options, S3Store};

use super::fixture::{ceph_options, strict_options};

const ODD: [&str; 16] = [
    " ",
    "a b",
    "a+b",
    "a%20b",
    "a%b",
    "a&b=c?d#e",
    "a//b",
    "a/../b",
    "<a>",
    "\"a'",
    "a\\b",
    "tab\there",
    "new\nline",
    "\u{1}\u{7f}",
    "grüße/日本/😀",
    "uploads/t/u/ +%",
];

async fn is_listed_whole(options: S3Options, put: impl Fn(&str, &str) + Sync) {
    std::thread::scope(|threads| {
        for key in ODD {
            threads.spawn(|| put(&options.bucket, key));
        }
    });
    let store = Arc::new(S3Store::connect(&options).await.expect("connected"));
    store.probe().await.expect("a store that can be used");
    let mut expected = ODD;
    expected.sort_unstable();
    let listed: Vec<_> = store.list("", None).try_collect().await.expect("listed");
    assert_eq!(listed.iter().map(|listed| listed.key.as_str()).collect::<Vec<_>>(), expected);
    for at in 0..expected.len() {
        let rest: Vec<_> = store.list("", Some(expected[at])).try_collect().await.expect("listed");
        let rest: Vec<&str> = rest.iter().map(|listed| listed.key.as_str()).collect();
        assert_eq!(rest, expected[at + 1..], "after {:?}", expected[at]);
    }
    let under: Vec<_> = store.list("a%", None).try_collect().await.expect("listed");
    assert_eq!(under.iter().map(|listed| listed.key.as_str()).collect::<Vec<_>>(), ["a%20b", "a%b"]);
}

#[tokio::test]
async fn odd_keys_are_listed_by_the_strict_server() {
    is_listed_whole(strict_options(), |bucket, key| strict_s3::shared().insert_object(bucket, key, b"x"))
        .await;
}

#[tokio::test]
async fn odd_keys_are_listed_by_ceph() {
    is_listed_whole(ceph_options(), |bucket, key| {
        // As a signature wants it: all but the unreserved, and the separator.
        let encode = |byte: u8| match byte {
            b'-' | b'_' | b'.' | b'~' | b'/' => char::from(byte).to_string(),
            byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        };
        let key: String = key.bytes().map(encode).collect();
        let answer = radosgw::shared().request("PUT", &format!("/{bucket}/{key}"), b"x").expect("answered");
        assert_eq!(answer.status, 200, "{key}");
    })
    .await;
}
