//! Parts on local disk: faults at each step, several processes, aborts at any time, and what crashes leave behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::TryStreamExt as _;
use futures::future::join_all;
use wharfinger_calls::faults::{Fault, Faults};
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::disk::{DiskStore, IncomingError, PartPlace};
use wharfinger_stores::{BlobError, MultipartStore as _, Part};

use super::fixture::{DiskFixture, key, names_in};

const PART: usize = 1_000;
const HOUR: Duration = Duration::from_secs(3_600);

fn large() -> ObjectKey {
    key("uploads/t/u/large")
}

async fn start(disk: &DiskFixture) -> String {
    disk.store.start(&large(), None).await.expect("started")
}

/// Sends part `number` of an object whose parts have `PART` bytes, filled with `byte`.
async fn send(store: &DiskStore, upload_id: &str, number: u32, byte: u8) -> Result<Part, IncomingError> {
    let place =
        PartPlace { upload_id: upload_id.to_owned(), number, offset: u64::from(number - 1) * PART as u64 };
    let mut part = store.receive_part(&large(), &place, PART as u64).await?;
    part.bytes.write(&[byte; PART]).await?;
    store.place_part(part).await
}

async fn parts(store: &DiskStore, upload_id: &str) -> Vec<Part> {
    store.list_parts(&large(), upload_id).await.expect("listed")
}

async fn complete(store: &DiskStore, upload_id: &str) -> Result<(), BlobError> {
    let have = store.list_parts(&large(), upload_id).await?;
    store.complete(&large(), upload_id, None, &have).await
}

fn folder(disk: &DiskFixture, upload_id: &str) -> PathBuf {
    disk.root().join(".multipart").join(upload_id)
}

fn object(disk: &DiskFixture) -> Vec<u8> {
    fs::read(disk.path(&large())).expect("the object")
}

fn is_gone(error: &IncomingError) -> bool {
    matches!(error, IncomingError::Store(BlobError::NotFound))
}

fn make_old(path: &Path) {
    let file = fs::File::open(path).expect("a file or a folder");
    file.set_modified(SystemTime::now() - HOUR).expect("older");
}

/// The second part is sent twice, and each step of the second time fails in each way. A listed part is always complete:
/// the earlier or the later bytes.
#[tokio::test]
async fn a_listed_part_is_complete_after_any_fault() {
    let counting = Faults::counting();
    let disk = DiskFixture::new();
    let upload_id = start(&disk).await;
    send(&disk.faulty(counting.clone()), &upload_id, 1, 1).await.expect("stored");
    assert_eq!(counting.calls(), 4, "create, unmark, copy, mark");
    for n in 1..=counting.calls() {
        for fault in Fault::ALL {
            let moment = format!("{fault:?} at call {n}");
            let disk = DiskFixture::new();
            let upload_id = start(&disk).await;
            for number in 1..=3 {
                send(&disk.store, &upload_id, number, b'a').await.expect("stored");
            }
            let error = send(&disk.faulty(Faults::at(n, fault)), &upload_id, 2, b'b').await.err();
            assert!(
                matches!(error, Some(IncomingError::Store(BlobError::Unavailable(_)))),
                "{moment}: {error:?}"
            );

            let took_effect = matches!(fault, Fault::LoseAnswer | Fault::CrashAfter);
            let listed: Vec<u32> =
                parts(&disk.store, &upload_id).await.iter().map(|part| part.number).collect();
            let is_unmarked = n == 3 || (n == 2 && took_effect) || (n == 4 && !took_effect);
            assert_eq!(listed, if is_unmarked { vec![1, 3] } else { vec![1, 2, 3] }, "{moment}");
            let data = fs::read(folder(&disk, &upload_id).join("data")).expect("the bytes");
            let second = &data[PART..2 * PART];
            assert!(is_unmarked || second.iter().all(|byte| *byte == second[0]), "{moment}");
            assert_eq!(second == [b'b'; PART], n > 3 || (n == 3 && took_effect), "{moment}");

            // Sent again, the upload is complete.
            send(&disk.store, &upload_id, 2, b'b').await.expect("stored");
            complete(&disk.store, &upload_id).await.expect("completed");
            assert_eq!(object(&disk), [[b'a'; PART], [b'b'; PART], [b'a'; PART]].concat(), "{moment}");
            assert_eq!(disk.multipart_names(), Vec::<String>::new(), "{moment}");
        }
    }
}

