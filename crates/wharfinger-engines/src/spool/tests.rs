//! The spool on a real disk: what is saved is found, in order, however the process before it ended.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;

use super::*;

const PLENTY: u64 = 1 << 40;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn name(unix: i64, counter: u64) -> BatchName {
    BatchName::new(unix, "host", counter)
}

fn events(events: u64) -> Contents {
    Contents { events, ..Contents::default() }
}

fn open(folder: &TempDir) -> Spool {
    Spool::open(folder.path(), PLENTY).expect("a spool")
}

/// All batches, the oldest first, as they are taken out.
fn drained(spool: &Spool) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    while let Some(held) = spool.oldest(0) {
        spool.remove(&held.name).expect("removed");
        all.push((held.name.to_string(), held.events));
    }
    assert_eq!(spool.status(), SpoolStatus::default());
    all
}

/// Everything below the folder that is not the spool's own.
fn files(folder: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("a folder").map(|entry| entry.expect("an entry")) {
            let path = entry.path();
            let relative = path.strip_prefix(folder).expect("below it").display().to_string();
            if path.is_dir() {
                folders.push(path);
            } else if !relative.contains(".wharfinger-") {
                all.insert(relative);
            }
        }
    }
    all
}

#[test]
fn the_oldest_comes_first_whatever_came_when() {
    let folder = folder();
    let spool = open(&folder);
    for (unix, counter) in [(300, 1), (100, 9), (200, 2), (100, 10)] {
        spool.save(&name(unix, counter), format!("{unix}").as_bytes(), &events(7)).expect("saved");
    }
    assert_eq!(spool.status(), SpoolStatus { files: 4, bytes: 12, events: 28, oldest_unix: Some(100) });
    let oldest = spool.oldest(0).expect("one");
    assert_eq!((oldest.bytes, oldest.events, oldest.is_stored), (3, 7, false));
    assert_eq!(spool.read(&oldest.name).expect("its bytes"), b"100");
    let meta = fs::read_to_string(folder.path().join(format!("shard-00000001/{}{META}", oldest.name)));
    assert_eq!(meta.expect("metadata"), "{\"num_events\":7}");
    let unix: Vec<String> = drained(&spool).into_iter().map(|(name, _)| name[..3].to_owned()).collect();
    assert_eq!(unix, ["100", "100", "200", "300"]);
    assert_eq!(files(folder.path()), BTreeSet::new(), "neither metadata nor folders stay");
    assert!(!folder.path().join("shard-00000001").exists());
}

#[test]
fn no_folder_holds_more_than_is_quick_and_empty_ones_go() {
    let folder = folder();
    let spool = open(&folder);
    let shards = || {
        let entries = fs::read_dir(folder.path()).expect("the folder");
        entries.filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_dir())).count()
    };
    for counter in 0..SHARD_FILES_MAX as u64 + 1 {
        spool.save(&name(1, counter), b"x", &events(1)).expect("saved");
    }
    assert_eq!(shards(), 2);
    assert_eq!(drained(&spool).len(), SHARD_FILES_MAX + 1);
    assert_eq!(shards(), 0);
    spool.save(&name(2, 0), b"x", &events(1)).expect("and there is room again");
    assert_eq!(shards(), 1);
}

#[test]
fn the_same_batch_again_is_the_same_batch() {
    let folder = folder();
    let spool = open(&folder);
    spool.save(&name(1, 1), b"first", &events(5)).expect("saved");
    spool.save(&name(2, 1), b"other", &events(5)).expect("saved");
    spool.save(&name(1, 1), b"again", &events(5)).expect("saved");
    assert_eq!(spool.status().files, 2);
    assert_eq!(spool.read(&name(1, 1)).expect("its bytes"), b"again");
}

#[test]
fn a_restart_finds_the_same_with_and_without_its_journal() {
    let folder = folder();
    let spool = open(&folder);
    for counter in 0..20 {
        let tenant = if counter < 18 { "large" } else { "small" };
        let contents =
            Contents { events: 10 + counter as u64, tenants: BTreeMap::from([(tenant.to_owned(), 100)]) };
        spool.save(&name(100 + counter, counter as u64), b"bytes", &contents).expect("saved");
    }
    for counter in 0..5 {
        spool.remove(&name(100 + counter, counter as u64)).expect("removed");
    }
    // Of 75 bytes that are there, 65 are of one tenant.
    let seen = |spool: &Spool| {
        let is_over = |tenant, bytes_max| spool.shares.is_over(tenant, bytes_max);
        let large = [is_over("large", 93), is_over("large", 130), is_over("large", 94)];
        (spool.status(), large, is_over("small", 20), is_over("small", 19))
    };
    let before = seen(&spool);
    assert_eq!((before.1, before.2, before.3), ([true, false, false], false, true));
    drop(spool);
    assert_eq!(seen(&open(&folder)), before, "with its journal");
    fs::remove_file(folder.path().join(".wharfinger-journal")).expect("the journal");
    assert_eq!(seen(&open(&folder)), before, "from the files alone");
    let journal = folder.path().join(".wharfinger-journal");
    let whole = fs::read(&journal).expect("made anew");
    fs::write(&journal, &whole[..whole.len() - 7]).expect("cut off");
    assert_eq!(seen(&open(&folder)), before, "with one that was cut off");
    fs::write(&journal, b"\xff\xfe+\n+x\ty\n-\n+a\tb\tc\td\n").expect("nonsense");
    assert_eq!(seen(&open(&folder)), before, "with one that says nothing");
}

