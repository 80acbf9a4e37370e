//! The name of an event batch, on disk and in the store: `<unix>_<instance>_<counter>.jsonl.gz`.

use std::fmt;

use chrono::DateTime;

pub const EXTENSION: &str = ".jsonl.gz";
/// The suffix of the metadata file of a batch on disk. The file contains the number of events.
pub const META: &str = ".meta.json";

/// Leaves space for the suffixes of metadata and temporary files.
const NAME_BYTES_MAX: usize = 220;
const INSTANCE_BYTES_MAX: usize = 120;
/// The maximum length of the percent-encoded name.
const ENCODED_NAME_BYTES_MAX: usize = 255;
/// Enough until the year 5138. A longer number is not a time in seconds.
const UNIX_DIGITS_MAX: usize = 11;
const COUNTER_DIGITS_MAX: usize = 20;

/// Ordered by age, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchName {
    unix: i64,
    text: Box<str>,
}

impl BatchName {
    /// Replaces special characters of `instance` by `-`.
    pub fn new(unix: i64, instance: &str, counter: u64) -> BatchName {
        let unix = unix.clamp(0, 99_999_999_999);
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '-' };
        let mut instance: String = instance.chars().take(INSTANCE_BYTES_MAX).map(plain).collect();
        if instance.is_empty() {
            instance.push('-');
        }
        BatchName { unix, text: format!("{unix}_{instance}_{counter}{EXTENSION}").into() }
    }

    /// Parses the name of a batch file that any program may have written.
    pub fn parse(text: &str) -> Option<BatchName> {
        let stem = text.strip_suffix(EXTENSION).filter(|_| text.len() <= NAME_BYTES_MAX)?;
        let (unix, rest) = stem.split_once('_')?;
        let (instance, counter) = rest.rsplit_once('_')?;
        let digits = |text: &str, max: usize| {
            (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        let is_valid = digits(unix, UNIX_DIGITS_MAX)
            && digits(counter, COUNTER_DIGITS_MAX)
            && !instance.is_empty()
            && encoded(text).len() <= ENCODED_NAME_BYTES_MAX
            && !instance.chars().any(|c| c.is_control() || matches!(c, '/' | '\\'));
        let unix = unix.parse().ok().filter(|_| is_valid)?;
        Some(BatchName { unix, text: text.into() })
    }

    /// The same name with another counter.
    pub fn renamed(&self, counter: u64) -> BatchName {
        let stem = self.text.strip_suffix(EXTENSION).unwrap_or(&self.text);
        let instance =
            stem.split_once('_').and_then(|(_, rest)| rest.rsplit_once('_')).map_or("-", |it| it.0);
        BatchName::new(self.unix, instance, counter)
    }

    /// The time when the batch was opened, in seconds since 1970.
    pub fn unix(&self) -> i64 {
        self.unix
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The path in the store below `RAW/`: the hour of the batch and its name.
    pub fn object_path(&self) -> String {
        let hour = DateTime::from_timestamp(self.unix, 0).unwrap_or_default().format("%Y/%m/%d/%H");
        format!("{hour}/{}", encoded(&self.text))
    }
}

/// Writes bytes that not every store accepts as `%XX`.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_') {
            true => out.push(byte as char),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

impl fmt::Display for BatchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_back_and_sorted_by_age() {
        let name = BatchName::new(1_750_000_000, "host_1/ü x", 7);
        assert_eq!(name.as_str(), "1750000000_host_1---x_7.jsonl.gz");
        assert_eq!(BatchName::parse(name.as_str()), Some(name.clone()));
        assert_eq!(name.object_path(), "2025/06/15/15/1750000000_host_1---x_7.jsonl.gz");
        assert!(BatchName::new(9, "z", 0) < BatchName::new(10, "a", 0));
        assert_eq!(name.renamed(8).as_str(), "1750000000_host_1---x_8.jsonl.gz");
    }

    #[test]
    fn names_of_other_programs_are_kept_and_invalid_names_are_rejected() {
        for (text, path) in [
            ("1700000000_web_1_0042.jsonl.gz", "2023/11/14/22/1700000000_web_1_0042.jsonl.gz"),
            ("0_a b_1.jsonl.gz", "1970/01/01/00/0_a%20b_1.jsonl.gz"),
            ("1700000000_ü_1.jsonl.gz", "2023/11/14/22/1700000000_%C3%BC_1.jsonl.gz"),
        ] {
            let name = BatchName::parse(text).expect(text);
            assert_eq!((name.as_str(), name.object_path().as_str()), (text, path));
        }
        for text in [
            "",
            ".jsonl.gz",
            "1700000000_web_1.jsonl",
            "1700000000_web.jsonl.gz",
            "1700000000__1.jsonl.gz",
            "-5_web_1.jsonl.gz",
            "x_web_1.jsonl.gz",
            "1700000000_web_x.jsonl.gz",
            "1700000000_web_1.jsonl.gz.meta.json",
            ".1700000000_web_1.jsonl.gz",
            "999999999999_web_1.jsonl.gz",
            "1700000000_we\nb_1.jsonl.gz",
        ] {
            assert_eq!(BatchName::parse(text), None, "{text:?}");
        }
        assert_eq!(BatchName::parse(&format!("1_{}_1.jsonl.gz", "a".repeat(300))), None);
        let long = BatchName::new(i64::MAX, &"ü".repeat(400), u64::MAX);
        assert_eq!(BatchName::parse(long.as_str()), Some(long));
    }
}