#[tokio::test]
async fn an_upload_can_be_completed_after_any_fault() {
    let counting = Faults::counting();
    let disk = DiskFixture::new();
    let upload_id = start(&disk).await;
    send(&disk.store, &upload_id, 1, 1).await.expect("stored");
    complete(&disk.faulty(counting.clone()), &upload_id).await.expect("completed");
    assert_eq!(counting.calls(), 2, "link, remove");
    for n in 1..=counting.calls() {
        for fault in Fault::ALL {
            let moment = format!("{fault:?} at call {n}");
            let disk = DiskFixture::new();
            let upload_id = start(&disk).await;
            send(&disk.store, &upload_id, 1, 1).await.expect("stored");
            let first = complete(&disk.faulty(Faults::at(n, fault)), &upload_id).await;
            let took_effect = matches!(fault, Fault::LoseAnswer | Fault::CrashAfter);
            assert_eq!(first.is_ok(), n == 2, "{moment}: {first:?}");
            assert_eq!(disk.path(&large()).exists(), n == 2 || took_effect, "{moment}");

            let is_there = folder(&disk, &upload_id).exists();
            assert_eq!(is_there, n == 1 || !took_effect, "{moment}");
            if disk.path(&large()).exists() && is_there {
                // The object and the upload are the same file now. A part would change the object.
                let late = send(&disk.store, &upload_id, 1, 2).await;
                assert!(matches!(late, Err(IncomingError::Exists)), "{moment}");
            }
            match complete(&disk.store, &upload_id).await {
                Ok(()) => assert!(is_there, "{moment}"),
                Err(error) => assert!(matches!(error, BlobError::NotFound) && !is_there, "{moment}: {error}"),
            }
            assert_eq!(object(&disk), [1; PART], "{moment}");
            assert_eq!(disk.multipart_names(), Vec::<String>::new(), "{moment}");
        }
    }
}

/// A crash after the link has left the folder. Its object stays.
#[tokio::test]
async fn an_abort_never_removes_the_object() {
    let disk = DiskFixture::new();
    let upload_id = start(&disk).await;
    send(&disk.store, &upload_id, 1, 1).await.expect("stored");
    complete(&disk.faulty(Faults::at(1, Fault::CrashAfter)), &upload_id).await.expect_err("a crash");
    disk.store.abort_all(&large()).await.expect("aborted");
    assert_eq!(disk.multipart_names(), Vec::<String>::new());
    assert_eq!(object(&disk), [1; PART]);
}

#[tokio::test]
async fn an_existing_object_is_not_replaced() {
    let disk = DiskFixture::new();
    let upload_id = start(&disk).await;
    send(&disk.store, &upload_id, 1, 1).await.expect("stored");
    disk.put("uploads/t/u/large", b"another").await;
    let error = complete(&disk.store, &upload_id).await.expect_err("another object");
    assert!(matches!(error, BlobError::Changed), "{error}");
    assert_eq!(object(&disk), b"another");
    disk.store.abort(&large(), &upload_id).await.expect("aborted");
    assert_eq!(object(&disk), b"another");
}

#[tokio::test]
async fn parts_with_gaps_or_of_other_sizes_are_not_joined() {
    let disk = DiskFixture::new();
    let upload_id = start(&disk).await;
    send(&disk.store, &upload_id, 1, 1).await.expect("stored");
    send(&disk.store, &upload_id, 3, 3).await.expect("stored");
    let have = parts(&disk.store, &upload_id).await;
    let join = async |parts: &[Part]| disk.store.complete(&large(), &upload_id, None, parts).await;
    for wrong in [&have[..], &have[..1], &[]] {
        let error = join(wrong).await.expect_err("not the whole object");
        assert!(matches!(error, BlobError::Refused(_)), "{wrong:?}: {error}");
    }
    send(&disk.store, &upload_id, 2, 2).await.expect("stored");
    let have = parts(&disk.store, &upload_id).await;
    // The part was sent again after it was listed.
    let again = send(&disk.store, &upload_id, 2, 4).await.expect("stored");
    assert_ne!(again, have[1]);
    for changed in [have.clone(), [&have[..2], &[Part { size: 1, ..have[2].clone() }]].concat()] {
        let error = join(&changed).await.expect_err("not these parts");
        assert!(matches!(error, BlobError::NotFound), "{error}");
    }
    complete(&disk.store, &upload_id).await.expect("completed");
    assert_eq!(object(&disk), [[1; PART], [4; PART], [3; PART]].concat());
}

