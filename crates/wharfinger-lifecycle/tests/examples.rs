//! Runs the examples and checks their output. Cargo builds them with the tests.

use std::path::PathBuf;
use std::process::Command;

/// The path of an example. Cargo puts examples next to the folder of the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("a target folder");
    folder.join("examples").join(name)
}

#[test]
fn find_stuck_prints_the_diagnosis_of_each_item() {
    let run = Command::new(example("find_stuck")).output().expect("the example starts");
    assert!(run.status.success(), "{run:?}");
    let output = String::from_utf8(run.stdout).expect("text");
    assert_eq!(
        output.lines().collect::<Vec<_>>(),
        [
            "fresh.mp4: in progress",
            "in-the-queue.mp4: waiting",
            "in-work.mp4: waiting",
            "lost.mp4: stuck, its job was missing",
            "abandoned.mp4: stuck, its worker stopped sending heartbeats",
        ]
    );
}
