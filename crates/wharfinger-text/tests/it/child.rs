//! The child process: the same answers as in this one, and an end to what cannot be stopped otherwise.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Child, Command};

use wharfinger_text::child::Request;
use wharfinger_text::sandbox::Sandbox;
use wharfinger_text::{ExtractError, ExtractLimits, Extracted, child};

use super::{MB, document, limits};

const PROGRAM: &str = env!("CARGO_BIN_EXE_extract-text");

fn start(path: &Path, name: &str, limits: &ExtractLimits) -> Child {
    let mut running = child::command(Path::new(PROGRAM)).spawn().expect("a child");
    let request = Request { input: path.to_owned(), file_name: name.to_owned(), limits: limits.clone() };
    running.stdin.take().expect("a pipe").write_all(&request.to_json()).expect("asked");
    running
}

fn run(path: &Path, name: &str, limits: &ExtractLimits) -> (Result<Extracted, ExtractError>, Vec<u8>) {
    let output = start(path, name, limits).wait_with_output().expect("its end");
    (child::outcome(output.status, &output.stderr), output.stdout)
}

/// Code that a file has taken over can do nothing but go on reading it.
#[test]
fn what_is_restricted_cannot_reach_anything() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("input");
    std::fs::write(&file, "cargo\n").expect("a file");
    let output = Command::new(PROGRAM).arg("attack").arg(&file).output().expect("it runs");
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(said.contains("Sandbox { landlock: true, seccomp: true }"), "{said}");
    assert!(said.contains("NoNewPrivs:\t1"), "{said}");
    assert!(!said.contains("possible"), "{said}");
    assert!(said.contains("what was open can be written") && output.status.success(), "{said}");
    assert_eq!(std::fs::read_to_string(&file).expect("it is still there"), "cargo\nwritten\n");
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1);
}

#[test]
fn the_child_says_what_the_kernel_enforces() {
    let path = harness::documents::folder().join("notes.md");
    let output = start(&path, "notes.md", &limits()).wait_with_output().expect("its end");
    assert_eq!(child::sandbox(&output.stderr), Some(Sandbox { landlock: true, seccomp: true }));
}

/// A file name may be private.
#[test]
fn a_list_of_processes_shows_no_file_name() {
    let path = harness::documents::folder().join("notes.md");
    let mut running = child::command(Path::new(PROGRAM)).spawn().expect("a child");
    // The kernel lets `spawn` return a moment before it has set the new program's arguments.
    let arguments = || std::fs::read(format!("/proc/{}/cmdline", running.id())).expect("its arguments");
    let shown = std::iter::repeat_with(arguments).find(|shown| !shown.is_empty()).expect("never ends");
    let request = Request { input: path, file_name: "divorce.md".into(), limits: limits() };
    running.stdin.take().expect("a pipe").write_all(&request.to_json()).expect("asked");
    assert!(running.wait().expect("its end").success());
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("extract-text") && !shown.contains("notes"), "{shown}");
}

fn run_document(name: &str, limits: &ExtractLimits) -> (Result<Extracted, ExtractError>, Vec<u8>) {
    run(&harness::documents::folder().join(name), name, limits)
}

#[test]
fn the_child_reads_what_we_read() {
    for sample in harness::documents::SAMPLES {
        let (outcome, text) = run_document(sample.file, &limits());
        let (expected, expected_text) = document(sample.file).expect("read");
        assert_eq!(outcome, Ok(expected), "{}", sample.file);
        assert_eq!(String::from_utf8(text).expect("UTF-8"), expected_text, "{}", sample.file);
    }
}

#[test]
fn the_child_fails_as_we_fail() {
    for name in ["corrupted.pdf", "encrypted.docx", "picture.png", "bomb.docx", "page-bomb.pdf"] {
        let (outcome, _) = run_document(name, &limits());
        assert_eq!(outcome.expect_err("no text"), document(name).expect_err("no text"), "{name}");
    }
}

#[test]
fn a_file_that_is_not_there_may_come_back() {
    let (outcome, _) = run(Path::new("/nowhere/at/all"), "all", &limits());
    assert!(matches!(outcome, Err(ExtractError::Unavailable(_))), "{outcome:?}");
}

#[test]
fn names_are_only_names() {
    let path = harness::documents::folder().join("notes.md");
    for name in ["--help.md", "-.md", "a b\0.md", "\u{1f980}.md"] {
        let (outcome, _) = run(&path, name, &limits());
        assert_eq!(outcome.expect("read").kind, "markdown", "{name:?}");
    }
}

#[test]
fn memory_without_end_is_too_large() {
    let (outcome, _) = run_document("run-bomb.pdf", &limits());
    let Err(ExtractError::TooLarge(reason)) = &outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("memory"), "{reason}");
}

#[test]
fn time_without_end_is_too_large() {
    let (outcome, _) = run_document("endless.pdf", &ExtractLimits { time_ms_max: 1000, ..limits() });
    let Err(ExtractError::TooLarge(reason)) = &outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("time"), "{reason}");
}

#[test]
fn depth_without_end_does_no_harm() {
    // Whether it is refused or passed over: it ends, and not as something to try again.
    let (outcome, _) = run_document("deep.pdf", &limits());
    assert!(
        outcome.as_ref().is_ok_and(|e| e.bytes == 0)
            || outcome.as_ref().is_err_and(ExtractError::is_permanent),
        "{outcome:?}"
    );
}

/// Two gigabytes of text in the memory of a few documents: were more of it held than pieces, the
/// child's own limit would end it.
#[test]
fn text_of_any_length_takes_the_same_memory() {
    const LENGTH: u64 = 2048 * MB;
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let path = folder.path().join("long.txt");
    let mut file = std::fs::File::create(&path).expect("a file");
    // Blocks of text that lie apart: the holes between them read as NUL, and may be few only, so the
    // file is written out; the kernel takes the blocks it has already.
    let block = "All that lands is written down. ".repeat(32 * 1024);
    for _ in 0..LENGTH / block.len() as u64 {
        file.write_all(block.as_bytes()).expect("space");
    }
    file.seek(SeekFrom::Start(0)).expect("a file");
    let small = ExtractLimits {
        text_bytes_max: LENGTH,
        truncate_at_bytes: LENGTH,
        memory_bytes_max: 16 * MB,
        time_ms_max: 120_000,
        ..limits()
    };
    let mut running = start(&path, "long.txt", &small);
    let mut output = running.stdout.take().expect("piped");
    let mut piece = vec![0; 1024 * 1024];
    let mut length = 0;
    loop {
        match output.read(&mut piece).expect("a pipe") {
            0 => break,
            read => length += read as u64,
        }
    }
    let ended = running.wait_with_output().expect("an end");
    let extracted = child::outcome(ended.status, &ended.stderr).expect("read");
    assert_eq!((extracted.kind.as_str(), extracted.bytes, length), ("text", LENGTH, LENGTH));
}