/// Two processes receive the same parts and complete the same upload.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_an_upload() {
    let disk = DiskFixture::new();
    let stores = [disk.store.clone(), Arc::new(disk.faulty(Faults::none()))];
    let upload_id = start(&disk).await;
    let calls = (0..40u32).map(|n| {
        let (store, upload_id) = (stores[n as usize % 2].clone(), upload_id.clone());
        tokio::spawn(async move { send(&store, &upload_id, 1 + n / 10, n as u8).await.expect("stored") })
    });
    join_all(calls).await.into_iter().for_each(|call| drop(call.expect("no panic")));
    let have = parts(&disk.store, &upload_id).await;
    assert_eq!(have.len(), 4);
    let (key, one, other) = (large(), &stores[0], &stores[1]);
    let (one, other) = tokio::join!(
        one.complete(&key, &upload_id, None, &have),
        other.complete(&key, &upload_id, None, &have)
    );
    let outcomes = [one, other];
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    assert!(outcomes.iter().any(|outcome| matches!(outcome, Err(BlobError::NotFound))), "{outcomes:?}");
    for (at, part) in object(&disk).chunks(PART).enumerate() {
        assert!(part.iter().all(|byte| *byte == part[0]), "part {at} is mixed");
        assert_eq!(usize::from(part[0]) / 10, at);
    }
    assert_eq!(disk.multipart_names(), Vec::<String>::new());
}

/// Another process aborts the upload while a part is copied. It waits, and then nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_waits_for_a_part_that_is_copied() {
    let disk = DiskFixture::new();
    let upload_id = start(&disk).await;
    let faults = Faults::block_at("copy part");
    let (slow, id) = (disk.faulty(faults.clone()), upload_id.clone());
    let sent = tokio::spawn(async move { send(&slow, &id, 1, 1).await });
    faults.reached().await;
    let (store, id) = (disk.store.clone(), upload_id.clone());
    let aborted = tokio::spawn(async move { store.abort(&large(), &id).await });
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert!(!aborted.is_finished());
    faults.release();
    sent.await.expect("no panic").expect("stored before the abort");
    aborted.await.expect("no panic").expect("aborted");
    assert_eq!(disk.multipart_names(), Vec::<String>::new());
    assert!(is_gone(&send(&disk.store, &upload_id, 1, 1).await.expect_err("too late")));
    assert_eq!(disk.tree(), Vec::<String>::new());
}

#[tokio::test]
async fn a_part_that_arrives_after_an_abort_leaves_nothing() {
    let disk = DiskFixture::new();
    let upload_id = start(&disk).await;
    let place = PartPlace { upload_id: upload_id.clone(), number: 1, offset: 0 };
    let mut part = disk.store.receive_part(&large(), &place, PART as u64).await.expect("started");
    part.bytes.write(&[1; PART / 2]).await.expect("written");
    disk.store.abort(&large(), &upload_id).await.expect("aborted");
    part.bytes.write(&[1; PART / 2]).await.expect("written");
    assert!(is_gone(&disk.store.place_part(part).await.expect_err("too late")));
    assert_eq!(disk.multipart_names(), Vec::<String>::new());
    assert_eq!(disk.tree(), Vec::<String>::new());
}

#[tokio::test]
async fn an_interrupted_part_leaves_the_upload_unchanged() {
    let disk = DiskFixture::new();
    let upload_id = start(&disk).await;
    send(&disk.store, &upload_id, 1, 1).await.expect("stored");
    let (before, names) = (parts(&disk.store, &upload_id).await, names_in(&folder(&disk, &upload_id)));
    let place = PartPlace { upload_id: upload_id.clone(), number: 1, offset: 0 };
    for sent in [PART - 1, PART + 1] {
        let mut part = disk.store.receive_part(&large(), &place, PART as u64).await.expect("started");
        let written = part.bytes.write(&vec![2; sent]).await;
        let outcome = disk.store.place_part(part).await.map(drop);
        assert!(written.and(outcome).is_err());
    }
    drop(disk.store.receive_part(&large(), &place, PART as u64).await.expect("started"));
    assert_eq!(parts(&disk.store, &upload_id).await, before);
    assert_eq!(names_in(&folder(&disk, &upload_id)), names);
}

