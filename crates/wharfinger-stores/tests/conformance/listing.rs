//! Listings in byte order, with any prefix and any start key. Scans compare them with the catalog in this order.

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use wharfinger_stores::{BlobStore, ListedObject};

use super::fixture::StoreFixture;

async fn listed(store: &dyn BlobStore, prefix: &str, start_after: Option<&str>) -> Vec<ListedObject> {
    store.list(prefix, start_after).try_collect().await.expect("listed")
}

fn keys(listed: Vec<ListedObject>) -> Vec<String> {
    listed.into_iter().map(|listed| listed.key).collect()
}

pub(super) async fn an_empty_store_lists_nothing(fixture: &StoreFixture) {
    for prefix in ["", "uploads/", "u"] {
        assert_eq!(listed(&*fixture.store, prefix, None).await, []);
        assert_eq!(listed(&*fixture.store, prefix, Some("uploads/t")).await, []);
    }
}

/// The slash sorts between `-` and `0`, so a folder sorts differently from its name alone.
pub(super) async fn keys_are_listed_in_byte_order(fixture: &StoreFixture) {
    let mut all = [
        "derived/a",
        "uploads/A/z",
        "uploads/a%2Eb/x",
        "uploads/a-",
        "uploads/a-b/x",
        "uploads/a-b/y/z",
        "uploads/a/x",
        "uploads/a/x-",
        "uploads/a/xx",
        "uploads/a0",
        "uploads/aa/x",
        "uploads/a~/x",
        "uploads/b",
        "uploads0",
        "uploads2/x",
    ];
    for key in all {
        fixture.put(key, key.as_bytes()).await;
    }
    all.sort_unstable();
    let whole = keys(listed(&*fixture.store, "", None).await);
    assert_eq!(whole, all);

    let mut places: Vec<&str> = all.to_vec();
    places.extend([
        "",
        "a",
        "uploads",
        "uploads/",
        "uploads/a",
        "uploads/a-b",
        "uploads/a-b/",
        "uploads/a-b/y",
        "uploads/a/",
        "uploads/a/xy",
        "uploads/a.",
        "uploads/a/x/",
        "uploads1",
        "v",
        "~",
    ]);
    for prefix in &places {
        for after in &places {
            let expected: Vec<&str> =
                all.iter().copied().filter(|key| key.starts_with(prefix) && key > after).collect();
            let got = keys(listed(&*fixture.store, prefix, Some(after)).await);
            assert_eq!(got, expected, "under {prefix:?} after {after:?}");
        }
        let expected: Vec<&str> = all.iter().copied().filter(|key| key.starts_with(prefix)).collect();
        assert_eq!(keys(listed(&*fixture.store, prefix, None).await), expected, "under {prefix:?}");
    }
}

pub(super) async fn sizes_and_times_are_listed(fixture: &StoreFixture) {
    fixture.put("uploads/t/u/a", b"").await;
    fixture.put("uploads/t/u/b", b"four").await;
    let all = listed(&*fixture.store, "uploads/", None).await;
    assert_eq!(all.iter().map(|listed| listed.size).collect::<Vec<_>>(), [0, 4]);
    let year_2020 = 1_577_836_800_000;
    assert!(all.iter().all(|listed| listed.modified_at > year_2020), "{all:?}");
    assert!(all[0].modified_at <= all[1].modified_at, "{all:?}");
}

pub(super) async fn a_listing_can_be_dropped_early(fixture: &StoreFixture) {
    fixture.put("uploads/t/u/a", b"1").await;
    fixture.put("uploads/t/u/b", b"2").await;
    let mut stream = fixture.store.list("uploads/", None);
    let first = stream.try_next().await.expect("listed").expect("there are two");
    assert_eq!(first.key, "uploads/t/u/a");
    drop(stream);
    assert_eq!(listed(&*fixture.store, "", None).await.len(), 2);
}

pub(super) async fn a_listing_of_many_pages_is_complete(fixture: &StoreFixture) {
    let count = fixture.keys_per_page + 50;
    let all: Vec<String> =
        (0..count).map(|n| format!("uploads/t/u/{:06}", (n * 7_919) % 1_000_000)).collect();
    stream::iter(&all).for_each_concurrent(16, |key| async { drop(fixture.put(key, b"").await) }).await;
    fixture.put("uploads/t/v/beyond", b"").await;
    let mut sorted = all;
    sorted.sort_unstable();
    assert_eq!(keys(listed(&*fixture.store, "uploads/t/u/", None).await), sorted);
    for at in [0, fixture.keys_per_page - 1, fixture.keys_per_page, count / 2, count - 1] {
        let got = keys(listed(&*fixture.store, "uploads/t/u/", Some(&sorted[at])).await);
        assert_eq!(got, sorted[at + 1..], "after {at} of {count}");
    }
}
