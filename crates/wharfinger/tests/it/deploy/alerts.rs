//! The alert rules: promtool checks and tests them, and each alert has a runbook.

use std::collections::BTreeSet;

use harness::promtool::Promtool;

use super::{deploy, read};
use crate::docs::anchors;

/// The alerts of a rules file, with their expressions.
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
            let (_, expression) = found.last_mut().expect("a block belongs to an expression");
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
fn promtool_accepts_the_rules_and_their_tests_pass() {
    let promtool = Promtool::find_or_unpack().expect("promtool");
    let rules = deploy("prometheus/rules.yml");
    let answer = promtool.check_rules(&rules).expect("valid rules");
    let count = expressions(&read(&rules)).len();
    assert!(answer.contains(&format!("{count} rules found")), "{answer}");
    let answer = promtool.test_rules(&deploy("prometheus/rules.test.yml")).expect("the tests pass");
    assert!(answer.contains("SUCCESS"), "{answer}");
}

/// A test that expects no alert has an empty list in `exp_alerts`.
#[test]
fn every_alert_has_a_test_that_fires_and_one_that_does_not() {
    let (rules, tests) = (read(&deploy("prometheus/rules.yml")), read(&deploy("prometheus/rules.test.yml")));
    let tests: Vec<&str> = tests.lines().map(str::trim_start).collect();
    for (alert, _) in expressions(&rules) {
        let fires = tests.contains(&format!("- alertname: {alert}").as_str());
        let is_silent = tests.iter().any(|line| {
            line.starts_with(&format!("- {{ alertname: {alert},")) && line.ends_with("exp_alerts: [] }")
        });
        assert!(fires && is_silent, "{alert}: test that fires {fires}, test that does not {is_silent}");
    }
}

#[test]
fn every_alert_has_a_severity_a_description_and_a_runbook() {
    let rules = read(&deploy("prometheus/rules.yml"));
    let alerts: Vec<String> = expressions(&rules).into_iter().map(|(alert, _)| alert).collect();
    assert!(alerts.len() > 20, "the alerts were found");
    for alert in ["HighOrphanedFileRate", "CleanupWorkerDown"] {
        assert!(alerts.iter().any(|name| name == alert), "{alert} is missing");
    }
    for key in ["labels: { severity: ", "summary: ", "description: ", "runbook: "] {
        assert_eq!(fields(&rules, key).len(), alerts.len(), "an alert has no {key}");
    }
    let severities: BTreeSet<String> = fields(&rules, "labels: ").into_iter().collect();
    let known = ["{ severity: critical }", "{ severity: warning }"].map(str::to_owned);
    assert_eq!(severities, BTreeSet::from(known));
    for (alert, runbook) in alerts.iter().zip(fields(&rules, "runbook: ")) {
        let (page, heading) = runbook.split_once('#').unwrap_or_else(|| panic!("{alert}: {runbook}"));
        let page = read(&deploy("..").join(page));
        assert!(anchors(&page).iter().any(|anchor| anchor == heading), "{alert}: no heading for {runbook}");
        assert_eq!(heading, alert.to_lowercase(), "the runbook belongs to this alert");
    }
}
