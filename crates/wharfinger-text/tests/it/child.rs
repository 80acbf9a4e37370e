//! The child process: it gives the same results as this process, and its limits stop endless work.

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
    running.stdin.take().expect("a pipe").write_all(&request.to_json()).expect("written");
    running
}

fn run(path: &Path, name: &str, limits: &ExtractLimits) -> (Result<Extracted, ExtractError>, Vec<u8>) {
    let output = start(path, name, limits).wait_with_output().expect("an exit status");
    (child::outcome(output.status, &output.stderr), output.stdout)
}

/// Hostile code in the child can only read the file that is already open.
#[test]
fn the_sandbox_blocks_files_network_and_processes() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("input");
    std::fs::write(&file, "cargo\n").expect("a file");
    let output = Command::new(PROGRAM).arg("attack").arg(&file).output().expect("it runs");
    let output_text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output_text.contains("Sandbox { landlock: true, seccomp: true }"), "{output_text}");
    assert!(output_text.contains("NoNewPrivs:\t1"), "{output_text}");
    assert!(!output_text.contains("possible"), "{output_text}");
    assert!(output_text.contains("the open file can be written") && output.status.success(), "{output_text}");
    assert_eq!(std::fs::read_to_string(&file).expect("the file is still there"), "cargo\nwritten\n");
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1);
}

#[test]
fn the_child_reports_its_sandbox() {
    let path = harness::documents::folder().join("notes.md");
    let output = start(&path, "notes.md", &limits()).wait_with_output().expect("an exit status");
    assert_eq!(child::sandbox(&output.stderr), Some(Sandbox { landlock: true, seccomp: true }));
}

/// File names can be private.
#[test]
fn the_process_list_shows_no_file_name() {
    let path = harness::documents::folder().join("notes.md");
    let mut running = child::command(Path::new(PROGRAM)).spawn().expect("a child");
    // The kernel can return from `spawn` before it has set the arguments of the new program.
    let arguments = || std::fs::read(format!("/proc/{}/cmdline", running.id())).expect("its arguments");
    let shown = std::iter::repeat_with(arguments).find(|shown| !shown.is_empty()).expect("never ends");
    let request = Request { input: path, file_name: "divorce.md".into(), limits: limits() };
    running.stdin.take().expect("a pipe").write_all(&request.to_json()).expect("written");
    assert!(running.wait().expect("an exit status").success());
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("extract-text") && !shown.contains("notes"), "{shown}");
}

fn run_document(name: &str, limits: &ExtractLimits) -> (Result<Extracted, ExtractError>, Vec<u8>) {
    run(&harness::documents::folder().join(name), name, limits)
}

#[test]
fn the_child_extracts_the_same_text_as_this_process() {
    for sample in harness::documents::SAMPLES {
        let (outcome, text) = run_document(sample.file, &limits());
        let (expected, expected_text) = document(sample.file).expect("read");
        assert_eq!(outcome, Ok(expected), "{}", sample.file);
        assert_eq!(String::from_utf8(text).expect("UTF-8"), expected_text, "{}", sample.file);
    }
}

#[test]
fn the_child_fails_with_the_same_error_as_this_process() {
    for name in ["corrupted.pdf", "encrypted.docx", "picture.png", "bomb.docx", "page-bomb.pdf"] {
        let (outcome, _) = run_document(name, &limits());
        assert_eq!(outcome.expect_err("no text"), document(name).expect_err("no text"), "{name}");
    }
}

#[test]
fn a_missing_file_is_retryable() {
    let (outcome, _) = run(Path::new("/missing/folder/file"), "all", &limits());
    assert!(matches!(outcome, Err(ExtractError::Unavailable(_))), "{outcome:?}");
}

#[test]
fn a_file_name_is_never_an_argument_or_path() {
    let path = harness::documents::folder().join("notes.md");
    for name in ["--help.md", "-.md", "a b\0.md", "\u{1f980}.md"] {
        let (outcome, _) = run(&path, name, &limits());
        assert_eq!(outcome.expect("read").kind, "markdown", "{name:?}");
    }
}

#[test]
fn too_much_memory_is_too_large() {
    let (outcome, _) = run_document("run-bomb.pdf", &limits());
    let Err(ExtractError::TooLarge(reason)) = &outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("memory"), "{reason}");
}

#[test]
fn too_much_processor_time_is_too_large() {
    let (outcome, _) = run_document("endless.pdf", &ExtractLimits { time_ms_max: 1000, ..limits() });
    let Err(ExtractError::TooLarge(reason)) = &outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("time"), "{reason}");
}

#[test]
fn a_deeply_nested_pdf_is_never_retryable() {
    // Both outcomes are correct: no text, or a permanent error.
    let (outcome, _) = run_document("deep.pdf", &limits());
    assert!(
        outcome.as_ref().is_ok_and(|e| e.bytes == 0)
            || outcome.as_ref().is_err_and(ExtractError::is_permanent),
        "{outcome:?}"
    );
}

/// 2 GiB of text with a memory limit of 16 MiB: the child would be stopped if it kept more than a few pieces in memory.
#[test]
fn text_of_any_length_takes_the_same_memory() {
    const LENGTH: u64 = 2048 * MB;
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let path = folder.path().join("long.txt");
    let mut file = std::fs::File::create(&path).expect("a file");
    // The file is written completely: holes in a sparse file read as NUL, and a file with many NUL bytes is binary.
    let block = "Every line of this text is long.".repeat(32 * 1024);
    for _ in 0..LENGTH / block.len() as u64 {
        file.write_all(block.as_bytes()).expect("enough disk space");
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
    let output = running.wait_with_output().expect("an exit status");
    let extracted = child::outcome(output.status, &output.stderr).expect("read");
    assert_eq!((extracted.kind.as_str(), extracted.bytes, length), ("text", LENGTH, LENGTH));
}
