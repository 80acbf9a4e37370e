//! Signed uploads and downloads, sent to the store itself. The signed request is accepted, and any other request is
//! refused. The store enforces exactly the capabilities that it reports.

use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use sha2::{Digest as _, Sha256};
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::{BlobError, Disposition, GetGrant, ListedObject, PutGrant, SignedRequest, UrlLifetime};

use super::fixture::{LIFETIME, StoreFixture, key};
use super::sending::{Client, extended, tampered, with_header};

const BYTES: &[u8] = b"granted bytes";
const TYPE: &str = "text/plain; charset=utf-8";

fn put_grant(key: &ObjectKey) -> PutGrant {
    let sum: String = Sha256::digest(BYTES).iter().map(|byte| format!("{byte:02x}")).collect();
    PutGrant {
        key: key.clone(),
        size: BYTES.len() as u64,
        content_type: Some(TYPE.into()),
        checksum_sha256: Some(sum),
        lifetime: LIFETIME,
    }
}

/// A grant that only sets the length.
fn plain_grant(key: &ObjectKey) -> PutGrant {
    PutGrant { content_type: None, checksum_sha256: None, ..put_grant(key) }
}

async fn get_grant(fixture: &StoreFixture, key: &ObjectKey) -> GetGrant {
    let meta = fixture.store.head(key, None).await.expect("present");
    GetGrant {
        key: key.clone(),
        pin: Pin { etag: meta.etag, version_id: meta.version_id },
        content_type: Some("image/svg+xml".into()),
        file_name: "Übersicht & Plan 100%=?#.pdf".into(),
        disposition: Disposition::Attachment,
        lifetime: LIFETIME,
    }
}

async fn sign(fixture: &StoreFixture, grant: &PutGrant) -> SignedRequest {
    fixture.store.sign_put(grant).await.expect("signed")
}

async fn all_keys(fixture: &StoreFixture) -> Vec<String> {
    let listed: Vec<ListedObject> = fixture.store.list("", None).try_collect().await.expect("listed");
    listed.into_iter().map(|listed| listed.key).collect()
}

async fn bytes_of(fixture: &StoreFixture, key: &ObjectKey) -> Vec<u8> {
    let meta = fixture.store.head(key, None).await.expect("present");
    let pin = Pin { etag: meta.etag, version_id: meta.version_id };
    let chunks: Vec<_> =
        fixture.store.get(key, &pin, 0, None).await.expect("read").try_collect().await.expect("read");
    chunks.concat()
}

async fn delete(fixture: &StoreFixture, key: &ObjectKey) {
    let outcomes = fixture.store.delete_many(std::slice::from_ref(key)).await;
    assert!(matches!(outcomes[..], [Ok(())]), "{outcomes:?}");
}

pub(super) async fn a_signed_upload_is_stored(fixture: &StoreFixture) {
    let client = Client::new();
    for (name, grant) in [("full", put_grant as fn(&ObjectKey) -> PutGrant), ("plain", plain_grant)] {
        let key = key(&format!("uploads/h%C3%A4fen/ada/{name}"));
        let signed = sign(fixture, &grant(&key)).await;
        assert_eq!(signed.method, "PUT");
        let answer = client.send(&signed, BYTES).await;
        assert!(answer.accepted(), "{}", answer.text());
        assert_eq!(bytes_of(fixture, &key).await, BYTES);
    }
    let empty = key("uploads/t/u/empty");
    let signed = sign(fixture, &PutGrant { size: 0, ..plain_grant(&empty) }).await;
    assert!(client.send(&signed, b"").await.accepted());
    assert_eq!(fixture.store.head(&empty, None).await.expect("present").size, 0);
}

