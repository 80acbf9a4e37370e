//! The alerts, judged by Prometheus's own tool, and their runbooks, which must be there when somebody needs them.

use std::collections::BTreeSet;

use harness::promtool::Promtool;

use super::{deploy, read};
use crate::docs::anchors;

/// Alerts with their expressions, as the file has them.
pub fn expressions(rules: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let (mut alert, mut block) = (String::new(), None::<usize>);
    for line in rules.lines() {
        let (depth, text) = (line.len() - line.trim_start().len(), line.trim_start());
        if let Some(name) = text.strip_prefix("- alert: ") {
            (alert, block) = (name.to_owned(), None);
        } else if let Some(inline) = text.strip_prefix("expr: ") {
            block = (inline == "|").then_some(depth);
            let first = if inline == "|" { String::new() } else { inline.to_owned() };
            found.push((alert.clone(), first));
        } else if block.is_some_and(|outer| depth > outer) {
            let (_, expression) = found.last_mut().expect("a block follows its beginning");
            expression.push_str(text);
            expression.push(' ');
        } else {
            block = None;
        }
    }
    found
}

fn fields(text: &str, key: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix(key)).map(str::to_owned).collect()
}

#[test]
fn prometheus_takes_the_rules_and_they_fire_as_they_should() {
    let promtool = Promtool::find_or_unpack().expect("promtool");
    let rules = deploy("prometheus/rules.yml");
    let answer = promtool.check_rules(&rules).expect("sound rules");
    let count = expressions(&read(&rules)).len();
    assert!(answer.contains(&format!("{count} rules found")), "{answer}");
    let answer = promtool.test_rules(&deploy("prometheus/rules.test.yml")).expect("as the tests say");
    assert!(answer.contains("SUCCESS"), "{answer}");
}

/// A test that expects an alert ends its list with labels, one that does not with an empty list.
#[test]
fn every_alert_is_seen_to_fire_and_seen_not_to() {
    let (rules, tests) = (read(&deploy("prometheus/rules.yml")), read(&deploy("prometheus/rules.test.yml")));
    let tests: Vec<&str> = tests.lines().map(str::trim_start).collect();
    for (alert, _) in expressions(&rules) {
        let fires = tests.contains(&format!("- alertname: {alert}").as_str());
        let rests = tests.iter().any(|line| {
            line.starts_with(&format!("- {{ alertname: {alert},")) && line.ends_with("exp_alerts: [] }")
        });
        assert!(fires && rests, "{alert}: fires {fires}, rests {rests}");
    }
}

#[test]
fn every_alert_says_what_it_is_how_bad_it_is_and_what_to_do() {
    let rules = read(&deploy("prometheus/rules.yml"));
    let alerts: Vec<String> = expressions(&rules).into_iter().map(|(alert, _)| alert).collect();
    assert!(alerts.len() > 20, "the alerts were found");
    for wanted in ["HighOrphanedFileRate", "CleanupWorkerDown"] {
        assert!(alerts.iter().any(|alert| alert == wanted), "{wanted} is promised");
    }
    for key in ["labels: { severity: ", "summary: ", "description: ", "runbook: "] {
        assert_eq!(fields(&rules, key).len(), alerts.len(), "each alert has its {key}");
    }
    let severities: BTreeSet<String> = fields(&rules, "labels: ").into_iter().collect();
    let known = ["{ severity: critical }", "{ severity: warning }"].map(str::to_owned);
    assert_eq!(severities, BTreeSet::from(known));
    for (alert, runbook) in alerts.iter().zip(fields(&rules, "runbook: ")) {
        let (page, place) = runbook.split_once('#').unwrap_or_else(|| panic!("{alert}: {runbook}"));
        let page = read(&deploy("..").join(page));
        assert!(anchors(&page).iter().any(|anchor| anchor == place), "{alert}: no heading for {runbook}");
        assert_eq!(place, alert.to_lowercase(), "the runbook is its own");
    }
}