/// A crash can leave a part that was being received, and a folder that was being created or removed.
#[tokio::test]
async fn leftovers_are_removed_and_the_upload_continues() {
    let disk = DiskFixture::new();
    let upload_id = start(&disk).await;
    send(&disk.store, &upload_id, 1, 1).await.expect("stored");
    let place = PartPlace { upload_id: upload_id.clone(), number: 2, offset: PART as u64 };
    let mut part = disk.store.receive_part(&large(), &place, PART as u64).await.expect("started");
    part.bytes.write(&[2; PART / 2]).await.expect("written");
    std::mem::forget(part);
    let uploads = disk.root().join(".multipart");
    let new = uploads.join(format!("new.{}", uuid::Uuid::new_v4()));
    fs::create_dir(&new).expect("a folder");
    fs::write(new.join("data"), b"").expect("written");
    assert_eq!(disk.store.remove_temporary_files(HOUR / 2).await.expect("listed"), 0, "they may be in use");

    make_old(&new);
    for name in names_in(&folder(&disk, &upload_id)) {
        make_old(&folder(&disk, &upload_id).join(name));
    }
    // A crash in the middle of an abort.
    let aborted = start(&disk).await;
    fs::rename(folder(&disk, &aborted), uploads.join(format!("gone.{aborted}"))).expect("renamed");
    assert_eq!(disk.store.remove_temporary_files(HOUR / 2).await.expect("listed"), 3);
    assert_eq!(disk.multipart_names(), [upload_id.as_str()]);
    assert_eq!(parts(&disk.store, &upload_id).await.len(), 1);
    complete(&disk.store, &upload_id).await.expect("completed");

    // A second abort also removes what a crash in the first one has left.
    let aborted = start(&disk).await;
    for way in 0..2 {
        let gone = uploads.join(format!("gone.{aborted}"));
        fs::create_dir_all(folder(&disk, &aborted)).expect("a folder");
        fs::rename(folder(&disk, &aborted), &gone).expect("renamed");
        match way {
            0 => disk.store.abort(&large(), &aborted).await.expect("aborted"),
            _ => disk.store.abort_all(&large()).await.expect("aborted"),
        }
        assert!(!gone.exists());
    }
}

/// A backup of a running server can copy the markers of parts after their bytes. Such an upload starts again.
#[tokio::test]
async fn a_copied_upload_does_not_exist() {
    let disk = DiskFixture::new();
    let upload_id = start(&disk).await;
    send(&disk.store, &upload_id, 1, 1).await.expect("stored");
    let (from, to) = (folder(&disk, &upload_id), disk.root().join("copy"));
    fs::create_dir(&to).expect("a folder");
    for name in names_in(&from) {
        fs::copy(from.join(&name), to.join(&name)).expect("copied");
    }
    fs::remove_dir_all(&from).expect("removed");
    fs::rename(&to, &from).expect("restored");
    let error = disk.store.list_parts(&large(), &upload_id).await.expect_err("a copy");
    assert!(matches!(error, BlobError::NotFound), "{error}");
    assert!(is_gone(&send(&disk.store, &upload_id, 2, 2).await.expect_err("a copy")));
    let left: Vec<_> = disk.store.list_unfinished("uploads/").try_collect().await.expect("listed");
    assert_eq!(left.len(), 1, "the sweep can abort it");
    disk.store.abort(&large(), &upload_id).await.expect("aborted");
    assert_eq!(disk.multipart_names(), Vec::<String>::new());
}

#[tokio::test]
async fn an_unreadable_upload_hides_no_other() {
    let disk = DiskFixture::new();
    let (damaged, good) = (start(&disk).await, start(&disk).await);
    fs::remove_file(folder(&disk, &damaged).join("upload")).expect("removed");
    fs::create_dir(disk.root().join(".multipart/other")).expect("a folder");
    let left: Vec<_> = disk.store.list_unfinished("").try_collect().await.expect("listed");
    assert_eq!(left.iter().map(|upload| &upload.upload_id).collect::<Vec<_>>(), [&good]);
    // All uploads of the key are found by their names.
    disk.store.abort_all(&large()).await.expect("aborted");
    assert_eq!(disk.multipart_names(), ["other"]);
}

/// Ids come from signed URLs and from the catalog. An invalid one is no path.
#[tokio::test]
async fn an_id_belongs_to_one_key() {
    let disk = DiskFixture::new();
    let upload_id = start(&disk).await;
    let other = key("uploads/t/u/other");
    for id in [upload_id.as_str(), "", ".", "..", "../uploads", &format!("{upload_id}/..")] {
        let error = disk.store.list_parts(&other, id).await.expect_err("no upload of this key");
        assert!(matches!(error, BlobError::NotFound), "{id}: {error}");
        disk.store.abort(&other, id).await.expect("nothing to do");
    }
    assert_eq!(parts(&disk.store, &upload_id).await, []);
    // An operator may remove the folder of all uploads.
    fs::remove_dir_all(disk.root().join(".multipart")).expect("removed");
    assert!(matches!(disk.store.list_parts(&large(), &upload_id).await, Err(BlobError::NotFound)));
    start(&disk).await;
}