pub(super) async fn an_upload_url_permits_only_the_signed_request(fixture: &StoreFixture) {
    let client = Client::new();
    let key = key("uploads/t/u/granted");
    let signed = sign(fixture, &put_grant(&key)).await;
    for method in ["GET", "HEAD", "DELETE", "POST"] {
        let answer = client.send_as(method, &signed, BYTES).await;
        assert!(answer.refused(), "{method}: {} {}", answer.status, answer.text());
    }
    let mut others = tampered(&signed);
    if fixture.signs_every_parameter() {
        others.extend(extended(&signed));
    }
    for other in &others {
        let answer = client.send(other, BYTES).await;
        assert!(answer.refused(), "{} {}\n{}", answer.status, answer.text(), other.url);
        assert_eq!(all_keys(fixture).await, Vec::<String>::new(), "{}", other.url);
    }
    assert!(client.send(&signed, BYTES).await.accepted(), "the signed request is still accepted");
}

pub(super) async fn the_signed_headers_are_required(fixture: &StoreFixture) {
    let client = Client::new();
    let key = key("uploads/t/u/granted");
    let signed = sign(fixture, &put_grant(&key)).await;
    let caps = fixture.store.capabilities();
    let named = |name: &str| signed.headers.iter().any(|(header, _)| header == name);
    assert!(named("content-type"));
    for (name, value) in &signed.headers {
        let bound = match name.as_str() {
            "content-type" => caps.enforces_content_type,
            _ => fixture.signs_every_parameter(),
        };
        if !bound {
            continue;
        }
        for other in [None, Some(""), Some(&value[1..]), Some("text/html")] {
            let answer = client.send(&with_header(&signed, name, other), BYTES).await;
            assert!(answer.refused(), "{name}: {other:?}: {} {}", answer.status, answer.text());
            assert_eq!(all_keys(fixture).await, Vec::<String>::new(), "{name}: {other:?}");
        }
    }
    assert!(client.send(&signed, BYTES).await.accepted());
}

pub(super) async fn exactly_the_reported_capabilities_are_enforced(fixture: &StoreFixture) {
    let client = Client::new();
    let key = key("uploads/t/u/granted");
    let caps = fixture.store.capabilities();
    let typed = PutGrant { content_type: Some(TYPE.into()), ..plain_grant(&key) };
    let summed = PutGrant { checksum_sha256: put_grant(&key).checksum_sha256, ..plain_grant(&key) };
    let html = |signed: SignedRequest| with_header(&signed, "content-type", Some("text/html"));
    let same = |signed: SignedRequest| signed;
    let other = b"granted bytez";
    type Change = dyn Fn(SignedRequest) -> SignedRequest;
    let cases: [(&str, PutGrant, &Change, &[u8], bool); 5] = [
        ("longer", plain_grant(&key), &same, b"granted bytes and more", caps.enforces_size),
        ("shorter", plain_grant(&key), &same, b"granted", caps.enforces_size),
        ("nothing", plain_grant(&key), &same, b"", caps.enforces_size),
        ("another type", typed, &html, BYTES, caps.enforces_content_type),
        ("another checksum", summed, &same, other, caps.enforces_checksum),
    ];
    for (what, grant, change, body, enforced) in cases {
        let answer = client.send(&change(sign(fixture, &grant).await), body).await;
        if enforced {
            assert!(answer.refused(), "{what}: {}", answer.status);
            let error = fixture.store.head(&key, None).await.expect_err("no object was stored");
            assert!(matches!(error, BlobError::NotFound), "{what}: {error}");
        } else {
            assert!(answer.accepted(), "{what}: {} {}", answer.status, answer.text());
            assert_eq!(bytes_of(fixture, &key).await, body, "{what}");
            delete(fixture, &key).await;
        }
    }
}

/// A URL cannot be revoked. A deleted object can be uploaded again until the URL expires, so the cleanup must wait.
pub(super) async fn an_upload_url_can_be_used_again_after_a_delete(fixture: &StoreFixture) {
    let client = Client::new();
    let key = key("uploads/t/u/granted");
    let signed = sign(fixture, &plain_grant(&key)).await;
    assert!(client.send(&signed, BYTES).await.accepted());
    let other = b"granted bytez";
    let answer = client.send(&signed, other).await;
    if fixture.store.capabilities().create_only {
        assert!(answer.refused(), "{}", answer.status);
        assert_eq!(bytes_of(fixture, &key).await, BYTES);
    } else {
        assert!(answer.accepted(), "{}", answer.status);
        assert_eq!(bytes_of(fixture, &key).await, other);
    }
    delete(fixture, &key).await;
    assert!(client.send(&signed, other).await.accepted());
    assert_eq!(bytes_of(fixture, &key).await, other);
}

