//! `--delete`: never without grace, limit and agreement, and never what is somebody's.

use super::{StoreFixture, refused, report};

fn ten(fixture: &StoreFixture) -> String {
    let keys: Vec<String> = (0..19).map(|n| format!("kept-{n}")).collect();
    for key in &keys {
        fixture.put(key, 3);
    }
    keys.iter().map(|key| format!("{key}\n")).collect()
}

#[test]
fn orphans_go_and_nothing_else() {
    let fixture = StoreFixture::with(&["folder/orphan"]);
    let list = ten(&fixture);
    fixture.put("young", 0);
    let arguments = ["--delete", "--yes", "--deleted-to", "log.jsonl"];
    let found = fixture.found(&list, &arguments);
    let deletion = &found["deletion"];
    assert_eq!(
        (&deletion["objects"], &deletion["failed"], &found["dryRun"]),
        (&1.into(), &0.into(), &false.into())
    );
    assert!(!fixture.has("folder/orphan") && fixture.has("young") && fixture.has("kept-0"));
    assert!(fixture.has("folder"), "folders of others stay");
    let log = std::fs::read_to_string(fixture.place.path().join("log.jsonl")).expect("a log");
    assert!(
        log.contains("\"folder/orphan\"") && log.contains("\"deleted\"") && log.lines().count() == 1,
        "{log}"
    );
    let again = fixture.found(&list, &arguments);
    assert_eq!(again["orphans"]["objects"], 0);
}

#[test]
fn limits_hold() {
    let fixture = StoreFixture::with(&["orphan-1", "orphan-2", "orphan-3"]);
    let list = ten(&fixture);
    let ran = fixture.compare(&list, &["--delete", "--yes", "--json"]);
    assert_eq!(report(&ran)["refused"].as_str().map(|said| said.contains("3 of 22 objects")), Some(true));
    refused(ran, &["more than 10 %", "--limit-percent"]);
    let wide = ["--delete", "--yes", "--limit-percent", "14"];
    refused(fixture.compare(&list, &[&wide[..], &["--max-deletes", "2"]].concat()), &["--max-deletes 2"]);
    assert!(fixture.has("orphan-1") && fixture.has("orphan-3"));
    fixture.compare(&list, &[&wide[..], &["--max-deletes", "3"]].concat()).expect(0);
    assert!(!fixture.has("orphan-1") && !fixture.has("orphan-3") && fixture.has("kept-18"));
}

#[test]
fn a_store_that_a_wharfinger_keeps_is_left_to_it() {
    for mark in [".wharfinger/store", "app/.wharfinger/store"] {
        let fixture = StoreFixture::with(&["orphan"]);
        let list = ten(&fixture);
        fixture.put(mark, 0);
        refused(
            fixture.compare(&list, &["--delete", "--yes"]),
            &[mark, "wharfinger sweep orphan-cleanup", "nothing was deleted"],
        );
        assert!(fixture.has("orphan"));
        assert_eq!(fixture.found(&list, &[])["orphans"]["objects"], 1, "it may be looked at");
    }
}

/// Some keys are written in another way than the bucket writes them: their objects are somebody's.
#[test]
fn what_only_looks_like_an_orphan_stays() {
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
        let list = format!("{}{key}\n", ten(&fixture));
        let wide = ["--delete", "--yes", "--limit-percent", "100"];
        refused(
            fixture.compare(&list, &wide),
            &["differ only in how they are written", "nothing was deleted"],
        );
        assert!(fixture.has(object) && fixture.has("orphan"), "{object}");
    }
}

/// However the folder itself is written.
#[test]
fn whole_paths_in_the_list_are_known_for_what_they_are() {
    let fixture = StoreFixture::with(&["photos/a.jpg", "orphan"]);
    let list = format!("{}{}\n", ten(&fixture), fixture.folder.join("photos/a.jpg").display());
    fixture.place.write("keys", list);
    let wide = ["--keys", "keys", "--delete", "--yes", "--limit-percent", "100"];
    for bucket in
        [fixture.url(), format!("{}/", fixture.url()), "file:bucket".into(), "file:./bucket/".into()]
    {
        let ran = fixture.place.run(&[&["reconcile", "--bucket", &bucket][..], &wide].concat());
        refused(ran, &["differ only in how they are written", "nothing was deleted"]);
        assert!(fixture.has("photos/a.jpg") && fixture.has("orphan"), "{bucket}");
    }
}

/// What lies in the folder and has no key would go: the list as well.
#[test]
fn the_list_itself_is_no_orphan() {
    let fixture = StoreFixture::with(&["orphan"]);
    let list = ten(&fixture);
    std::fs::write(fixture.folder.join("keys"), &list).expect("a list");
    fixture.run(&["--keys", "bucket/keys", "--delete", "--yes"]).expect_usage("lies in the folder");
    fixture
        .run(&["--sql", "SELECT 1", "--database", "sqlite:bucket/orphan", "--delete", "--yes"])
        .expect_usage("orphan");
    fixture.compare(&list, &["--delete", "--yes", "--state", "bucket/state"]).expect_usage("state");
    assert!(fixture.has("orphan") && fixture.has("keys"));
    fixture.compare(&list, &["--orphans-to", "keys"]).expect_usage("named twice");
    fixture.compare(&list, &["--orphans-to", "found", "--missing-to", "found"]).expect_usage("named twice");
    assert_eq!(std::fs::read_to_string(fixture.place.path().join("keys")).expect("a list"), list);
}

