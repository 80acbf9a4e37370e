//! A bucket that changes while it is compared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{StoreFixture, report, samples};

/// Objects appear and disappear before and behind the position of the listing. New objects are too young to be orphans.
/// Objects that do not change are reported correctly.
#[test]
fn objects_that_change_meanwhile_are_neither_orphans_nor_missing() {
    let fixture = StoreFixture::new();
    let mut list = String::new();
    for n in 0..4_000 {
        let key = format!("f{:02}/{n:05}", n % 20);
        fixture.put(&key, 3);
        if n % 100 != 0 {
            list.push_str(&key);
            list.push('\n');
        }
    }
    // These are on the list, and are sometimes missing in the bucket.
    for n in 0..20 {
        list.push_str(&format!("f{n:02}/moving\n"));
        std::fs::write(fixture.folder.join(format!("f{n:02}/moving")), "x").expect("an object");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (stop, folder) = (stop.clone(), fixture.folder.clone());
        std::thread::spawn(move || {
            for round in 0u64.. {
                for n in 0..20 {
                    let at = folder.join(format!("f{n:02}"));
                    std::fs::write(at.join(format!("new-{}", round % 7)), "x").expect("an object");
                    let _ = std::fs::remove_file(at.join(format!("new-{}", (round + 3) % 7)));
                    // Missing only for a moment, so the second check finds it.
                    let moving = at.join("moving");
                    std::fs::rename(&moving, at.join("moved")).expect("moved");
                    std::fs::rename(at.join("moved"), &moving).expect("moved back");
                }
                if stop.load(Ordering::Relaxed) {
                    return round;
                }
            }
            0
        })
    };
    for _ in 0..5 {
        let ran = fixture.compare(&list, &["--json"]);
        let found = report(&ran.expect(0));
        assert_eq!(found["orphans"]["objects"], 40, "{found}");
        assert!(samples(&found["orphans"]).iter().all(|key| key.ends_with("00")), "{found}");
        assert!(samples(&found["missing"]).iter().all(|key| key.ends_with("moving")), "{found}");
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.join().expect("the writer ends") > 5, "the bucket has changed during the test");
    let found = fixture.found(&list, &[]);
    assert_eq!((&found["missing"]["keys"], &found["orphans"]["objects"]), (&0.into(), &40.into()));
}