/// Repeats the request until it is refused. The time limit ends a test that fails.
async fn until_refused(
    fixture: &StoreFixture,
    signed: &SignedRequest,
    body: &[u8],
    between: Option<&ObjectKey>,
) {
    let client = Client::new();
    let started = Instant::now();
    loop {
        let answer = client.send(signed, body).await;
        if answer.refused() {
            return;
        }
        assert!(answer.accepted(), "{} {}", answer.status, answer.text());
        assert!(started.elapsed() < Duration::from_secs(30), "the URL is still accepted: {}", signed.url);
        if let Some(key) = between {
            delete(fixture, key).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

pub(super) async fn urls_expire(fixture: &StoreFixture) {
    let lifetime = UrlLifetime { signed_at: 0, expires_at: 1_000 };
    let key = key("uploads/t/u/granted");
    let put = sign(fixture, &PutGrant { lifetime, ..plain_grant(&key) }).await;
    until_refused(fixture, &put, BYTES, Some(&key)).await;
    assert_eq!(all_keys(fixture).await, Vec::<String>::new());

    let kept = fixture.put("uploads/t/u/kept", BYTES).await;
    let grant = GetGrant { lifetime, ..get_grant(fixture, &kept).await };
    let get = fixture.store.sign_get(&grant).await.expect("signed");
    until_refused(fixture, &get, b"", None).await;
}

pub(super) async fn a_signed_download_returns_the_object(fixture: &StoreFixture) {
    let client = Client::new();
    let key = fixture.put("uploads/h%C3%A4fen/ada/f", BYTES).await;
    let grant = get_grant(fixture, &key).await;
    let signed = fixture.store.sign_get(&grant).await.expect("signed");
    assert_eq!((signed.method, signed.headers.len()), ("GET", 0));
    let answer = client.send(&signed, b"").await;
    assert!(answer.accepted(), "{}", answer.text());
    assert_eq!(answer.body, BYTES);
    assert_eq!(answer.header("content-type"), "image/svg+xml");
    assert_eq!(
        answer.header("content-disposition"),
        "attachment; filename*=UTF-8''%C3%9Cbersicht%20%26%20Plan%20100%25%3D%3F%23%2Epdf"
    );
    let inline = GetGrant {
        disposition: Disposition::Inline,
        content_type: Some("image/png".into()),
        lifetime: UrlLifetime {
            expires_at: grant.lifetime.signed_at + fixture.store.url_life_max().as_millis() as i64,
            ..grant.lifetime
        },
        ..grant
    };
    let answer = client.send(&fixture.store.sign_get(&inline).await.expect("signed for a week"), b"").await;
    assert!(answer.accepted(), "{}", answer.text());
    assert_eq!(answer.header("content-type"), "image/png");
    assert!(answer.header("content-disposition").starts_with("inline; filename*=UTF-8''%C3%9C"));
}

pub(super) async fn a_download_url_permits_only_the_signed_request(fixture: &StoreFixture) {
    let client = Client::new();
    let key = fixture.put("uploads/t/u/granted", BYTES).await;
    // Objects that a changed path would return.
    for other in ["uploads/t/u/grante", "uploads/t/u/grantedx"] {
        fixture.put(other, b"another's").await;
    }
    let signed = fixture.store.sign_get(&get_grant(fixture, &key).await).await.expect("signed");
    for method in ["PUT", "DELETE", "POST"] {
        let answer = client.send_as(method, &signed, b"").await;
        assert!(answer.refused(), "{method}: {} {}", answer.status, answer.text());
    }
    let mut others = tampered(&signed);
    if fixture.signs_every_parameter() {
        others.extend(extended(&signed));
    }
    for other in &others {
        let answer = client.send(other, b"").await;
        assert!(answer.refused(), "{} {}\n{}", answer.status, answer.text(), other.url);
    }
    assert_eq!(client.send(&signed, b"").await.body, BYTES, "the signed request is still accepted");
}
