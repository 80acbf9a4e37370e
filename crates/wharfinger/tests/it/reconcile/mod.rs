//! `wharfinger reconcile` as a command: on folders, on real object stores, and with every kind of list.

mod changes;
mod deleting;
mod inventories;
mod lists;
mod queries;
mod resuming;
mod stores;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::cli::program::{Place, Ran};

/// A folder that is used as a bucket, and a place to run the program in.
struct StoreFixture {
    place: Place,
    folder: PathBuf,
}

impl StoreFixture {
    fn new() -> StoreFixture {
        let place = Place::new();
        let folder = place.path().join("bucket");
        std::fs::create_dir(&folder).expect("a folder");
        StoreFixture { place, folder }
    }

    /// Creates objects that are three days old.
    fn with(keys: &[&str]) -> StoreFixture {
        let fixture = StoreFixture::new();
        for key in keys {
            fixture.put(key, 3);
        }
        fixture
    }

    fn put(&self, key: &str, days_old: u64) {
        let path = self.folder.join(key);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        std::fs::write(&path, key).expect("an object");
        age(&path, days_old);
    }

    fn has(&self, key: &str) -> bool {
        self.folder.join(key).exists()
    }

    fn url(&self) -> String {
        format!("file:{}", self.folder.display())
    }

    /// Compares with a list of this content.
    fn compare(&self, list: impl AsRef<[u8]>, more: &[&str]) -> Ran {
        self.place.write("keys", list);
        self.run(&[&["--keys", "keys"], more].concat())
    }

    fn run(&self, more: &[&str]) -> Ran {
        let url = self.url();
        self.place.run(&[&["reconcile", "--bucket", &url], more].concat())
    }

    /// Compares, and returns the report.
    fn found(&self, list: impl AsRef<[u8]>, more: &[&str]) -> Value {
        report(&self.compare(list, &[&["--json"], more].concat()).expect(0))
    }
}

fn age(path: &Path, days_old: u64) {
    let file = std::fs::File::options().write(true).open(path).expect("the file");
    file.set_modified(SystemTime::now() - Duration::from_secs(days_old * 86_400)).expect("its time");
}

#[track_caller]
fn report(ran: &Ran) -> Value {
    let mut lines = ran.json();
    assert_eq!(lines.len(), 1, "{ran:?}");
    lines.remove(0)
}

fn samples(part: &Value) -> Vec<String> {
    let keys = part["samples"].as_array().expect("a list").iter();
    keys.map(|one| one["key"].as_str().or(one.as_str()).expect("a key").to_owned()).collect()
}

/// The command fails, and its message contains these words.
#[track_caller]
fn refused(ran: Ran, words: &[&str]) {
    let ran = ran.expect(1);
    for word in words {
        assert!(ran.stderr.contains(word), "{word:?} in {ran:?}");
    }
}

#[test]
fn orphans_and_missing_keys_are_reported_by_age_and_prefix() {
    let fixture = StoreFixture::with(&["images/kept.jpg", "images/2024/orphan.jpg", "top.txt"]);
    fixture.put("images/2023/older.jpg", 400);
    fixture.put("videos/young.mp4", 0);
    std::fs::create_dir(fixture.folder.join("empty-folder")).expect("a folder");
    let found = fixture.found("images/kept.jpg\nimages/absent.jpg\n", &[]);
    assert_eq!(found["listed"]["objects"], 5);
    assert_eq!(found["kept"]["objects"], 1);
    assert_eq!(found["young"]["objects"], 1);
    let bytes = "images/2024/orphan.jpg".len() + "images/2023/older.jpg".len() + "top.txt".len();
    assert_eq!(found["orphans"]["objects"], 3);
    assert_eq!(found["orphans"]["bytes"], bytes);
    assert_eq!(samples(&found["orphans"]), ["images/2023/older.jpg", "images/2024/orphan.jpg", "top.txt"]);
    assert_eq!(samples(&found["missing"]), ["images/absent.jpg"]);
    assert_eq!((&found["missing"]["keys"], &found["missing"]["rechecked"]), (&1.into(), &1.into()));
    let of = |list: &Value, name: &str, wanted: &str| {
        let list = list.as_array().expect("a list");
        list.iter().find(|one| one[name] == wanted).map(|one| one["objects"].clone())
    };
    let orphans = &found["orphans"];
    assert_eq!(of(&orphans["byAge"], "age", "under 7 days"), Some(2.into()));
    assert_eq!(of(&orphans["byAge"], "age", "older"), Some(1.into()));
    assert_eq!(of(&orphans["byPrefix"], "prefix", "images/2024/"), Some(1.into()));
    assert_eq!(of(&orphans["byPrefix"], "prefix", ""), Some(1.into()));
    assert_eq!((&found["dryRun"], &found["deletion"]), (&true.into(), &Value::Null));
    assert!(fixture.has("images/2024/orphan.jpg"), "a report deletes nothing");
    let left: Vec<_> = std::fs::read_dir(fixture.place.path())
        .expect("the place")
        .map(|e| e.expect("one").file_name())
        .collect();
    assert!(
        left.iter()
            .all(|name| ["bucket", "keys", ".wharfinger-reconcile"].iter().any(|expected| name == expected)),
        "{left:?}"
    );
    assert!(!fixture.folder.join(".incoming").exists(), "nothing is created in the bucket");
}