#[test]
fn a_list_that_may_have_been_cut_off_deletes_nothing() {
    let fixture = StoreFixture::with(&["orphan"]);
    let cut = ten(&fixture);
    refused(fixture.compare(cut.trim_end(), &["--delete", "--yes"]), &["cut off", "nothing was deleted"]);
    let arguments = ["reconcile", "--bucket", &fixture.url(), "--keys", "-", "--delete", "--yes"];
    fixture.place.run(&arguments).expect_usage("--delete");
    fixture.run(&["--keys", "/dev/stdin", "--delete", "--yes"]).expect_usage("--delete");
    // A quote that is missing, and rows that are lost by it.
    let quoted =
        format!("{}kept-x,\"Best of\norphan,x\nkept-y,\"Other\"\n", ten(&fixture).replace('\n', ",x\n"));
    let csv = ["--column", "1", "--delete", "--yes"];
    refused(fixture.compare(quoted, &csv), &["go over several lines", "nothing was deleted"]);
    assert!(fixture.has("orphan"));
}

/// A list that was copied looks as young as its copy, but it knows nothing of what was stored since it was made.
#[test]
fn a_list_that_may_be_older_than_its_file_deletes_nothing() {
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

/// A folder within a store is that store's.
#[test]
fn a_mark_above_a_folder_is_seen() {
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

/// What is found after the question was asked is looked at once more.
#[test]
fn on_a_terminal_it_asks_and_looks_again_at_what_changed_meanwhile() {
    let fixture = StoreFixture::with(&["changed", "gone", "orphan"]);
    let list = ten(&fixture);
    fixture.place.write("keys", &list);
    let mut refusing = Terminal::start(&fixture);
    refusing.read_until("type `delete 3`:");
    refusing.answer("yes");
    assert!(refusing.end().1.contains("nothing was deleted"));
    assert!(fixture.has("orphan"));

    let mut agreeing = Terminal::start(&fixture);
    agreeing.read_until("type `delete 3`:");
    fixture.put("changed", 2);
    std::fs::remove_file(fixture.folder.join("gone")).expect("removed");
    agreeing.answer("delete 3");
    let (code, said) = agreeing.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("deleted 1 objects") && said.contains("1 were gone already, 1 had changed"),
        "{said}"
    );
    assert!(fixture.has("changed") && !fixture.has("orphan") && fixture.has("kept-0"));
}

/// What is written to the list after it was read is not in the comparison.
#[test]
fn a_list_that_was_written_to_since_deletes_nothing() {
    let fixture = StoreFixture::with(&["orphan"]);
    let list = ten(&fixture);
    fixture.place.write("keys", &list);
    let mut agreeing = Terminal::start(&fixture);
    agreeing.read_until("type `delete 1`:");
    fixture.place.write("keys", format!("{list}orphan\n"));
    agreeing.answer("delete 1");
    let (code, said) = agreeing.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the list is another than it was") && fixture.has("orphan"), "{said}");
}

/// Ctrl-C is heard while it waits for an answer.
#[test]
fn who_is_asked_may_leave() {
    let fixture = StoreFixture::with(&["orphan"]);
    let list = ten(&fixture);
    fixture.place.write("keys", list);
    let mut leaving = Terminal::start(&fixture);
    leaving.read_until("type `delete 1`:");
    leaving.press("\u{3}");
    let (code, said) = leaving.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("interrupted") && fixture.has("orphan"), "{said}");
}

/// The program with a terminal of its own, which `script` makes.
struct Terminal {
    child: std::process::Child,
    seen: String,
}

impl Terminal {
    fn start(fixture: &StoreFixture) -> Terminal {
        let program = env!("CARGO_BIN_EXE_wharfinger");
        // In the shell's place: some shells would stay, and end of Ctrl-C themselves.
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
        Terminal { child, seen: String::new() }
    }

    fn read_until(&mut self, word: &str) {
        let out = self.child.stdout.as_mut().expect("a pipe");
        let mut byte = [0];
        let mut bytes = Vec::new();
        while !String::from_utf8_lossy(&bytes).contains(word) {
            let read = std::io::Read::read(out, &mut byte).expect("it speaks");
            assert!(read > 0, "{word:?} in {}", String::from_utf8_lossy(&bytes));
            bytes.push(byte[0]);
        }
        self.seen.push_str(&String::from_utf8_lossy(&bytes));
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
        let status = self.child.wait().expect("it ends");
        (status.code(), format!("{}{rest}", self.seen))
    }
}
