//! A bucket that changes while it is compared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{StoreFixture, report, samples};

/// Objects come and go all the while, in front of the listing and behind it. Whatever comes is too young to be an orphan,
/// and whatever was there all the time is told as it is.
#[test]
fn what_comes_and_goes_makes_neither_orphans_nor_lost_ones() {
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
    // In the list, and in the bucket only now and then.
    for n in 0..20 {
        list.push_str(&format!("f{n:02}/coming\n"));
        std::fs::write(fixture.folder.join(format!("f{n:02}/coming")), "x").expect("an object");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let busy = {
        let (stop, folder) = (stop.clone(), fixture.folder.clone());
        std::thread::spawn(move || {
            for round in 0u64.. {
                for n in 0..20 {
                    let at = folder.join(format!("f{n:02}"));
                    std::fs::write(at.join(format!("new-{}", round % 7)), "x").expect("an object");
                    let _ = std::fs::remove_file(at.join(format!("new-{}", (round + 3) % 7)));
                    // Never away for longer than it takes to look again.
                    let coming = at.join("coming");
                    std::fs::rename(&coming, at.join("moved")).expect("moved");
                    std::fs::rename(at.join("moved"), &coming).expect("moved back");
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
        assert!(samples(&found["missing"]).iter().all(|key| key.ends_with("coming")), "{found}");
    }
    stop.store(true, Ordering::Relaxed);
    assert!(busy.join().expect("it ends") > 5, "the bucket did change");
    let found = fixture.found(&list, &[]);
    assert_eq!((&found["missing"]["keys"], &found["orphans"]["objects"]), (&0.into(), &40.into()));
}
