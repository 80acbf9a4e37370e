//! Parses Prometheus expressions: the metrics with their label matchers, and the labels of groupings.

/// A metric with its label matchers: the label, and its values if the matcher lists them.
#[derive(Debug, PartialEq, Eq)]
pub struct Selector {
    pub metric: String,
    pub labels: Vec<(String, Vec<String>)>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    pub metrics: Vec<Selector>,
    pub groupings: Vec<String>,
}

const GROUPINGS: [&str; 4] = ["by", "on", "without", "ignoring"];
const OPERATORS: [&str; 4] = ["unless", "and", "or", "offset"];

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// Removes ranges like `[5m]`.
fn without_ranges(expression: &str) -> String {
    let parts = expression.split('[').enumerate();
    parts
        .map(|(at, part)| if at == 0 { part } else { part.split_once(']').expect("a closed range").1 })
        .collect()
}

/// Parses `state="a"` and `outcome=~"a|b"`. Other patterns give no values.
fn label(matcher: &str) -> (String, Vec<String>) {
    let (name, rest) =
        matcher.split_once(['=', '!']).unwrap_or_else(|| panic!("{matcher} is not a label matcher"));
    let value = rest.trim_start_matches(['=', '~']).trim_matches('"');
    let values = if rest.contains("..") { Vec::new() } else { value.split('|').map(str::to_owned).collect() };
    (name.trim().to_owned(), values)
}

/// A function, an aggregation (`sum(`, `sum by (`), an operator or a number.
fn is_operation(word: &str, after: &str) -> bool {
    let next = after.split(|c| !is_word(c)).next().unwrap_or_default();
    after.starts_with('(')
        || ["by", "without"].contains(&next)
        || OPERATORS.contains(&word)
        || word.starts_with(|c: char| c.is_ascii_digit())
}

pub fn parse(expression: &str) -> Parsed {
    let text = without_ranges(expression);
    let (mut found, mut rest) = (Parsed::default(), text.as_str());
    while let Some(start) = rest.find(is_word) {
        let word = &rest[start..][..rest[start..].find(|c| !is_word(c)).unwrap_or(rest.len() - start)];
        let after = rest[start + word.len()..].trim_start();
        rest = after;
        if GROUPINGS.contains(&word) {
            let (list, behind) = after[1..].split_once(')').expect("a closed list");
            found
                .groupings
                .extend(list.split(',').map(|name| name.trim().to_owned()).filter(|n| !n.is_empty()));
            rest = behind;
        } else if let Some(behind) = after.strip_prefix('{') {
            let (list, behind) = behind.split_once('}').expect("closed labels");
            let labels = list.split(", ").map(label).collect();
            found.metrics.push(Selector { metric: word.to_owned(), labels });
            rest = behind;
        } else if !is_operation(word, after) {
            found.metrics.push(Selector { metric: word.to_owned(), labels: Vec::new() });
        }
    }
    found
}

#[test]
fn expressions_are_parsed() {
    let parsed = parse(
        "sum by (le, route) (rate(a_bucket{route!~\"/x|/y\", status=~\"5..\"}[5m])) > 10 \
         unless on () max(b offset 1h) or c{d=\"e\"}",
    );
    let selector = |metric: &str, labels: &[(&str, &[&str])]| Selector {
        metric: metric.to_owned(),
        labels: labels
            .iter()
            .map(|(name, values)| ((*name).to_owned(), values.iter().map(|v| (*v).to_owned()).collect()))
            .collect(),
    };
    let metrics = vec![
        selector("a_bucket", &[("route", &["/x", "/y"]), ("status", &[])]),
        selector("b", &[]),
        selector("c", &[("d", &["e"])]),
    ];
    assert_eq!(parsed, Parsed { metrics, groupings: vec!["le".into(), "route".into()] });
}
