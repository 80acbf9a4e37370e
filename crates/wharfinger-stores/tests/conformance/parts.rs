//! Multipart uploads: completed to exactly the sent bytes, or aborted completely.

use futures::TryStreamExt as _;
use futures::future::join_all;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::{
    BlobError, Disposition, GetGrant, MultipartStore, Part, PartGrant, SignedRequest, UnfinishedUpload,
};

use super::fixture::{LIFETIME, StoreFixture, key};
use super::sending::{extended, tampered};

fn multipart(fixture: &StoreFixture) -> &dyn MultipartStore {
    fixture.store.multipart().expect("the store supports multipart uploads")
}

async fn started(fixture: &StoreFixture, key: &ObjectKey) -> String {
    multipart(fixture).start(key, None).await.expect("started")
}

async fn signed(
    fixture: &StoreFixture,
    key: &ObjectKey,
    upload_id: &str,
    (number, offset): (u32, usize),
    size: usize,
) -> SignedRequest {
    let (upload_id, offset, size) = (upload_id.to_owned(), offset as u64, size as u64);
    let grant = PartGrant { key: key.clone(), upload_id, number, offset, size, lifetime: LIFETIME };
    multipart(fixture).sign_part(&grant).await.expect("signed")
}

async fn send(fixture: &StoreFixture, key: &ObjectKey, upload_id: &str, part: (u32, usize), bytes: &[u8]) {
    let (signed, number) = (signed(fixture, key, upload_id, part, bytes.len()).await, part.0);
    let answer = fixture.client().send(&signed, bytes).await;
    assert!(answer.accepted(), "part {number}: {} {}", answer.status, answer.text());
}

async fn parts(fixture: &StoreFixture, key: &ObjectKey, upload_id: &str) -> Result<Vec<Part>, BlobError> {
    multipart(fixture).list_parts(key, upload_id).await
}

async fn unfinished(fixture: &StoreFixture, prefix: &str) -> Vec<UnfinishedUpload> {
    multipart(fixture).list_unfinished(prefix).try_collect().await.expect("listed")
}

async fn is_absent(fixture: &StoreFixture, key: &ObjectKey) -> bool {
    matches!(fixture.store.head(key, None).await, Err(BlobError::NotFound))
}

