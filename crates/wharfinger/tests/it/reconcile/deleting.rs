//! `--delete`: needs a grace, limits and a confirmation, and deletes no object in use.

use super::{StoreFixture, refused, report};

/// Puts 19 objects and returns a list of their keys.
fn kept_objects(fixture: &StoreFixture) -> String {
    let keys: Vec<String> = (0..19).map(|n| format!("kept-{n}")).collect();
    for key in &keys {
        fixture.put(key, 3);
    }
    keys.iter().map(|key| format!("{key}\n")).collect()
}

#[test]
fn only_orphans_are_deleted() {
    let fixture = StoreFixture::with(&["folder/orphan"]);
    let list = kept_objects(&fixture);
    fixture.put("young", 0);
    let arguments = ["--delete", "--yes", "--deleted-to", "log.jsonl"];
    let found = fixture.found(&list, &arguments);
    let deletion = &found["deletion"];
    assert_eq!(
        (&deletion["objects"], &deletion["failed"], &found["dryRun"]),
        (&1.into(), &0.into(), &false.into())
    );
    assert!(!fixture.has("folder/orphan") && fixture.has("young") && fixture.has("kept-0"));
    assert!(fixture.has("folder"), "folders are not deleted");
    let log = std::fs::read_to_string(fixture.place.path().join("log.jsonl")).expect("a log");
    assert!(
        log.contains("\"folder/orphan\"") && log.contains("\"deleted\"") && log.lines().count() == 1,
        "{log}"
    );
    let again = fixture.found(&list, &arguments);
    assert_eq!(again["orphans"]["objects"], 0);
}

#[test]
fn nothing_is_deleted_above_a_limit() {
    let fixture = StoreFixture::with(&["orphan-1", "orphan-2", "orphan-3"]);
    let list = kept_objects(&fixture);
    let ran = fixture.compare(&list, &["--delete", "--yes", "--json"]);
    assert_eq!(report(&ran)["refused"].as_str().map(|text| text.contains("3 of 22 objects")), Some(true));
    refused(ran, &["more than 10 %", "--limit-percent"]);
    let wide = ["--delete", "--yes", "--limit-percent", "14"];
    refused(fixture.compare(&list, &[&wide[..], &["--max-deletes", "2"]].concat()), &["--max-deletes 2"]);
    assert!(fixture.has("orphan-1") && fixture.has("orphan-3"));
    fixture.compare(&list, &[&wide[..], &["--max-deletes", "3"]].concat()).expect(0);
    assert!(!fixture.has("orphan-1") && !fixture.has("orphan-3") && fixture.has("kept-18"));
}

#[test]
fn nothing_is_deleted_in_a_store_of_a_wharfinger() {
    for marker in [".wharfinger/store", "app/.wharfinger/store"] {
        let fixture = StoreFixture::with(&["orphan"]);
        let list = kept_objects(&fixture);
        fixture.put(marker, 0);
        refused(
            fixture.compare(&list, &["--delete", "--yes"]),
            &[marker, "wharfinger sweep orphan-cleanup", "nothing was deleted"],
        );
        assert!(fixture.has("orphan"));
        assert_eq!(fixture.found(&list, &[])["orphans"]["objects"], 1, "the report is allowed");
    }
}

/// The list spells some keys in another way than the bucket, so their objects are in use.
#[test]
fn nothing_is_deleted_if_the_list_uses_another_spelling() {
    for (object, key) in [
        ("photos/e\u{301}te.jpg", "photos/\u{e9}te.jpg"),
        ("photos/a b.jpg", "photos/a%20b.jpg"),
        ("photos/c.jpg", "/photos/c.jpg"),
        ("photos/D.JPG", "photos/d.jpg"),
        ("photos/e f.jpg", "photos/e+f.jpg"),
        ("photos/g.jpg", "photos//g.jpg"),
        ("photos/h,i.jpg", "\"photos/h,i.jpg\""),
        ("photos/j.jpg", "\u{feff}photos/j.jpg"),
        ("photos/k.jpg", "photos/k.jpg "),
        ("photos/l.jpg", "./photos/l.jpg"),
        ("photos/m.jpg", "photos\\m.jpg"),
        ("photos/n.jpg", "https://cdn.example/photos/n.jpg"),
    ] {
        let fixture = StoreFixture::with(&[object, "orphan"]);
        let list = format!("{}{key}\n", kept_objects(&fixture));
        let wide = ["--delete", "--yes", "--limit-percent", "100"];
        refused(fixture.compare(&list, &wide), &["differ only in spelling", "nothing was deleted"]);
        assert!(fixture.has(object) && fixture.has("orphan"), "{object}");
    }
}

