//! The spool on a real disk: saved batches are found again in order, even after a crash.

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

fn events(events: u64) -> BatchContents {
    BatchContents { events, ..BatchContents::default() }
}

fn open(folder: &TempDir) -> Spool {
    Spool::open(folder.path(), PLENTY).expect("a spool")
}

/// Removes and returns all batches, the oldest first.
fn drain(spool: &Spool) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    while let Some(batch) = spool.oldest(0) {
        spool.remove(&batch.name).expect("removed");
        all.push((batch.name.to_string(), batch.events));
    }
    assert_eq!(spool.status(), SpoolStatus::default());
    all
}

/// All files below the folder except internal files of the spool.
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
fn batches_are_ordered_by_age_not_by_arrival() {
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
    let unix: Vec<String> = drain(&spool).into_iter().map(|(name, _)| name[..3].to_owned()).collect();
    assert_eq!(unix, ["100", "100", "200", "300"]);
    assert_eq!(files(folder.path()), BTreeSet::new(), "no metadata or folders remain");
    assert!(!folder.path().join("shard-00000001").exists());
}

#[test]
fn folders_have_a_size_limit_and_empty_ones_are_removed() {
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
    assert_eq!(drain(&spool).len(), SHARD_FILES_MAX + 1);
    assert_eq!(shards(), 0);
    spool.save(&name(2, 0), b"x", &events(1)).expect("a new folder is created");
    assert_eq!(shards(), 1);
}

#[test]
fn saving_the_same_name_again_replaces_the_batch() {
    let folder = folder();
    let spool = open(&folder);
    spool.save(&name(1, 1), b"first", &events(5)).expect("saved");
    spool.save(&name(2, 1), b"other", &events(5)).expect("saved");
    spool.save(&name(1, 1), b"again", &events(5)).expect("saved");
    assert_eq!(spool.status().files, 2);
    assert_eq!(spool.read(&name(1, 1)).expect("its bytes"), b"again");
}

#[test]
fn a_restart_finds_the_same_batches_with_and_without_the_journal() {
    let folder = folder();
    let spool = open(&folder);
    for counter in 0..20 {
        let tenant = if counter < 18 { "large" } else { "small" };
        let contents = BatchContents {
            events: 10 + counter as u64,
            tenants: BTreeMap::from([(tenant.to_owned(), 100)]),
        };
        spool.save(&name(100 + counter, counter as u64), b"bytes", &contents).expect("saved");
    }
    for counter in 0..5 {
        spool.remove(&name(100 + counter, counter as u64)).expect("removed");
    }
    // One tenant has 65 of the 75 bytes.
    let state = |spool: &Spool| {
        let is_over = |tenant, bytes_max| spool.shares.is_over_share(tenant, bytes_max);
        let large = [is_over("large", 93), is_over("large", 130), is_over("large", 94)];
        (spool.status(), large, is_over("small", 20), is_over("small", 19))
    };
    let before = state(&spool);
    assert_eq!((before.1, before.2, before.3), ([true, false, false], false, true));
    drop(spool);
    assert_eq!(state(&open(&folder)), before, "with the journal");
    fs::remove_file(folder.path().join(".wharfinger-journal")).expect("the journal");
    assert_eq!(state(&open(&folder)), before, "from the files alone");
    let journal = folder.path().join(".wharfinger-journal");
    let whole = fs::read(&journal).expect("rebuilt");
    fs::write(&journal, &whole[..whole.len() - 7]).expect("cut off");
    assert_eq!(state(&open(&folder)), before, "with a cut journal");
    fs::write(&journal, b"\xff\xfe+\n+x\ty\n-\n+a\tb\tc\td\n").expect("invalid lines");
    assert_eq!(state(&open(&folder)), before, "with an invalid journal");
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
    fs::remove_file(shard.join(name(1, 0).as_str())).expect("removed");
    fs::copy(shard.join(name(1, 1).as_str()), shard.join(name(5, 1).as_str())).expect("copied");
    let expected: Vec<(String, u64)> = [(1, 1, 10), (1, 2, 10), (5, 1, 1)]
        .map(|(unix, counter, n)| (name(unix, counter).to_string(), n))
        .into();
    assert_eq!(drain(&open(&folder)), expected);
}

#[test]
fn a_folder_of_another_program_is_taken_over_unchanged() {
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
    assert_eq!(drain(&spool), expected.map(|(name, events)| (name.to_owned(), events)));
    let mut left: BTreeSet<String> = foreign.map(str::to_owned).into();
    left.insert("1700000000_link_1.jsonl.gz".into());
    assert_eq!(files(folder.path()), left, "foreign files stay, leftovers of batches are removed");
    assert!(folder.path().join("1700000000_dir_1.jsonl.gz").is_dir());
}

#[test]
fn equal_names_in_two_folders_stay_two_batches() {
    let folder = folder();
    for (sub, bytes) in [("a", b"one"), ("b", b"two")] {
        fs::create_dir(folder.path().join(sub)).expect("a folder");
        fs::write(folder.path().join(sub).join("5_web_1.jsonl.gz"), bytes).expect("a file");
        fs::write(folder.path().join(sub).join("5_web_1.jsonl.gz.meta.json"), "{\"num_events\":3}")
            .expect("meta");
    }
    let names = |spool: &Spool| -> BTreeSet<Vec<u8>> {
        let mut found = BTreeSet::new();
        while let Some(batch) = spool.oldest(0) {
            assert_eq!(batch.events, 3);
            found.insert(spool.read(&batch.name).expect("bytes"));
            spool.defer(&batch.name, 1, false);
        }
        found
    };
    let both = BTreeSet::from([b"one".to_vec(), b"two".to_vec()]);
    assert_eq!(names(&open(&folder)), both);
    assert_eq!(names(&open(&folder)), both, "also after a restart");
}