/// Bytes without repetitions.
fn noise(length: usize, seed: u32) -> Vec<u8> {
    (0..length as u32).map(|n| (n.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

pub(super) async fn parts_are_joined_in_the_order_of_their_numbers(fixture: &StoreFixture) {
    let key = key("uploads/t/u/large");
    let upload_id = multipart(fixture).start(&key, Some("video/mp4")).await.expect("started");
    let part_bytes_min = usize::try_from(multipart(fixture).limits().part_bytes_min).expect("a small number");
    let bytes = [noise(part_bytes_min, 1), noise(part_bytes_min + 1, 2), noise(77, 3)];
    // A part that is sent again replaces the earlier one.
    send(fixture, &key, &upload_id, (2, part_bytes_min), &noise(99, 9)).await;
    let offsets = [0, part_bytes_min, 2 * part_bytes_min + 1];
    let sent = [3usize, 1, 2].map(|number| {
        send(fixture, &key, &upload_id, (number as u32, offsets[number - 1]), &bytes[number - 1])
    });
    join_all(sent).await;

    let held = parts(fixture, &key, &upload_id).await.expect("listed");
    let seen: Vec<(u32, u64)> = held.iter().map(|part| (part.number, part.size)).collect();
    assert_eq!(seen, [(1, part_bytes_min as u64), (2, part_bytes_min as u64 + 1), (3, 77)]);
    assert!(is_absent(fixture, &key).await, "the object does not exist before the upload is completed");

    multipart(fixture).complete(&key, &upload_id, Some("video/mp4"), &held).await.expect("completed");
    let whole = bytes.concat();
    let meta = fixture.store.head(&key, None).await.expect("completed");
    assert_eq!(meta.size, whole.len() as u64);
    let grant = GetGrant {
        key: key.clone(),
        pin: Pin { etag: meta.etag, version_id: meta.version_id },
        content_type: None,
        file_name: "large.mp4".into(),
        disposition: Disposition::Attachment,
        lifetime: LIFETIME,
    };
    let answer = fixture.client().send(&fixture.store.sign_get(&grant).await.expect("signed"), b"").await;
    assert!(answer.body == whole, "{}: the bytes differ from the sent bytes", answer.status);
    // Local disk stores no types: the program knows them.
    if fixture.store.kind() != "disk" {
        assert_eq!(answer.header("content-type"), "video/mp4");
    }

    assert_eq!(unfinished(fixture, "").await, []);
    let error = parts(fixture, &key, &upload_id).await.expect_err("the upload has ended");
    assert!(matches!(error, BlobError::NotFound), "{error}");
}

pub(super) async fn a_part_of_wrong_length_is_refused_or_reported(fixture: &StoreFixture) {
    let key = key("uploads/t/u/large");
    let upload_id = started(fixture, &key).await;
    let signed = signed(fixture, &key, &upload_id, (1, 0), 10).await;
    for bytes in [&b"longer than ten"[..], b"shorter"] {
        let answer = fixture.client().send(&signed, bytes).await;
        let held = parts(fixture, &key, &upload_id).await.expect("listed");
        if fixture.store.capabilities().enforces_size {
            assert!(answer.refused(), "{}", answer.status);
            assert_eq!(held, []);
        } else {
            assert!(answer.accepted(), "{}", answer.status);
            assert_eq!(
                held.first().map(|part| part.size),
                Some(bytes.len() as u64),
                "the real size is reported"
            );
        }
    }
}

pub(super) async fn a_part_url_permits_only_the_signed_request(fixture: &StoreFixture) {
    let client = fixture.client();
    let key = key("uploads/t/u/large");
    let upload_id = started(fixture, &key).await;
    // Not at 0: `tampered` appends a zero to each value.
    let signed = signed(fixture, &key, &upload_id, (1, 4), 4).await;
    for method in ["GET", "HEAD", "DELETE", "POST"] {
        let answer = client.send_as(method, &signed, b"part").await;
        assert!(answer.refused(), "{method}: {} {}", answer.status, answer.text());
    }
    let mut others = tampered(&signed);
    if fixture.signs_every_parameter() {
        others.extend(extended(&signed));
    }
    for other in &others {
        let answer = client.send(other, b"part").await;
        assert!(answer.refused(), "{} {}\n{}", answer.status, answer.text(), other.url);
    }
    assert_eq!(parts(fixture, &key, &upload_id).await.expect("listed"), []);
    assert!(is_absent(fixture, &key).await);
    assert!(client.send(&signed, b"part").await.accepted(), "the signed request is still accepted");
    assert_eq!(parts(fixture, &key, &upload_id).await.expect("listed").len(), 1);
}

pub(super) async fn an_upload_with_a_missing_part_is_not_completed(fixture: &StoreFixture) {
    let key = key("uploads/t/u/large");
    let upload_id = started(fixture, &key).await;
    send(fixture, &key, &upload_id, (2, 0), b"the second").await;
    let held = parts(fixture, &key, &upload_id).await.expect("listed");
    let part_bytes_min = multipart(fixture).limits().part_bytes_min;
    let not_sent = Part { number: 1, size: part_bytes_min, etag: "d41d8cd98f00b204e9800998ecf8427e".into() };
    let error = multipart(fixture).complete(&key, &upload_id, None, &[not_sent, held[0].clone()]).await;
    assert!(matches!(error, Err(BlobError::NotFound)), "{error:?}");
    assert!(is_absent(fixture, &key).await);
    assert_eq!(parts(fixture, &key, &upload_id).await.expect("listed"), held, "the parts stay");

    multipart(fixture)
        .complete(&key, &upload_id, None, &held)
        .await
        .expect("completed with the existing parts");
    assert_eq!(fixture.store.head(&key, None).await.expect("completed").size, 10);
}

pub(super) async fn an_aborted_upload_leaves_nothing(fixture: &StoreFixture) {
    let (this, longer) = (key("uploads/t/u/f"), key("uploads/t/u/f2"));
    fixture.put("uploads/t/u/f", b"finished before").await;
    let first = started(fixture, &this).await;
    let second = started(fixture, &this).await;
    let others = started(fixture, &longer).await;
    send(fixture, &this, &first, (1, 0), b"part").await;
    send(fixture, &longer, &others, (1, 0), b"part").await;
    let late = signed(fixture, &this, &first, (2, 4), 4).await;

    for _ in 0..2 {
        multipart(fixture).abort_all(&this).await.expect("aborted twice");
        let left = unfinished(fixture, "uploads/t/u/f").await;
        let left: Vec<_> = left.iter().map(|upload| (upload.key.as_str(), &upload.upload_id)).collect();
        assert_eq!(left, [(longer.as_str(), &others)], "the upload of a longer key stays");
    }
    for gone in [&first, &second] {
        let error = parts(fixture, &this, gone).await.expect_err("aborted");
        assert!(matches!(error, BlobError::NotFound), "{error}");
        let error = multipart(fixture).complete(&this, gone, None, &[]).await.expect_err("aborted");
        assert!(!matches!(error, BlobError::Changed), "{error}");
    }
    // Azure has no uploads, only blocks of a blob. It accepts a late block, which belongs to no upload.
    let refused = fixture.client().send(&late, b"late").await.refused();
    assert!(refused || fixture.store.kind() == "azure", "a late part is refused");
    assert_eq!(fixture.store.head(&this, None).await.expect("kept").size, 15, "the object is unchanged");
    assert_eq!(parts(fixture, &longer, &others).await.expect("listed").len(), 1);
}

pub(super) async fn one_of_several_uploads_is_aborted(fixture: &StoreFixture) {
    let key = key("uploads/t/u/f");
    let unwanted = started(fixture, &key).await;
    let wanted = started(fixture, &key).await;
    send(fixture, &key, &wanted, (1, 0), b"kept").await;
    for _ in 0..2 {
        multipart(fixture).abort(&key, &unwanted).await.expect("aborted twice");
    }
    let left = unfinished(fixture, "").await;
    assert_eq!(left.iter().map(|upload| &upload.upload_id).collect::<Vec<_>>(), [&wanted]);
    let held = parts(fixture, &key, &wanted).await.expect("listed");
    multipart(fixture).complete(&key, &wanted, None, &held).await.expect("completed");
    assert_eq!(fixture.store.head(&key, None).await.expect("completed").size, 4);
}

pub(super) async fn unfinished_uploads_are_listed_once_each(fixture: &StoreFixture) {
    let mut all = Vec::new();
    for name in ["b", "a-", "a", "a/x", "b", "%2E", "a/y", "c", "a0", "b"] {
        let key = key(&format!("uploads/t/{name}"));
        all.push((key.as_str().to_owned(), started(fixture, &key).await));
    }
    started(fixture, &key("uploads/u/x")).await;
    let listed = unfinished(fixture, "uploads/t/").await;
    let year_2020 = 1_577_836_800_000;
    assert!(listed.iter().all(|upload| upload.started_at.is_none_or(|at| at > year_2020)), "{listed:?}");
    let mut listed: Vec<_> = listed.into_iter().map(|upload| (upload.key, upload.upload_id)).collect();
    listed.sort();
    all.sort();
    assert_eq!(listed, all);
    assert_eq!(unfinished(fixture, "uploads/t/a/").await.len(), 2);
    assert_eq!(unfinished(fixture, "uploads/unknown/").await, []);
}
