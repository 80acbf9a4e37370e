//! Runs the examples and checks their output. Cargo builds them with the tests.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// The path of an example. Cargo puts examples beside the folder of the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("a target folder");
    folder.join("examples").join(name)
}

#[test]
fn find_orphans() {
    let workspace = tempfile::tempdir().expect("a folder");
    let (folder, list) = (workspace.path().join("files"), workspace.path().join("list"));
    std::fs::create_dir(&folder).expect("a folder");
    let day_ago = SystemTime::now() - Duration::from_secs(86_400);
    for (name, is_old) in [("kept.jpg", true), ("old.jpg", true), ("young.jpg", false)] {
        std::fs::write(folder.join(name), name).expect("a file");
        if is_old {
            let file = std::fs::File::options().write(true).open(folder.join(name)).expect("the file");
            file.set_modified(day_ago).expect("its time");
        }
    }
    std::fs::write(&list, "kept.jpg\nabsent.jpg\nkept.jpg\n").expect("a list");
    let run = || {
        Command::new(example("find_orphans")).arg(&folder).arg(&list).output().expect("the example starts")
    };
    let ran = run();
    assert!(ran.status.success(), "{ran:?}");
    let output = String::from_utf8(ran.stdout).expect("text");
    assert_eq!(
        output.lines().collect::<Vec<_>>(),
        ["missing\tabsent.jpg", "orphan\told.jpg\t7", "orphans use 7 of 24 bytes"]
    );
    std::fs::write(&list, "").expect("a list");
    assert!(!run().status.success(), "an empty list is refused");
}
