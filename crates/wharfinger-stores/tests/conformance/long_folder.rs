//! A folder with more names than the listing holds in memory. It is listed completely and in order.

use std::fs;

use futures::{StreamExt as _, TryStreamExt as _};
use wharfinger_stores::BlobStore as _;

use super::fixture::DiskFixture;

const NAMES: usize = 200_000;

#[tokio::test]
async fn a_long_folder_is_listed_in_order() {
    let disk = DiskFixture::in_memory();
    let folder = disk.root().join("uploads/t/u");
    fs::create_dir_all(&folder).expect("made");
    // The files are created in another order than they are listed. The step and the count have no common divisor.
    for n in 0..NAMES {
        fs::File::create(folder.join(format!("{:06}", n * 7_919 % NAMES))).expect("made");
    }
    fs::write(disk.root().join("uploads/t/u-"), b"").expect("written");
    fs::write(disk.root().join("uploads/t/u0"), b"").expect("written");

    let mut next = 0;
    let mut listing = disk.store.list("uploads/t/u/", None);
    while let Some(listed) = listing.try_next().await.expect("listed") {
        assert_eq!(listed.key, format!("uploads/t/u/{next:06}"));
        next += 1;
    }
    assert_eq!(next, NAMES);

    // From the middle, and around the borders of the windows in memory, without a gap or a repetition.
    for start in [NAMES / 2, 65_534, 65_535, 65_536, 131_072, NAMES - 1] {
        let after = format!("uploads/t/u/{start:06}");
        let keys: Vec<String> = disk
            .store
            .list("uploads/", Some(&after))
            .take(3)
            .map_ok(|listed| listed.key)
            .try_collect()
            .await
            .expect("listed");
        let mut expected: Vec<String> = (start + 1..NAMES).map(|n| format!("uploads/t/u/{n:06}")).collect();
        expected.push("uploads/t/u0".into());
        expected.truncate(3);
        assert_eq!(keys, expected, "after {after}");
    }
}
