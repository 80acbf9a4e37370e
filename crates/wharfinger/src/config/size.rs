//! Sizes with a unit: `10GiB`, `500 MB`, `1048576`.

const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    for (unit, factor) in UNITS {
        if let Some(number) = strip_unit(text, unit) {
            return number.trim().parse::<u64>().ok()?.checked_mul(factor);
        }
    }
    text.parse().ok()
}

fn strip_unit<'t>(text: &'t str, unit: &str) -> Option<&'t str> {
    let split = text.len().checked_sub(unit.len())?;
    let (number, end) = (text.get(..split)?, text.get(split..)?);
    end.eq_ignore_ascii_case(unit).then_some(number)
}

pub fn format_size(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1_024.0 {
            break;
        }
        (value, unit) = (value / 1_024.0, next);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_formatted() {
        assert_eq!(parse_size("10GiB"), Some(10 << 30));
        assert_eq!(parse_size("10 gib"), Some(10 << 30));
        assert_eq!(parse_size("500 MB"), Some(500_000_000));
        assert_eq!(parse_size("7"), Some(7));
        assert_eq!(parse_size("0B"), Some(0));
        for bad in ["", "-1", "1.5GiB", "GiB", "99999999999999TiB", "ä"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
        assert_eq!(format_size(1536), "1.5 KiB");
        assert_eq!(format_size(12), "12 B");
    }
}