#[test]
fn the_files_are_the_truth_not_the_journal() {
    let folder = folder();
    let spool = open(&folder);
    for counter in 0..3 {
        spool.save(&name(1, counter), b"bytes", &events(10)).expect("saved");
    }
    drop(spool);
    let shard = folder.path().join("shard-00000001");
    fs::remove_file(shard.join(name(1, 0).as_str())).expect("taken away");
    fs::copy(shard.join(name(1, 1).as_str()), shard.join(name(5, 1).as_str())).expect("put there");
    let expected: Vec<(String, u64)> = [(1, 1, 10), (1, 2, 10), (5, 1, 1)]
        .map(|(unix, counter, n)| (name(unix, counter).to_string(), n))
        .into();
    assert_eq!(drained(&open(&folder)), expected);
}

#[test]
fn a_folder_of_another_program_is_taken_over_as_it_is() {
    let folder = folder();
    let put = |path: &str, bytes: &[u8]| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("the folder");
        fs::write(path, bytes).expect("a file");
    };
    put("1700000003_web_1_7.jsonl.gz", b"three");
    put("1700000003_web_1_7.jsonl.gz.meta.json", b"{\"num_events\": 42, \"other\": true}");
    put("1700000001_web_5.jsonl.gz", b"no metadata");
    put("old/2023/1700000002_web_6.jsonl.gz", b"broken metadata");
    put("old/2023/1700000002_web_6.jsonl.gz.meta.json", b"{\"num_ev");
    put("1700000009_gone_1.jsonl.gz.meta.json", b"{\"num_events\":1}");
    let foreign = [
        ".hidden/1700000000_x_1.jsonl.gz",
        ".1700000000_x_1.jsonl.gz",
        "README",
        "x.jsonl.gz",
        "notes.meta.json",
    ];
    for path in foreign {
        put(path, b"foreign");
    }
    put(".1700000004_web_8.jsonl.gz.wharfinger-tmp", b"half");
    fs::create_dir(folder.path().join("1700000000_dir_1.jsonl.gz"))
        .expect("a directory in the place of a file");
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("1700000000_link_1.jsonl.gz"))
        .expect("a link");

    let spool = open(&folder);
    assert_eq!(spool.status().events, 44);
    let expected = [
        ("1700000001_web_5.jsonl.gz", 1),
        ("1700000002_web_6.jsonl.gz", 1),
        ("1700000003_web_1_7.jsonl.gz", 42),
    ];
    assert_eq!(drained(&spool), expected.map(|(name, events)| (name.to_owned(), events)));
    let mut left: BTreeSet<String> = foreign.map(str::to_owned).into();
    left.insert("1700000000_link_1.jsonl.gz".into());
    assert_eq!(files(folder.path()), left, "what is foreign stays, what was left of batches goes");
    assert!(folder.path().join("1700000000_dir_1.jsonl.gz").is_dir());
}

#[test]
fn twins_in_two_folders_stay_two() {
    let folder = folder();
    for (sub, bytes) in [("a", b"one"), ("b", b"two")] {
        fs::create_dir(folder.path().join(sub)).expect("a folder");
        fs::write(folder.path().join(sub).join("5_web_1.jsonl.gz"), bytes).expect("a file");
        fs::write(folder.path().join(sub).join("5_web_1.jsonl.gz.meta.json"), "{\"num_events\":3}")
            .expect("meta");
    }
    let names = |spool: &Spool| -> BTreeSet<Vec<u8>> {
        let mut found = BTreeSet::new();
        while let Some(held) = spool.oldest(0) {
            assert_eq!(held.events, 3);
            found.insert(spool.read(&held.name).expect("bytes"));
            spool.set_aside(&held.name, 1, false);
        }
        found
    };
    let both = BTreeSet::from([b"one".to_vec(), b"two".to_vec()]);
    assert_eq!(names(&open(&folder)), both);
    assert_eq!(names(&open(&folder)), both, "and after a restart");
}

#[test]
fn the_oldest_make_room_and_what_never_fits_is_refused() {
    let folder = folder();
    let spool = Spool::open(folder.path(), 100).expect("a spool");
    for counter in 0..3 {
        assert_eq!(spool.save(&name(counter, 1), &[0; 30], &events(5)).expect("saved"), Gone::default());
    }
    assert_eq!(spool.save(&name(9, 1), &[0; 60], &events(5)).expect("saved"), Gone { files: 2, events: 10 });
    assert_eq!(spool.status(), SpoolStatus { files: 2, bytes: 90, events: 10, oldest_unix: Some(2) });
    assert!(matches!(spool.save(&name(9, 2), &[0; 101], &events(5)), Err(NotSaved::TooLarge { .. })));
    assert_eq!(spool.status().files, 2, "nothing made room for what does not fit");
    spool.set_aside(&name(2, 1), i64::MAX, false);
    assert_eq!(spool.save(&name(10, 1), &[0; 20], &events(5)).expect("saved"), Gone { files: 1, events: 5 });
    assert_eq!(spool.status().oldest_unix, Some(9), "what is set aside makes room too");
    spool.set_aside(&name(9, 1), i64::MAX, true);
    assert_eq!(
        spool.save(&name(11, 1), &[0; 50], &events(5)).expect("saved"),
        Gone::default(),
        "what is stored is not lost"
    );
    assert_eq!(spool.status().oldest_unix, Some(10));
}

