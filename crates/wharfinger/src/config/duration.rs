//! Durations as Go writes them: `90s`, `1h`, `1.5h`, `72h30m`, `500ms`, and days too: `7d`.

const NS_PER_MS: u128 = 1_000_000;

/// Longer words come first: `ms` is not `m` and `s`.
const UNITS: [(&str, u128); 9] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", NS_PER_MS),
    ("s", 1_000 * NS_PER_MS),
    ("m", 60_000 * NS_PER_MS),
    ("h", 3_600_000 * NS_PER_MS),
    ("d", 86_400_000 * NS_PER_MS),
];

/// A duration with units, in milliseconds. `None`: it is not one, or not a whole number of milliseconds.
pub(super) fn parse_go_ms(text: &str) -> Option<u64> {
    let mut rest = text.trim();
    let mut total_ns: u128 = 0;
    loop {
        let (number, after) = split_number(rest)?;
        let (unit, factor) = *UNITS.iter().find(|(unit, _)| after.starts_with(unit))?;
        total_ns = total_ns.checked_add(to_ns(number, factor)?)?;
        rest = &after[unit.len()..];
        if rest.is_empty() {
            break;
        }
    }
    let is_whole = total_ns.is_multiple_of(NS_PER_MS);
    u64::try_from(total_ns / NS_PER_MS).ok().filter(|_| is_whole)
}

/// Digits with at most one point, and what follows.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, after) = text.split_at(end);
    let is_number = number.matches('.').count() <= 1 && number.bytes().any(|byte| byte.is_ascii_digit());
    is_number.then_some((number, after))
}

fn to_ns(number: &str, factor: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u128>().ok()? };
    let mut ns = whole.checked_mul(factor)?;
    if !fraction.is_empty() {
        let scale = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        // More digits than nanoseconds are cut, as Go does.
        ns = ns.checked_add(fraction.parse::<u128>().ok()?.checked_mul(factor)? / scale)?;
    }
    Some(ns)
}

/// The duration with the largest units that show it exactly: `72h30m0s` is `72h30m`.
pub(super) fn format_ms(ms: u64) -> String {
    let mut rest = ms;
    let mut text = String::new();
    for (unit, factor) in [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
        if rest >= factor {
            text.push_str(&format!("{}{unit}", rest / factor));
            rest %= factor;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// A duration on the command line: more than nothing, and at most about ten years.
pub fn parse_duration_ms(text: &str) -> Result<i64, String> {
    let wrong = || format!("`{text}` is not a duration like 90s, 30m, 1h, 1.5h, 72h30m or 7d");
    let ms = parse_go_ms(text).and_then(|ms| i64::try_from(ms).ok()).ok_or_else(wrong)?;
    Some(ms).filter(|ms| *ms > 0 && *ms <= 3_660 * 86_400_000).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_as_go_parses_them() {
        for (text, ms) in [
            ("1h", 3_600_000),
            ("90s", 90_000),
            ("72h30m", 72 * 3_600_000 + 30 * 60_000),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("1.s", 1_000),
            ("500ms", 500),
            ("1h15m30.918s", 4_530_918),
            ("7d", 7 * 86_400_000),
            ("1d12h", 36 * 3_600_000),
            ("2000us", 2),
            ("1s1s", 2_000),
            ("0s", 0),
            (" 1m ", 60_000),
        ] {
            assert_eq!(parse_go_ms(text), Some(ms), "{text}");
        }
        for bad in [
            "",
            "h",
            "1",
            "1y",
            "-1h",
            "1 h",
            "1h 30m",
            "1..5h",
            ".h",
            "h1",
            "1h30",
            "2500us",
            "1,5h",
            "ä",
            "99999999999999999999999d",
        ] {
            assert_eq!(parse_go_ms(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_duration_of_the_command_line_is_limited() {
        assert_eq!(parse_duration_ms("1h"), Ok(3_600_000));
        for bad in ["", "0s", "1", "99999999999d", "4000d"] {
            assert!(parse_duration_ms(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_formatted_duration_is_parsed_again() {
        for ms in [0, 1, 999, 1_000, 61_001, 3_600_000, 5_400_000, 86_400_000, 10 * 366 * 86_400_000] {
            assert_eq!(parse_go_ms(&format_ms(ms)), Some(ms));
        }
        assert_eq!(format_ms(72 * 3_600_000 + 30 * 60_000), "72h30m");
    }
}
