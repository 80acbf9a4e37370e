//! House rules that a test can check.

mod layers;

use std::path::{Path, PathBuf};

const LINES_MAX: usize = 560;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["crates", "harness", "bench", "sim"].iter().map(|name| root().join(name)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source");
                found.push((path.strip_prefix(root()).expect("below the root").to_path_buf(), text));
            }
        }
    }
    assert!(found.len() > 50, "sources are missing");
    found
}

/// The code before the tests of the same file.
fn running_code(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

#[test]
fn every_file_starts_with_a_doc_comment() {
    for (path, text) in sources() {
        assert!(text.starts_with("//!"), "{} does not start with a //! line", path.display());
    }
}

#[test]
fn files_are_short() {
    for (path, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines: split it", path.display());
    }
}

#[test]
fn no_file_has_a_vague_name() {
    for (path, _) in sources() {
        for part in path.with_extension("").iter().filter_map(|part| part.to_str()) {
            let vague = ["util", "utils", "common", "helper", "helpers", "manager", "misc"];
            assert!(!vague.contains(&part), "{} has a vague name", path.display());
        }
    }
}

#[test]
fn no_unfinished_code_is_left() {
    for (path, text) in sources().into_iter().filter(|(path, _)| !path.ends_with("tidy.rs")) {
        // `cargo xtask prove` runs these.
        let text = text.replace("#[ignore = \"long: cargo xtask prove\"]", "");
        for word in ["todo!(", "unimplemented!(", "FIXME", "XXX", "#[ignore", "dbg!("] {
            assert!(!text.contains(word), "{} contains {word}", path.display());
        }
    }
}

#[test]
fn running_code_does_not_unwrap() {
    for (path, text) in sources() {
        if path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        assert!(
            !running_code(&text).contains(".unwrap()"),
            "{} calls unwrap: use expect and say why it cannot fail",
            path.display()
        );
    }
}

#[test]
fn only_one_module_reads_the_environment_and_one_the_clock() {
    let program = Path::new("crates/wharfinger/src");
    for (path, text) in sources().into_iter().filter(|(path, _)| path.starts_with("crates")) {
        if path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        let code = running_code(&text);
        if !path.starts_with(program.join("config")) {
            assert!(!code.contains("env::var"), "{} reads the environment", path.display());
        }
        // `skew.rs` compares this clock with the clocks of the stores.
        let skew = Path::new("crates/wharfinger-stores/src/skew.rs");
        if path != program.join("clock.rs") && path != skew {
            assert!(!code.contains("SystemTime::now"), "{} reads a clock", path.display());
            assert!(!code.contains("Utc::now"), "{} reads a clock", path.display());
        }
    }
}

#[test]
fn the_core_is_pure_and_crates_use_only_allowed_dependencies() {
    let manifest = |name: &str| {
        std::fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).expect("a manifest")
    };
    let core = manifest("wharfinger-lifecycle");
    for crate_name in ["tokio", "sqlx", "axum", "reqwest", "chrono"] {
        assert!(!core.contains(&format!("{crate_name} =")), "the core uses {crate_name}");
    }
    let program = manifest("wharfinger");
    let used = program.split("[dev-dependencies]").next().expect("a first part");
    assert!(!used.contains("sqlx ="), "the program uses a driver");
    let forbidden = [
        (
            "wharfinger-catalog",
            &["wharfinger-stores", "wharfinger-engines", "aws-sdk-s3", "redis", "lapin", "reqwest"][..],
        ),
        ("wharfinger-stores", &["wharfinger-catalog", "wharfinger-engines", "redis", "lapin", "axum"]),
        ("wharfinger-engines", &["wharfinger-catalog", "wharfinger-stores", "sqlx", "aws-sdk-s3", "axum"]),
        ("wharfinger-calls", &["wharfinger-"]),
    ];
    for (name, others) in forbidden {
        let text = manifest(name);
        let used = text.split("[dependencies]").nth(1).expect("dependencies");
        let used = used.split("[dev-dependencies]").next().expect("a first part");
        for other in others {
            assert!(!used.lines().any(|line| line.starts_with(other)), "{name} uses {other}");
        }
    }
}

/// Each row of the page must link to its test.
#[test]
fn every_link_of_the_security_page_exists() {
    let text = std::fs::read_to_string(root().join("docs/security.md")).expect("docs/security.md");
    let targets: Vec<&str> = text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(targets.len() > 20, "{targets:?}");
    for target in targets {
        assert!(root().join("docs").join(target).exists(), "docs/security.md links to {target}");
    }
    let table = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| against"));
    for row in table.filter(|row| !row.starts_with("| ---")) {
        let tests = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        assert!(tests.contains("](../crates/"), "no test is linked: {row}");
    }
}

#[test]
fn the_architecture_page_is_short_and_lists_every_folder() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    assert!(text.lines().count() < 200);
    for entry in std::fs::read_dir(root().join("crates/wharfinger/src")).expect("the program") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            assert!(text.contains(&format!("{name}/")), "{name}/ is missing");
        }
    }
}