/// The spelling of the bucket's own path does not matter.
#[test]
fn complete_paths_in_the_list_are_recognized() {
    let fixture = StoreFixture::with(&["photos/a.jpg", "orphan"]);
    let list = format!("{}{}\n", kept_objects(&fixture), fixture.folder.join("photos/a.jpg").display());
    fixture.place.write("keys", list);
    let wide = ["--keys", "keys", "--delete", "--yes", "--limit-percent", "100"];
    for bucket in
        [fixture.url(), format!("{}/", fixture.url()), "file:bucket".into(), "file:./bucket/".into()]
    {
        let ran = fixture.place.run(&[&["reconcile", "--bucket", &bucket][..], &wide].concat());
        refused(ran, &["differ only in spelling", "nothing was deleted"]);
        assert!(fixture.has("photos/a.jpg") && fixture.has("orphan"), "{bucket}");
    }
}

/// A list inside the folder has no key, so it would be deleted.
#[test]
fn a_list_inside_the_bucket_is_rejected() {
    let fixture = StoreFixture::with(&["orphan"]);
    let list = kept_objects(&fixture);
    std::fs::write(fixture.folder.join("keys"), &list).expect("a list");
    fixture.run(&["--keys", "bucket/keys", "--delete", "--yes"]).expect_usage("is inside the folder");
    fixture
        .run(&["--sql", "SELECT 1", "--database", "sqlite:bucket/orphan", "--delete", "--yes"])
        .expect_usage("orphan");
    fixture.compare(&list, &["--delete", "--yes", "--state", "bucket/state"]).expect_usage("state");
    assert!(fixture.has("orphan") && fixture.has("keys"));
    fixture.compare(&list, &["--orphans-to", "keys"]).expect_usage("used twice");
    fixture.compare(&list, &["--orphans-to", "found", "--missing-to", "found"]).expect_usage("used twice");
    assert_eq!(std::fs::read_to_string(fixture.place.path().join("keys")).expect("a list"), list);
}

#[test]
fn nothing_is_deleted_if_the_list_may_be_cut_off() {
    let fixture = StoreFixture::with(&["orphan"]);
    let truncated = kept_objects(&fixture);
    refused(
        fixture.compare(truncated.trim_end(), &["--delete", "--yes"]),
        &["cut off", "nothing was deleted"],
    );
    let arguments = ["reconcile", "--bucket", &fixture.url(), "--keys", "-", "--delete", "--yes"];
    fixture.place.run(&arguments).expect_usage("--delete");
    fixture.run(&["--keys", "/dev/stdin", "--delete", "--yes"]).expect_usage("--delete");
    // A closing quote is missing, so rows are lost.
    let quoted = format!(
        "{}kept-x,\"Best of\norphan,x\nkept-y,\"Other\"\n",
        kept_objects(&fixture).replace('\n', ",x\n")
    );
    let csv = ["--column", "1", "--delete", "--yes"];
    refused(fixture.compare(quoted, &csv), &["have several lines", "nothing was deleted"]);
    assert!(fixture.has("orphan"));
}

/// A copied list has the time of the copy, but it lacks objects that were stored after the original was made.
#[test]
fn nothing_is_deleted_if_the_list_may_be_older_than_its_file() {
    let fixture = StoreFixture::new();
    let mut list = String::new();
    for n in 0..19 {
        fixture.put(&format!("kept-{n}"), 10);
        list.push_str(&format!("kept-{n}\n"));
    }
    fixture.put("stored-since", 3);
    let delete = ["--delete", "--yes"];
    refused(fixture.compare(&list, &delete), &["older than it seems", "--as-of", "nothing was deleted"]);
    let days_ago = |days: u64| {
        let at = std::time::SystemTime::now() - std::time::Duration::from_secs(days * 86_400);
        let at = at.duration_since(std::time::UNIX_EPOCH).expect("a time").as_millis() as i64;
        chrono::DateTime::from_timestamp_millis(at).expect("a time").to_rfc3339()
    };
    let found = fixture.found(&list, &[&delete[..], &["--as-of", &days_ago(5)]].concat());
    assert_eq!((&found["orphans"]["objects"], &found["young"]["objects"]), (&0.into(), &1.into()));
    assert!(fixture.has("stored-since"));
    let found = fixture.found(&list, &[&delete[..], &["--as-of", &days_ago(0)]].concat());
    assert_eq!(found["deletion"]["objects"], 1);
    assert!(!fixture.has("stored-since") && fixture.has("kept-0"));
}

