//! Signed URLs of the local store are valid for exactly the signed request. Any changed bit makes them invalid.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::disk::{PartPlace, ROUTE, SignedQuery, SigningKey};
use wharfinger_stores::{
    BlobStore as _, Disposition, GetGrant, MultipartStore as _, PartGrant, PutGrant, SignedRequest,
    UrlLifetime,
};

use super::fixture::{DiskFixture, PUBLIC_URL, key, pin};

const EXPIRES: i64 = 1_800_000_000_000;

fn put_grant() -> PutGrant {
    PutGrant {
        key: key("uploads/h%C3%A4fen/ada/f"),
        size: 1_234,
        content_type: Some("text/plain; charset=\"utf-8\"".into()),
        checksum_sha256: Some("ab".repeat(32)),
        lifetime: UrlLifetime { signed_at: 0, expires_at: EXPIRES },
    }
}

fn get_grant() -> GetGrant {
    GetGrant {
        key: key("uploads/h%C3%A4fen/ada/f"),
        pin: pin("1a-2b"),
        content_type: Some("image/svg+xml".into()),
        file_name: "Übersicht & Plan 100%=?#.pdf".into(),
        disposition: Disposition::Attachment,
        lifetime: UrlLifetime { signed_at: 0, expires_at: EXPIRES },
    }
}

fn part_grant() -> PartGrant {
    PartGrant {
        key: key("uploads/h%C3%A4fen/ada/f"),
        upload_id: "an upload & more".into(),
        number: 12,
        offset: 34,
        size: 1_234,
        lifetime: UrlLifetime { signed_at: 0, expires_at: EXPIRES },
    }
}

/// Parses a URL like the program: each part is decoded once.
fn parsed(signed: &SignedRequest) -> (ObjectKey, SignedQuery) {
    let rest = signed.url.strip_prefix(PUBLIC_URL).and_then(|rest| rest.strip_prefix(ROUTE));
    let (path, query) = rest.and_then(|rest| rest.split_once('?')).expect("a path and a query");
    let query = serde_urlencoded::from_str(query).expect("a valid query");
    (key(&path.replace("%25", "%")), query)
}

#[tokio::test]
async fn a_signed_upload_is_valid() {
    let disk = DiskFixture::new();
    let grant = put_grant();
    let signed = disk.store.sign_put(&grant).await.expect("signed");
    assert_eq!(signed.method, "PUT");
    assert_eq!(signed.headers, [("content-type".to_owned(), "text/plain; charset=\"utf-8\"".to_owned())]);
    let (key, query) = parsed(&signed);
    assert_eq!(key, grant.key);
    let bound = (query.size, query.content_type.clone(), query.sha256.clone(), query.expires);
    assert_eq!(bound, (Some(1_234), grant.content_type, grant.checksum_sha256, EXPIRES));
    assert_eq!((&query.etag, &query.name), (&None, &None));
    assert!(disk.store.signing_key().verify("PUT", &key, &query));

    let plain = PutGrant { content_type: None, checksum_sha256: None, size: 0, ..put_grant() };
    let signed = disk.store.sign_put(&plain).await.expect("signed");
    assert_eq!(signed.headers, []);
    let (key, query) = parsed(&signed);
    assert_eq!((query.size, &query.content_type, &query.sha256), (Some(0), &None, &None));
    assert!(disk.store.signing_key().verify("PUT", &key, &query));
}

#[tokio::test]
async fn a_signed_download_is_valid() {
    let disk = DiskFixture::new();
    let grant = get_grant();
    let signed = disk.store.sign_get(&grant).await.expect("signed");
    assert_eq!((signed.method, signed.headers.len()), ("GET", 0));
    let (key, query) = parsed(&signed);
    assert_eq!(key, grant.key);
    assert_eq!(query.name, Some(grant.file_name));
    assert_eq!((query.etag.as_deref(), query.size), (Some("1a-2b"), None));
    assert!(disk.store.signing_key().verify("GET", &key, &query));
}

#[tokio::test]
async fn a_signed_part_is_valid() {
    let disk = DiskFixture::new();
    let grant = part_grant();
    let signed = disk.store.sign_part(&grant).await.expect("signed");
    assert_eq!((signed.method, signed.headers.len()), ("PUT", 0));
    let (key, query) = parsed(&signed);
    assert_eq!((&key, query.size), (&grant.key, Some(1_234)));
    let place = PartPlace { upload_id: grant.upload_id, number: 12, offset: 34 };
    assert_eq!(query.part(), Some(place));
    assert!(disk.store.signing_key().verify("PUT", &key, &query));
    let whole = disk.store.sign_put(&put_grant()).await.expect("signed");
    assert_eq!(parsed(&whole).1.part(), None);
}

