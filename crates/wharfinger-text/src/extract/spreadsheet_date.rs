//! Dates of spreadsheets. They are numbers of days, and only the cell format shows that they are dates.

/// The first day of the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Epoch {
    /// 1900, counted with a 29 February that did not exist.
    Y1900,
    Y1904,
}

/// Whether a format shows a date or a time. Built-in formats have only a number, custom formats also a code.
pub(super) fn is_date_format(id: u32, code: Option<&str>) -> bool {
    let Some(code) = code else {
        return matches!(id, 14..=22 | 27..=36 | 45..=47 | 50..=58);
    };
    // Letters in quotes, brackets and escapes do not count: `[Red]0` and `0 "days"` are number formats.
    let (mut in_quotes, mut in_brackets, mut escaped) = (false, false, false);
    code.chars().any(|c| {
        if std::mem::take(&mut escaped) {
            return false;
        }
        match c {
            '\\' | '_' | '*' => escaped = true,
            '"' => in_quotes = !in_quotes,
            '[' => in_brackets = true,
            ']' => in_brackets = false,
            'y' | 'Y' | 'd' | 'D' | 'h' | 'H' | 's' | 'S' | 'm' | 'M' => return !in_quotes && !in_brackets,
            _ => {}
        }
        false
    })
}

/// The date of a serial number in ISO format, with the time if it is not midnight.
pub(super) fn date_text(serial: f64, epoch: Epoch) -> Option<String> {
    if !(0.0..2_958_466.0).contains(&serial) {
        return None;
    }
    let seconds = (serial * 86_400.0).round() as i64;
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let time = format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60);
    // Days from 1970-01-01.
    let days = match epoch {
        Epoch::Y1904 => days - 24_107,
        Epoch::Y1900 if days == 0 => return Some(time),
        Epoch::Y1900 if days < 60 => days - 25_568,
        Epoch::Y1900 => days - 25_569,
    };
    let (year, month, day) = civil(days);
    let date = format!("{year:04}-{month:02}-{day:02}");
    Some(if second == 0 { date } else { format!("{date} {time}") })
}

/// Converts days since 1970 to year, month and day. It counts in eras of 400 years.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_convert_to_dates() {
        assert_eq!(date_text(45_366.0, Epoch::Y1900).as_deref(), Some("2024-03-15"));
        assert_eq!(date_text(45_366.5, Epoch::Y1900).as_deref(), Some("2024-03-15 12:00:00"));
        assert_eq!(date_text(1.0, Epoch::Y1900).as_deref(), Some("1900-01-01"));
        assert_eq!(date_text(61.0, Epoch::Y1900).as_deref(), Some("1900-03-01"));
        assert_eq!(date_text(0.25, Epoch::Y1900).as_deref(), Some("06:00:00"));
        assert_eq!(date_text(0.0, Epoch::Y1904).as_deref(), Some("1904-01-01"));
        assert_eq!(date_text(-1.0, Epoch::Y1900), None);
        assert_eq!(date_text(f64::NAN, Epoch::Y1900), None);
    }

    #[test]
    fn the_format_distinguishes_dates_from_numbers() {
        assert!(is_date_format(14, None));
        assert!(!is_date_format(2, None));
        assert!(is_date_format(164, Some("yyyy\\-mm\\-dd")));
        assert!(!is_date_format(164, Some("0.00 \"days\"")));
        assert!(!is_date_format(164, Some("[Red]#,##0")));
    }
}
