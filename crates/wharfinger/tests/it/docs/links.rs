//! Checks every link from a page of the repository to a file or a heading.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

fn pages() -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() && !name.starts_with('.') && !["target", "node_modules"].contains(&name) {
                folders.push(path);
            } else if name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    found
}

/// The text without blocks of code.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The anchors of the headings, as GitHub creates them.
pub fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text);
    let headings = headings.lines().filter(|line| line.starts_with('#'));
    let name = |line: &str| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    let kept = |name: String| name.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();
    headings.map(name).map(kept).collect()
}

#[test]
fn every_link_has_a_target() {
    let (mut seen, mut broken) = (0, Vec::new());
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for link in prose(&text).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            seen += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if path.is_empty() { page.clone() } else { page.parent().expect("a folder").join(path) };
            let is_valid = target.exists()
                && (anchor.is_empty()
                    || std::fs::read_to_string(&target)
                        .is_ok_and(|text| anchors(&text).iter().any(|a| a == anchor)));
            if !is_valid {
                broken.push(format!(
                    "{}: {link}",
                    page.strip_prefix(root()).expect("below the root").display()
                ));
            }
        }
    }
    assert!(seen > 100, "the links were found: {seen}");
    assert!(broken.is_empty(), "{broken:#?}");
}