#[test]
fn the_oldest_batches_make_room_and_a_batch_over_the_limit_is_refused() {
    let folder = folder();
    let spool = Spool::open(folder.path(), 100).expect("a spool");
    for counter in 0..3 {
        assert_eq!(spool.save(&name(counter, 1), &[0; 30], &events(5)).expect("saved"), Removed::default());
    }
    assert_eq!(
        spool.save(&name(9, 1), &[0; 60], &events(5)).expect("saved"),
        Removed { files: 2, events: 10 }
    );
    assert_eq!(spool.status(), SpoolStatus { files: 2, bytes: 90, events: 10, oldest_unix: Some(2) });
    assert!(matches!(spool.save(&name(9, 2), &[0; 101], &events(5)), Err(SaveError::TooLarge { .. })));
    assert_eq!(spool.status().files, 2, "nothing is removed for a batch that is too large");
    spool.defer(&name(2, 1), i64::MAX, false);
    assert_eq!(
        spool.save(&name(10, 1), &[0; 20], &events(5)).expect("saved"),
        Removed { files: 1, events: 5 }
    );
    assert_eq!(spool.status().oldest_unix, Some(9), "deferred batches make room too");
    spool.defer(&name(9, 1), i64::MAX, true);
    assert_eq!(
        spool.save(&name(11, 1), &[0; 50], &events(5)).expect("saved"),
        Removed::default(),
        "a stored batch does not count as removed"
    );
    assert_eq!(spool.status().oldest_unix, Some(10));
}

#[test]
fn batches_expire_by_the_age_in_their_name() {
    let folder = folder();
    let spool = open(&folder);
    for unix in [100, 200, 300] {
        spool.save(&name(unix, 1), b"x", &events(4)).expect("saved");
    }
    assert_eq!(spool.expire(100), Removed::default());
    assert_eq!(spool.expire(201), Removed { files: 2, events: 8 });
    assert_eq!(drain(&spool), [(name(300, 1).to_string(), 4)]);
}

#[test]
fn a_deferred_batch_does_not_block_the_others() {
    let folder = folder();
    let spool = open(&folder);
    for unix in [1, 2, 3] {
        spool.save(&name(unix, 1), b"x", &events(1)).expect("saved");
    }
    spool.defer(&name(1, 1), 1_000, false);
    spool.defer(&name(2, 1), 2_000, true);
    assert_eq!(spool.oldest(999).expect("one").name, name(3, 1));
    assert_eq!(spool.oldest(1_000).expect("one").name, name(1, 1));
    spool.remove(&name(1, 1)).expect("removed");
    let second = spool.oldest(2_000).expect("one");
    assert!(second.is_stored && second.name == name(2, 1));
    assert_eq!(spool.status().files, 2);
}

#[test]
fn two_processes_use_separate_folders_and_the_next_one_takes_both() {
    let folder = folder();
    let first = open(&folder);
    let second = open(&folder);
    first.save(&name(1, 1), b"x", &events(1)).expect("saved");
    second.save(&name(2, 1), b"x", &events(1)).expect("saved");
    assert!(second.folder().ends_with("beside-1"));
    drop(first);
    let again = open(&folder);
    assert_eq!(again.status().files, 1, "the folder of a running process is not taken");
    drop((again, second));
    let last = open(&folder);
    assert_eq!(last.status().files, 2);
    let beside = open(&folder);
    assert!(beside.folder().ends_with("beside-2"), "a locked subfolder is not given to another process");
    assert_eq!(beside.status().files, 0);
    assert_eq!(drain(&last).len(), 2);
}

#[test]
fn a_write_error_is_reported_and_keeps_the_other_batches() {
    let folder = folder();
    let spool = open(&folder);
    spool.save(&name(1, 1), b"x", &events(1)).expect("saved");
    let shard = folder.path().join("shard-00000001");
    fs::remove_dir_all(&shard).expect("removed by another program");
    assert!(matches!(spool.save(&name(2, 1), b"x", &events(1)), Err(SaveError::Disk(_))));
    spool.save(&name(2, 1), b"x", &events(1)).expect("saved in a new folder");
    assert_eq!(spool.read(&name(1, 1)).map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
    spool.remove(&name(1, 1)).expect("a missing batch counts as removed");
    assert_eq!(drain(&spool).len(), 1);
}

#[test]
fn the_next_process_finds_the_segments_of_a_crashed_process() {
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
    assert!(theirs.create(&name(1, 1)).is_err(), "a batch is created only once");
    drop((mine, segment));
    let (next, left) = SegmentFolder::open(folder.path()).expect("a folder");
    assert_eq!(left.iter().map(|left| left.name.clone()).collect::<Vec<_>>(), [name(2, 1)]);
    assert_eq!(fs::read(&left[0].path).expect("its lines"), b"{}\n{}\n");
    drop((next, theirs));
    let (_, left) = SegmentFolder::open(folder.path()).expect("a folder");
    assert_eq!(left.iter().map(|left| left.name.clone()).collect::<Vec<_>>(), [name(1, 1), name(2, 1)]);
}

#[test]
fn unreadable_folders_are_skipped() {
    let folder = folder();
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).expect("a folder");
    fs::write(folder.path().join("5_web_1.jsonl.gz"), b"x").expect("a file");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).expect("closed");
    // Root can read every folder, and finds this one empty.
    assert_eq!(open(&folder).status().files, 1);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("opened");
}
