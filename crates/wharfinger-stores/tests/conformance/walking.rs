//! Listings of local disk, compared with a sorted list of random keys, and the files that are not listed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use futures::TryStreamExt as _;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use wharfinger_stores::{BlobStore as _, MultipartStore as _};

use super::fixture::DiskFixture;

async fn keys(disk: &DiskFixture, prefix: &str, start_after: Option<&str>) -> Vec<String> {
    let listed: Vec<_> = disk.store.list(prefix, start_after).try_collect().await.expect("listed");
    listed.into_iter().map(|listed| listed.key).collect()
}

/// A key from few characters that sort before and after the slash, so that many names are prefixes of other names.
fn any_key() -> impl Strategy<Value = String> {
    let part = prop::collection::vec(prop::sample::select(vec!["a", "b", "-", "0", "~", "%2E", "A"]), 1..4);
    prop::collection::vec(part.prop_map(|letters| letters.concat()), 1..4).prop_map(|parts| parts.join("/"))
}

/// A key or a prefix of a key.
fn any_prefix() -> impl Strategy<Value = String> {
    (any_key(), any::<prop::sample::Index>(), any::<bool>()).prop_map(|(key, cut, slash)| {
        let cut = &key[..cut.index(key.len() + 1)];
        if slash { format!("{cut}/") } else { cut.to_owned() }
    })
}

#[test]
fn a_listing_equals_the_sorted_keys() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
    let wanted =
        (prop::collection::btree_set(any_key(), 0..25), any_prefix(), prop::option::of(any_prefix()));
    let outcome = TestRunner::new(config).run(&wanted, |(keys_, prefix, start_after)| {
        let disk = DiskFixture::in_memory();
        let mut stored = BTreeSet::new();
        for key in keys_ {
            // A name is a file or a folder. If it exists already, the new key is skipped.
            let path = disk.root().join(&key);
            let folder = path.parent().expect("below the root");
            if fs::create_dir_all(folder).is_ok() && fs::File::create_new(&path).is_ok() {
                stored.insert(key);
            }
        }
        let after = start_after.as_deref().unwrap_or_default();
        let expected: Vec<String> =
            stored.into_iter().filter(|key| key.starts_with(&prefix) && key.as_str() > after).collect();
        let got = runtime.block_on(keys(&disk, &prefix, start_after.as_deref()));
        prop_assert_eq!(got, expected);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[tokio::test]
async fn other_files_are_not_listed() {
    let disk = DiskFixture::new();
    let key = disk.put("uploads/t/u/f", b"x").await;
    let folder = disk.root().join("uploads/t/u");
    fs::write(folder.join(".hidden"), b"x").expect("written");
    fs::create_dir(folder.join(".hidden-folder")).expect("made");
    fs::write(folder.join(".hidden-folder/x"), b"x").expect("written");
    fs::create_dir_all(folder.join("empty/emptier")).expect("made");
    fs::write(folder.join(std::ffi::OsStr::from_bytes(b"\xff\xfe")), b"x").expect("written");
    std::os::unix::fs::symlink("missing", folder.join("dangling")).expect("linked");
    let _incoming = disk.store.receive(super::fixture::file_id(), &key, 5, None).await.expect("started");
    disk.store.start(&key, None).await.expect("started");
    assert_eq!(keys(&disk, "", None).await, [key.as_str()]);
}