/// A folder inside a store belongs to that store.
#[test]
fn a_marker_above_the_folder_is_found() {
    let fixture = StoreFixture::with(&["uploads/orphan"]);
    fixture.put(".wharfinger/store", 0);
    for n in 0..19 {
        fixture.put(&format!("uploads/kept-{n}"), 3);
    }
    let list: Vec<String> = (0..19).map(|n| format!("kept-{n}")).collect();
    fixture.place.write("keys", list.join("\n"));
    let below = format!("{}/uploads", fixture.url());
    let ran = fixture.place.run(&["reconcile", "--bucket", &below, "--keys", "keys", "--delete", "--yes"]);
    refused(ran, &["wharfinger sweep orphan-cleanup"]);
    assert!(fixture.has("uploads/orphan"));
}

#[test]
fn a_delete_asks_first_and_checks_each_object_again_after_the_answer() {
    let fixture = StoreFixture::with(&["changed", "removed", "orphan"]);
    let list = kept_objects(&fixture);
    fixture.place.write("keys", &list);
    let mut declining = Terminal::start(&fixture);
    declining.read_until("Type `delete 3`");
    declining.answer("yes");
    assert!(declining.end().1.contains("nothing was deleted"));
    assert!(fixture.has("orphan"));

    let mut confirming = Terminal::start(&fixture);
    confirming.read_until("Type `delete 3`");
    fixture.put("changed", 2);
    std::fs::remove_file(fixture.folder.join("removed")).expect("removed");
    confirming.answer("delete 3");
    let (code, output) = confirming.end();
    assert_eq!(code, Some(0), "{output}");
    assert!(
        output.contains("deleted 1 objects") && output.contains("1 were already deleted, 1 have changed"),
        "{output}"
    );
    assert!(fixture.has("changed") && !fixture.has("orphan") && fixture.has("kept-0"));
}

#[test]
fn nothing_is_deleted_if_the_list_changes_after_it_was_read() {
    let fixture = StoreFixture::with(&["orphan"]);
    let list = kept_objects(&fixture);
    fixture.place.write("keys", &list);
    let mut confirming = Terminal::start(&fixture);
    confirming.read_until("Type `delete 1`");
    fixture.place.write("keys", format!("{list}orphan\n"));
    confirming.answer("delete 1");
    let (code, output) = confirming.end();
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("the list has changed since it was read") && fixture.has("orphan"), "{output}");
}

#[test]
fn ctrl_c_ends_the_question() {
    let fixture = StoreFixture::with(&["orphan"]);
    let list = kept_objects(&fixture);
    fixture.place.write("keys", list);
    let mut terminal = Terminal::start(&fixture);
    terminal.read_until("Type `delete 1`");
    terminal.press("\u{3}");
    let (code, output) = terminal.end();
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("interrupted") && fixture.has("orphan"), "{output}");
}

/// The program on a pseudo-terminal, which `script` creates.
struct Terminal {
    child: std::process::Child,
    output: String,
}

impl Terminal {
    fn start(fixture: &StoreFixture) -> Terminal {
        let program = env!("CARGO_BIN_EXE_wharfinger");
        // `exec` replaces the shell, because some shells would handle Ctrl-C themselves.
        let command = format!(
            "exec {program} reconcile --bucket {} --keys keys --delete --limit-percent 20",
            fixture.url()
        );
        let child = std::process::Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .current_dir(fixture.place.path())
            .env("HOME", fixture.place.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("`script` runs");
        Terminal { child, output: String::new() }
    }

    fn read_until(&mut self, word: &str) {
        let out = self.child.stdout.as_mut().expect("a pipe");
        let mut byte = [0];
        let mut bytes = Vec::new();
        while !String::from_utf8_lossy(&bytes).contains(word) {
            let read = std::io::Read::read(out, &mut byte).expect("output");
            assert!(read > 0, "{word:?} in {}", String::from_utf8_lossy(&bytes));
            bytes.push(byte[0]);
        }
        self.output.push_str(&String::from_utf8_lossy(&bytes));
    }

    fn answer(&mut self, text: &str) {
        self.press(&format!("{text}\n"));
    }

    fn press(&mut self, keys: &str) {
        let input = self.child.stdin.as_mut().expect("a pipe");
        std::io::Write::write_all(input, keys.as_bytes()).expect("written");
    }

    fn end(mut self) -> (Option<i32>, String) {
        let rest = std::io::read_to_string(self.child.stdout.take().expect("a pipe")).expect("text");
        let status = self.child.wait().expect("the program ends");
        (status.code(), format!("{}{rest}", self.output))
    }
}
