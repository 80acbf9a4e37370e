//! Lists of keys: unsorted, with duplicates, in other spellings, empty, and of another bucket.

use super::{StoreFixture, refused, samples};

#[test]
fn order_and_duplicates_do_not_matter() {
    let keys: Vec<String> = (0..3_000).map(|n| format!("f/{:04}", n * 7 % 3_000)).collect();
    let fixture = StoreFixture::with(&keys[..50].iter().map(String::as_str).collect::<Vec<_>>());
    fixture.put("f/orphan", 3);
    let mut list = keys.join("\n");
    list.push('\n');
    list.push_str(&keys[..100].join("\n"));
    let found = fixture.found(&list, &[]);
    assert_eq!(samples(&found["orphans"]), ["f/orphan"]);
    assert_eq!((&found["kept"]["objects"], &found["missing"]["keys"]), (&50.into(), &2_950.into()));
    assert_eq!((&found["keys"]["count"], &found["keys"]["duplicates"]), (&3_000.into(), &100.into()));
}

#[test]
fn an_empty_list_is_refused() {
    let fixture = StoreFixture::with(&["a", "b"]);
    for list in ["", "\n\n", "\u{feff}"] {
        refused(fixture.compare(list, &[]), &["the list of keys is empty"]);
        refused(fixture.compare(list, &["--delete", "--yes", "--limit-percent", "100"]), &["empty"]);
    }
    let output = super::report(&fixture.compare("", &["--json"]).expect(1));
    assert!(
        output["refused"].as_str().is_some_and(|why| why.contains("empty")),
        "the JSON output has the reason: {output}"
    );
    let found = fixture.found("", &["--allow-empty"]);
    assert_eq!(found["orphans"]["objects"], 2, "--allow-empty shows the report");
    assert!(fixture.has("a") && fixture.has("b"));
}

#[test]
fn a_list_without_any_key_of_the_bucket_is_refused_with_a_hint() {
    let fixture = StoreFixture::with(&["images/a b.jpg", "images/caf\u{e9}.jpg"]);
    let address = format!("{}/images/a b.jpg", fixture.folder.canonicalize().expect("a path").display());
    let cases = [
        ("/images/a b.jpg", "--strip-prefix /"),
        ("a b.jpg", "--key-prefix"),
        ("images/a%20b.jpg", "--percent-encoded"),
        ("images/cafe\u{301}.jpg", "NFC and NFD"),
        ("IMAGES/A B.JPG", "upper and lower case"),
        (address.as_str(), "--strip-prefix"),
        ("nothing/alike", "Is it the right bucket?"),
    ];
    for (key, hint) in cases {
        refused(fixture.compare(key, &[]), &["none of the 1 keys", hint]);
        refused(
            fixture.compare(key, &["--delete", "--yes", "--limit-percent", "100"]),
            &["none of the 1 keys"],
        );
    }
    let found = fixture.found("nothing/alike", &["--allow-empty"]);
    assert_eq!((&found["orphans"]["objects"], &found["missing"]["keys"]), (&2.into(), &1.into()));
    assert!(fixture.has("images/a b.jpg"));
}

#[test]
fn keys_are_converted_to_the_buckets_spelling() {
    let fixture = StoreFixture::with(&["images/a b+c.jpg", "images/d.jpg", "images/orphan.jpg"]);
    let orphans = |list: &str, more: &[&str]| samples(&fixture.found(list, more)["orphans"]);
    assert_eq!(orphans("/images/a b+c.jpg\n/images/d.jpg", &["--strip-prefix", "/"]), ["images/orphan.jpg"]);
    assert_eq!(orphans("a b+c.jpg\nd.jpg", &["--key-prefix", "images/"]), ["images/orphan.jpg"]);
    assert_eq!(orphans("images%2Fa%20b+c.jpg\nimages/d.jpg", &["--percent-encoded"]), ["images/orphan.jpg"]);
    let cdn = ["--strip-prefix", "https://cdn.example/", "--percent-encoded", "--key-prefix", "images/"];
    let list =
        "https://cdn.example/a%20b%2Bc.jpg\nhttps://cdn.example/d.jpg\nhttps://elsewhere.example/x.jpg";
    let found = fixture.found(list, &cdn);
    assert_eq!(samples(&found["orphans"]), ["images/orphan.jpg"]);
    assert_eq!(found["keys"]["unstripped"], 1);
    refused(
        fixture.compare(list, &[&cdn[..], &["--delete", "--yes", "--limit-percent", "100"]].concat()),
        &["1 keys of the list do not begin with --strip-prefix"],
    );
    assert!(fixture.has("images/orphan.jpg"));
    refused(fixture.compare("images/100%", &["--percent-encoded"]), &["not percent-encoded"]);
    let other = ["--strip-prefix", "https://elsewhere.example/"];
    refused(fixture.compare("/images/d.jpg", &other), &["none of the 1 keys", "elsewhere.example"]);
}

