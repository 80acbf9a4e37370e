//! The layers of the program: each module uses those below it and none above.

use std::path::Path;

/// From the lowest to the highest layer. `the_architecture_lists_the_layers` compares the list with ARCHITECTURE.md.
const LAYERS: [&str; 24] = [
    "clock",
    "config",
    "memory_budget",
    "roles",
    "telemetry",
    "store",
    "core",
    "auth",
    "rules",
    "quota",
    "ingest",
    "uploads",
    "hooks",
    "checks",
    "batches",
    "pipeline",
    "sweeps",
    "notify",
    "dashboard",
    "app",
    "worker",
    "http",
    "demo",
    "cli",
];

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == name)
}

/// The modules that a source uses by a path from the crate root, in a `use` or in other code. `depth` is the module
/// depth of the source: that many `super` also lead to the root.
fn used_modules(text: &str, depth: usize) -> Vec<String> {
    let code: String =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join(" ");
    let up = "super::".repeat(depth);
    let mut used = Vec::new();
    for root in ["crate::", up.as_str()] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            let is_longer = before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$');
            if !is_longer {
                used.extend(first_names(&code[at + root.len()..]));
            }
        }
    }
    used
}

/// The first name of a path, or all names inside braces.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(inside) = path.strip_prefix('{') else { return vec![name(path)] };
    let (mut open, mut names) = (0, vec![name(inside)]);
    for (at, c) in inside.char_indices() {
        match c {
            '{' => open += 1,
            '}' if open == 0 => break,
            '}' => open -= 1,
            ',' if open == 0 => names.push(name(&inside[at + 1..])),
            _ => {}
        }
    }
    names
}

/// The top module of a source and its depth. None for `lib.rs` and `main.rs`.
fn top_module(path: &Path) -> Option<(String, usize)> {
    let inside = path.strip_prefix("crates/wharfinger/src").ok()?.with_extension("");
    let mut modules: Vec<&str> = inside.iter().filter_map(|part| part.to_str()).collect();
    if modules.last() == Some(&"mod") {
        modules.pop();
    }
    match modules.first() {
        None | Some(&"lib" | &"main") => None,
        Some(top) => Some(((*top).to_owned(), modules.len())),
    }
}

#[test]
fn modules_use_only_lower_layers() {
    let mut upward = Vec::new();
    for (path, text) in super::sources() {
        let Some((module, depth)) = top_module(&path) else { continue };
        let own = layer(&module).unwrap_or_else(|| panic!("{module} has no layer: put it into LAYERS"));
        for used in used_modules(&text, depth) {
            if layer(&used).is_some_and(|used| used > own) {
                upward.push(format!("{} uses {used}, which is above {module}", path.display()));
            }
        }
    }
    assert!(upward.is_empty(), "{}", upward.join("\n"));
}

#[test]
fn every_form_of_an_upward_use_is_found() {
    let is_found = |text: &str, depth| used_modules(text, depth).contains(&"http".to_owned());
    for text in [
        "use crate::http::Shared;",
        "use crate::{app, http};",
        "use crate::{\n    app::{App, open},\n    http::{self, Shared},\n};",
        "fn f() { crate::http::serve() }",
        "pub use crate::http;",
        "use super::super::http::Shared;",
    ] {
        assert!(is_found(text, 2), "{text}");
    }
    for text in [
        "// crate::http",
        "use $crate::http;",
        "use crate::app::http;",
        "use super::http;",
        "use crate::app::{http};",
    ] {
        assert!(!is_found(text, 2), "{text}");
    }
}

#[test]
fn the_architecture_lists_the_layers() {
    let text = std::fs::read_to_string(super::root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let words: Vec<&str> = text.split_whitespace().collect();
    let list = LAYERS.join(" → ");
    assert!(words.join(" ").contains(&list), "ARCHITECTURE.md does not list: {list}");
}