#[test]
fn age_is_told_by_the_name() {
    let folder = folder();
    let spool = open(&folder);
    for unix in [100, 200, 300] {
        spool.save(&name(unix, 1), b"x", &events(4)).expect("saved");
    }
    assert_eq!(spool.expire(100), Gone::default());
    assert_eq!(spool.expire(201), Gone { files: 2, events: 8 });
    assert_eq!(drained(&spool), [(name(300, 1).to_string(), 4)]);
}

#[test]
fn one_that_cannot_be_handled_does_not_hold_up_the_others() {
    let folder = folder();
    let spool = open(&folder);
    for unix in [1, 2, 3] {
        spool.save(&name(unix, 1), b"x", &events(1)).expect("saved");
    }
    spool.set_aside(&name(1, 1), 1_000, false);
    spool.set_aside(&name(2, 1), 2_000, true);
    assert_eq!(spool.oldest(999).expect("one").name, name(3, 1));
    assert_eq!(spool.oldest(1_000).expect("one").name, name(1, 1));
    spool.remove(&name(1, 1)).expect("removed");
    let second = spool.oldest(2_000).expect("one");
    assert!(second.is_stored && second.name == name(2, 1));
    assert_eq!(spool.status().files, 2);
}

#[test]
fn two_processes_have_a_folder_each_and_the_next_takes_both() {
    let folder = folder();
    let first = open(&folder);
    let second = open(&folder);
    first.save(&name(1, 1), b"x", &events(1)).expect("saved");
    second.save(&name(2, 1), b"x", &events(1)).expect("saved");
    assert!(second.folder().ends_with("beside-1"));
    drop(first);
    let again = open(&folder);
    assert_eq!(again.status().files, 1, "the second one's are its own while it lives");
    drop((again, second));
    let last = open(&folder);
    assert_eq!(last.status().files, 2);
    let beside = open(&folder);
    assert!(beside.folder().ends_with("beside-2"), "what was taken over is not given to another");
    assert_eq!(beside.status().files, 0);
    assert_eq!(drained(&last).len(), 2);
}

#[test]
fn a_disk_that_does_not_take_it_says_so_and_keeps_the_rest() {
    let folder = folder();
    let spool = open(&folder);
    spool.save(&name(1, 1), b"x", &events(1)).expect("saved");
    let shard = folder.path().join("shard-00000001");
    fs::remove_dir_all(&shard).expect("somebody removes it");
    assert!(matches!(spool.save(&name(2, 1), b"x", &events(1)), Err(NotSaved::Disk(_))));
    spool.save(&name(2, 1), b"x", &events(1)).expect("saved, in another");
    assert_eq!(spool.read(&name(1, 1)).map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
    spool.remove(&name(1, 1)).expect("what is not there is removed");
    assert_eq!(drained(&spool).len(), 1);
}

#[test]
fn what_a_crash_left_of_segments_is_found_by_whoever_comes_next() {
    let folder = folder();
    let (mine, left) = SegmentFolder::open(folder.path()).expect("a folder");
    assert_eq!(left, []);
    let (theirs, left) = SegmentFolder::open(folder.path()).expect("another");
    assert_eq!(left, []);
    let mut segment = mine.create(&name(2, 1)).expect("a segment");
    segment
        .append(b"{}\n")
        .and_then(|()| segment.append(b"{}\n"))
        .and_then(|()| segment.sync())
        .expect("written");
    theirs.create(&name(1, 1)).expect("a segment");
    assert!(theirs.create(&name(1, 1)).is_err(), "no batch is begun twice");
    drop((mine, segment));
    let (next, left) = SegmentFolder::open(folder.path()).expect("a folder");
    assert_eq!(left.iter().map(|left| left.name.clone()).collect::<Vec<_>>(), [name(2, 1)]);
    assert_eq!(fs::read(&left[0].path).expect("its lines"), b"{}\n{}\n");
    drop((next, theirs));
    let (_, left) = SegmentFolder::open(folder.path()).expect("a folder");
    assert_eq!(left.iter().map(|left| left.name.clone()).collect::<Vec<_>>(), [name(1, 1), name(2, 1)]);
}

#[test]
fn folders_that_cannot_be_read_are_left_alone() {
    let folder = folder();
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).expect("a folder");
    fs::write(folder.path().join("5_web_1.jsonl.gz"), b"x").expect("a file");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).expect("closed");
    // Root may read everything, and then finds an empty folder.
    assert_eq!(open(&folder).status().files, 1);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("opened");
}
