//! The files in `deploy/` use only existing settings with valid values. Nothing else here runs them.

mod alerts;
mod expression;
mod metrics;

use std::path::{Path, PathBuf};

use wharfinger::config::{Flags, SETTINGS, Settings};

/// Variables that the images of the engines read.
const ENGINES: [&str; 5] = ["POSTGRES_", "REDISCLI_", "RABBITMQ_", "MINIO_", "MC_HOST_"];
const STORES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];
/// For values that the operator must set. It is long enough for any secret.
const SECRET: &str = "0123456789abcdef0123456789abcdef";

pub fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_uppercase())
        && text.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

fn setting(name: &str) -> Option<&'static str> {
    SETTINGS.iter().map(|setting| setting.env).find(|known| *known == name)
}

fn is_known(name: &str) -> bool {
    setting(name).is_some() || STORES.iter().any(|start| name.starts_with(start))
}

fn pair(line: &str, between: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(between)?;
    is_name(name).then(|| (name.to_owned(), value.trim().trim_matches('"').to_owned()))
}

/// Loads the pairs as flags, because no file and no variable of this machine overrides a flag.
fn assert_valid(origin: &str, pairs: &[(String, String)]) {
    let overrides = pairs.iter().map(|(name, value)| {
        let name = setting(name).unwrap_or_else(|| Box::leak(name.clone().into_boxed_str()));
        (name, if value.is_empty() { SECRET.to_owned() } else { value.clone() })
    });
    let flags = Flags { config: Some(deploy("../wharfinger.default.toml")), overrides: overrides.collect() };
    let settings = Settings::load(&flags).unwrap_or_else(|bad| panic!("{origin}: {bad}"));
    assert!(!settings.is_embedded(), "{origin} has settings of a single process");
    assert!(settings.quota_redis.is_some() && settings.broker_rabbit.is_some(), "{origin} lacks an engine");
    assert!(settings.shutdown_drain_ms > 0, "{origin} has no drain time for the load balancer");
}

#[test]
fn the_example_settings_are_valid() {
    let files = std::fs::read_dir(deploy("examples")).expect("examples");
    let mut seen = 0;
    for path in files.map(|entry| entry.expect("an entry").path()) {
        let (text, origin) = (read(&path), path.display().to_string());
        let pairs: Vec<_> = text.lines().filter_map(|line| pair(line, "=")).collect();
        // Users also copy the settings that are commented out.
        let hints = text.lines().filter_map(|line| pair(line.strip_prefix("# ")?, "="));
        for (name, _) in pairs.iter().cloned().chain(hints) {
            assert!(is_known(&name), "{origin}: {name} is not a setting");
        }
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            assert!(pair(line, "=").is_some(), "{origin}: {line:?} is not a setting");
        }
        assert_valid(&origin, &pairs);
        seen += 1;
    }
    assert_eq!(seen, 3);
}

/// The names in references like `${NAME:?}`.
fn referenced(text: &str) -> Vec<String> {
    let ends = |c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    let starts = text.split("${").skip(1);
    starts.map(|rest| rest.split(ends).next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_settings_of_the_compose_file_are_valid() {
    let text = read(&deploy("compose.yaml"));
    let pairs: Vec<_> = text.lines().filter_map(|line| pair(line.trim_start(), ": ")).collect();
    assert!(pairs.len() > 15, "the variables were found");
    for (name, _) in &pairs {
        let is_engines = ENGINES.iter().any(|start| name.starts_with(start));
        assert!(is_known(name) || is_engines, "compose.yaml: {name} is not a setting");
    }
    let mut known: Vec<_> = pairs.into_iter().filter(|(name, _)| is_known(name)).collect();
    for (_, value) in &mut known {
        for name in referenced(value) {
            *value = value.replace(&format!("${{{name}:?}}"), SECRET);
        }
        assert!(!value.contains('$'), "the start must fail if a secret is missing: {value}");
    }
    assert_valid("compose.yaml", &known);

    let example = read(&deploy("compose.env.example"));
    let mut given: Vec<String> = example.lines().filter_map(|line| pair(line, "=")).map(|p| p.0).collect();
    let mut used = referenced(&text);
    for names in [&mut given, &mut used] {
        names.sort();
        names.dedup();
    }
    assert_eq!(given, used, "compose.env.example has other variables than compose.yaml");
}

#[test]
fn the_systemd_units_use_only_existing_settings() {
    for name in ["wharfinger.service", "wharfinger@.service"] {
        let text = read(&deploy(name));
        let variables: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("Environment=")).collect();
        assert!(!variables.is_empty(), "{name} does not set the data folder");
        for line in variables {
            let (variable, _) = pair(line, "=").unwrap_or_else(|| panic!("{name}: {line}"));
            assert!(is_known(&variable), "{name}: {variable} is not a setting");
        }
    }
}

#[test]
fn the_container_file_uses_only_existing_settings_and_the_oldest_supported_compiler() {
    let text = read(&deploy("Containerfile"));
    let version = |line: &str| line.trim().trim_matches('"').to_owned();
    let workspace = read(&deploy("../Cargo.toml"));
    let supported = workspace.lines().find_map(|line| line.strip_prefix("rust-version = ")).map(version);
    let built_with = text.lines().find_map(|line| line.strip_prefix("ARG RUST=")).map(version);
    assert_eq!(built_with, supported, "the image is built with the oldest supported compiler");
    for word in text.split([' ', '\n', '=', '\\']).filter(|word| word.starts_with("WHARFINGER_")) {
        assert!(setting(word).is_some(), "Containerfile: {word} is not a setting");
    }
}