#[test]
fn the_report_is_printed_as_a_table_and_csv_and_written_as_lists() {
    let fixture = StoreFixture::with(&["a/kept", "a/one, \"two\"", "b/line\nbreak"]);
    let lists = ["--orphans-to", "o.csv", "--missing-to", "m.txt"];
    let table = fixture.compare("a/kept\nabsent\n", &lists).expect(0).stdout;
    for word in ["listed", "orphans", "missing", "under 7 days", "a/", "b/", "nothing was changed"] {
        assert!(table.contains(word), "{word} in {table}");
    }
    let written = |name: &str| std::fs::read_to_string(fixture.place.path().join(name)).expect("a list");
    let rows = written("o.csv");
    assert!(rows.starts_with("key,size,modifiedAt\n\"a/one, \"\"two\"\"\",12,2"), "{rows}");
    assert!(rows.contains("\"b/line\nbreak\",12,2"), "{rows}");
    assert_eq!(written("m.txt"), "absent\n");
    let csv =
        fixture.compare("a/kept\nabsent\n", &["--format", "csv", "--orphans-to", "o.jsonl"]).expect(0).stdout;
    for row in [
        "part,name,objects,bytes",
        "total,listed,3,30",
        "total,orphans,2,24",
        "total,missing,1,0",
        "prefix,b/,1,12",
    ] {
        assert!(csv.lines().any(|line| line == row), "{row} in {csv}");
    }
    let keys: Vec<String> = written("o.jsonl")
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).expect("JSON")["key"].as_str().expect("a key").to_owned()
        })
        .collect();
    assert_eq!(keys, ["a/one, \"two\"", "b/line\nbreak"]);
    let ran = fixture.compare("a/kept\n", &["--orphans-to", "o.txt"]).expect(0);
    assert_eq!(written("o.txt"), "a/one, \"two\"\n");
    assert!(ran.stderr.contains("1 keys contain line breaks"), "{ran:?}");
}

#[test]
fn wrong_usage_is_reported_before_the_run_starts() {
    let fixture = StoreFixture::with(&["a"]);
    fixture.place.write("keys", "a\n");
    let usage = |arguments: &[&str], named: &str| {
        let ran = fixture.place.run(&[&["reconcile"], arguments].concat()).expect(2);
        assert!(ran.stderr.contains(named) && ran.stdout.is_empty(), "{named} in {ran:?}");
    };
    let url = fixture.url();
    let bucket = ["--bucket", url.as_str()];
    let with = |more: &[&'static str]| [&bucket[..], more].concat();
    usage(&["--keys", "keys"], "--bucket");
    usage(&bucket, "--keys");
    usage(&with(&["--keys", "keys", "--sql", "SELECT 1"]), "--sql");
    usage(&with(&["--sql", "SELECT 1"]), "--database");
    usage(&with(&["--sql", "SELECT 1", "--database", "mysql://x/y"]), "--database");
    usage(&with(&["--keys", "keys", "--database", "sqlite:x"]), "--database");
    usage(&with(&["--keys", "keys", "--delete"]), "--yes");
    usage(&with(&["--keys", "keys", "--yes"]), "--delete");
    usage(&with(&["--keys", "keys", "--delete", "--yes", "--allow-empty"]), "--allow-empty");
    usage(&with(&["--keys", "keys", "--delete", "--yes", "--grace", "0s"]), "duration");
    usage(&with(&["--keys", "keys", "--delete", "--yes", "--limit-percent", "0"]), "--limit-percent");
    usage(&with(&["--keys", "keys", "--null", "--column", "2"]), "--column");
    usage(&with(&["--keys", "keys", "--as-of", "yesterday"]), "2026-01-31T12:00:00Z");
    usage(&with(&["--keys", "keys", "--all-versions"]), "--delete");
    usage(&["--bucket", "bucket", "--keys", "keys"], "--bucket");
    refused(
        fixture.place.run(&["reconcile", "--bucket", "file:/not/there", "--keys", "keys"]),
        &["/not/there"],
    );
    refused(fixture.run(&["--keys", "not-there"]), &["not-there"]);
}