/// Copies of the query, each with one field changed, removed or added.
fn tampered(query: &SignedQuery) -> Vec<SignedQuery> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut SignedQuery)| {
        let mut other = query.clone();
        change(&mut other);
        if other != *query {
            all.push(other);
        }
    };
    for expires in [EXPIRES + 1, EXPIRES - 1, -EXPIRES, 0, i64::MAX] {
        with(&|other| other.expires = expires);
    }
    for size in [None, Some(0), Some(1_233), Some(1_235), Some(12_340), Some(u64::MAX)] {
        with(&|other| other.size = size);
    }
    let texts = ["", "x", "1a-2b", "text/plain", "image/svg+xml", "Übersicht & Plan 100%=?#.pdf", " "];
    for text in texts.map(|text| Some(text.to_owned())).into_iter().chain([None]) {
        with(&|other| other.content_type = text.clone());
        with(&|other| other.sha256 = text.clone());
        with(&|other| other.etag = text.clone());
        with(&|other| other.name = text.clone());
    }
    for inline in [None, Some(true), Some(false)] {
        with(&|other| other.inline = inline);
    }
    for number in [None, Some(0), Some(12), Some(13)] {
        with(&|other| other.part_number = number);
    }
    for offset in [None, Some(0), Some(34), Some(35)] {
        with(&|other| other.offset = offset);
    }
    for upload_id in [None, Some("an upload"), Some("")] {
        with(&|other| other.upload_id = upload_id.map(str::to_owned));
    }
    with(&|other| (other.upload_id, other.part_number, other.offset) = (None, None, None));
    with(&|other| std::mem::swap(&mut other.content_type, &mut other.sha256));
    with(&|other| std::mem::swap(&mut other.etag, &mut other.name));
    with(&|other| other.sha256 = other.sha256.as_ref().map(|text| text.to_uppercase()));
    // Moves the end of one field to the beginning of the next.
    with(&|other| {
        if let (Some(first), Some(second)) = (&mut other.content_type, &mut other.sha256) {
            second.insert_str(0, &first.split_off(4));
        }
    });
    all
}

fn invalid_signatures(query: &SignedQuery) -> Vec<SignedQuery> {
    let sig = URL_SAFE_NO_PAD.decode(&query.sig).expect("a valid signature");
    assert_eq!(sig.len(), 32);
    let mut invalid: Vec<String> = (0..256)
        .map(|bit| {
            let mut other = sig.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            URL_SAFE_NO_PAD.encode(other)
        })
        .collect();
    invalid.push(String::new());
    invalid.push(URL_SAFE_NO_PAD.encode(&sig[..31]));
    invalid.push(URL_SAFE_NO_PAD.encode([&sig[..], &[0]].concat()));
    invalid.push(format!("{}=", query.sig));
    invalid.push(format!("{} ", query.sig));
    // Another encoding of the same bytes: two bits of the last character are unused.
    let last = query.sig.as_bytes()[query.sig.len() - 1];
    invalid
        .extend((last + 1..=last + 3).map(|c| format!("{}{}", &query.sig[..query.sig.len() - 1], c as char)));
    invalid.into_iter().map(|sig| SignedQuery { sig, ..query.clone() }).collect()
}

#[tokio::test]
async fn a_changed_grant_is_not_valid() {
    let disk = DiskFixture::new();
    let plain_put = PutGrant { content_type: None, checksum_sha256: None, ..put_grant() };
    let plain_get = GetGrant { content_type: None, ..get_grant() };
    let inline_get = GetGrant { disposition: Disposition::Inline, ..get_grant() };
    let signed = [
        ("PUT", disk.store.sign_put(&put_grant()).await),
        ("PUT", disk.store.sign_put(&plain_put).await),
        ("PUT", disk.store.sign_part(&part_grant()).await),
        ("GET", disk.store.sign_get(&get_grant()).await),
        ("GET", disk.store.sign_get(&plain_get).await),
        ("GET", disk.store.sign_get(&inline_get).await),
    ];
    let verify = |method: &str, key: &ObjectKey, query: &SignedQuery| {
        disk.store.signing_key().verify(method, key, query)
    };
    for (method, signed) in signed {
        let (own_key, query) = parsed(&signed.expect("signed"));
        assert!(verify(method, &own_key, &query));
        for other in ["PUT", "GET", "HEAD", "DELETE", "put", "get", ""] {
            assert_eq!(verify(other, &own_key, &query), other == method, "{other}");
        }
        for other in ["uploads/h%C3%A4fen/ada/g", "uploads/h%c3%a4fen/ada/f", "uploads/h/ada/f", "f"] {
            assert!(!verify(method, &key(other), &query), "{other}");
        }
        for other in tampered(&query).into_iter().chain(invalid_signatures(&query)) {
            assert!(!verify(method, &own_key, &other), "{method} {other:?}");
        }
        for secret in [&b"another secret"[..], b"a secret of the test", b""] {
            assert!(!SigningKey::new(secret).verify(method, &own_key, &query));
        }
    }
}

#[test]
fn a_query_with_extra_or_missing_fields_is_rejected() {
    let good = format!("expires={EXPIRES}&size=5&sig=x");
    serde_urlencoded::from_str::<SignedQuery>(&good).expect("a complete query");
    for bad in [
        format!("{good}&admin=1"),
        format!("{good}&size=6"),
        format!("{good}&Size=6"),
        "size=5&sig=x".to_owned(),
        format!("expires={EXPIRES}&size=5"),
        format!("expires={EXPIRES}&size=-5&sig=x"),
        "expires=soon&size=5&sig=x".to_owned(),
        String::new(),
    ] {
        assert!(serde_urlencoded::from_str::<SignedQuery>(&bad).is_err(), "{bad}");
    }
}
