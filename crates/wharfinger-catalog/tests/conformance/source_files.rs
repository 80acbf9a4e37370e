//! The sources of the crate. Tests read them to find calls and writes that no test covers.

use std::fs;
use std::path::{Path, PathBuf};

/// Every file below `src`, with its text.
pub(super) fn source_files() -> Vec<(PathBuf, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the folder of the sources is readable") {
            let path = entry.expect("the folder of the sources is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = fs::read_to_string(&path).expect("a source file is UTF-8");
                files.push((path, text));
            }
        }
    }
    files
}
