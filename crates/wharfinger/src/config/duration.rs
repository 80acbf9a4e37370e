//! Durations with a unit: `90s`, `30m`, `1h`, `7d`.

pub fn parse_duration_ms(text: &str) -> Result<i64, String> {
    let wrong = || format!("`{text}` is not a duration like 90s, 30m, 1h or 7d");
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(unit_at);
    let factor: i64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    let number: i64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(factor).filter(|ms| *ms > 0 && *ms <= 3_660 * 86_400_000).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::parse_duration_ms;

    #[test]
    fn durations_are_parsed() {
        assert_eq!(parse_duration_ms("1h"), Ok(3_600_000));
        assert_eq!(parse_duration_ms("90s"), Ok(90_000));
        for bad in ["", "h", "1", "1y", "-1h", "0s", "99999999999d", "1 h"] {
            assert!(parse_duration_ms(bad).is_err(), "{bad}");
        }
    }
}