#[test]
fn other_encodings_are_read_or_rejected_with_the_line() {
    let fixture = StoreFixture::with(&["caf\u{e9}", "b", "orphan"]);
    let found = |list: &[u8]| samples(&fixture.found(list, &[])["orphans"]);
    assert_eq!(found("\u{feff}caf\u{e9}\r\nb\r\n".as_bytes()), ["orphan"]);
    refused(fixture.compare(b"b\ncaf\xe9\n", &[]), &["line 2 is not UTF-8", "iconv"]);
    refused(fixture.compare(b"\xff\xfeb\0\n\0", &[]), &["UTF-16"]);
    refused(fixture.compare(vec![b'x'; 100_000], &[]), &["line 1 is longer than the longest key"]);
    let states = fixture.place.path().join(".wharfinger-reconcile");
    let left: Vec<_> = std::fs::read_dir(states).into_iter().flatten().collect();
    assert!(left.is_empty(), "a rejected list leaves no state: {left:?}");
}

#[test]
fn csv_nul_and_standard_input_are_read() {
    let fixture = StoreFixture::with(&["a,b", "c\nd", "orphan"]);
    let list = "id,key\n1,\"a,b\"\n2,\"c\nd\"\n";
    assert_eq!(samples(&fixture.found(list, &["--column", "key"])["orphans"]), ["orphan"]);
    assert_eq!(samples(&fixture.found("a,b\0c\nd\0", &["--null"])["orphans"]), ["orphan"]);
    fixture.place.write("keys.csv", "\"a,b\"\n\"c\nd\"\n");
    let ran = fixture.run(&["--keys", "keys.csv", "--json"]).expect(0);
    assert_eq!(samples(&super::report(&ran)["orphans"]), ["orphan"]);
    refused(fixture.compare(list, &["--column", "path"]), &["no column `path`", "id, key"]);
    // Keys with commas but without quotes would be truncated.
    fixture.place.write("keys.csv", "orphan\na,b\n");
    refused(fixture.run(&["--keys", "keys.csv", "--json"]), &["2"]);

    let mut command =
        fixture.place.command(&["reconcile", "--bucket", &fixture.url(), "--keys", "-", "-0", "--json"]);
    let mut child = command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut stdin, b"a,b\0c\nd\0").expect("written");
    drop(stdin);
    let ran = crate::cli::program::Ran::from(child.wait_with_output().expect("the program ends")).expect(0);
    assert_eq!(samples(&super::report(&ran)["orphans"]), ["orphan"]);
}

#[test]
fn broken_links_are_not_objects() {
    let fixture = StoreFixture::with(&["kept", "orphan"]);
    let too_long_name = "n".repeat(300);
    for (to, name) in [
        ("loop", "loop"),
        ("absent", "dangling"),
        ("kept/below", "through-a-file"),
        (&too_long_name, "to-a-name-that-is-too-long"),
    ] {
        std::os::unix::fs::symlink(to, fixture.folder.join(name)).expect("a link");
    }
    let found = fixture.found("kept\n", &[]);
    assert_eq!(found["listed"]["objects"], 2);
    assert_eq!(samples(&found["orphans"]), ["orphan"]);
}

/// At most the first thousand missing keys are checked again.
#[test]
fn the_report_says_how_many_missing_keys_were_checked_again() {
    let fixture = StoreFixture::with(&["kept"]);
    let absent: String = (0..1_500).map(|n| format!("absent-{n}\n")).collect();
    let ran = fixture.compare(format!("kept\n{absent}"), &[]).expect(0);
    assert!(ran.stdout.contains("keys without an object; 1000 were checked again"), "{ran:?}");
}

/// A list is as old as its file, and lacks objects that were stored later.
#[test]
fn an_object_that_is_younger_than_the_list_is_not_an_orphan() {
    let fixture = StoreFixture::with(&["kept", "old"]);
    let list = fixture.place.write("keys", "kept\n");
    super::age(&list, 2);
    fixture.put("between", 1);
    let found = super::report(&fixture.run(&["--keys", "keys", "--json", "--grace", "1h"]).expect(0));
    assert_eq!(samples(&found["orphans"]), ["old"]);
    assert_eq!(found["young"]["objects"], 1);
}
