//! The examples run, and say what they should. Cargo builds them with the tests.

use std::path::PathBuf;
use std::process::Command;

/// Where Cargo puts examples: beside the folder of the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("a target folder");
    folder.join("examples").join(name)
}

#[test]
fn find_stuck() {
    let ran = Command::new(example("find_stuck")).output().expect("it runs");
    assert!(ran.status.success(), "{ran:?}");
    let said = String::from_utf8(ran.stdout).expect("text");
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        [
            "fresh.mp4: on its way",
            "in-the-queue.mp4: waits",
            "in-work.mp4: waits",
            "lost.mp4: stuck, its job was missing",
            "abandoned.mp4: stuck, its worker did not come back",
        ]
    );
}
