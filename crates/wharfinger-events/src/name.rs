//! The name of a batch of events: `<unix>_<instance>_<counter>.jsonl.gz`, on disk as in the store.

use std::fmt;

use chrono::DateTime;

pub const EXTENSION: &str = ".jsonl.gz";
/// What is added to the name of a batch on disk for the file that says how many events it has.
pub const META: &str = ".meta.json";

/// Leaves room for what is added to it.
const NAME_BYTES_MAX: usize = 220;
const INSTANCE_BYTES_MAX: usize = 120;
/// Of the name as it stands in the store.
const PLACE_BYTES_MAX: usize = 255;
/// Until the year 5138: longer is not a time.
const UNIX_DIGITS_MAX: usize = 11;
const COUNTER_DIGITS_MAX: usize = 20;

/// Ordered by age, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchName {
    unix: i64,
    text: Box<str>,
}

impl BatchName {
    /// What of the instance could mean something else in a name is left out.
    pub fn new(unix: i64, instance: &str, counter: u64) -> BatchName {
        let unix = unix.clamp(0, 99_999_999_999);
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '-' };
        let mut instance: String = instance.chars().take(INSTANCE_BYTES_MAX).map(plain).collect();
        if instance.is_empty() {
            instance.push('-');
        }
        BatchName { unix, text: format!("{unix}_{instance}_{counter}{EXTENSION}").into() }
    }

    /// Takes the name of a file, whoever wrote it.
    pub fn parse(text: &str) -> Option<BatchName> {
        let stem = text.strip_suffix(EXTENSION).filter(|_| text.len() <= NAME_BYTES_MAX)?;
        let (unix, rest) = stem.split_once('_')?;
        let (instance, counter) = rest.rsplit_once('_')?;
        let digits = |text: &str, max: usize| {
            (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        let sound = digits(unix, UNIX_DIGITS_MAX)
            && digits(counter, COUNTER_DIGITS_MAX)
            && !instance.is_empty()
            && encoded(text).len() <= PLACE_BYTES_MAX
            && !instance.chars().any(|c| c.is_control() || matches!(c, '/' | '\\'));
        let unix = unix.parse().ok().filter(|_| sound)?;
        Some(BatchName { unix, text: text.into() })
    }

    /// The same batch under a name that nothing else has.
    pub fn renamed(&self, counter: u64) -> BatchName {
        let stem = self.text.strip_suffix(EXTENSION).unwrap_or(&self.text);
        let instance =
            stem.split_once('_').and_then(|(_, rest)| rest.rsplit_once('_')).map_or("-", |it| it.0);
        BatchName::new(self.unix, instance, counter)
    }

    /// When the batch was begun, in seconds since 1970.
    pub fn unix(&self) -> i64 {
        self.unix
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Where it lies in the store below `RAW/`: the hour it was begun, and its name.
    pub fn place(&self) -> String {
        let hour = DateTime::from_timestamp(self.unix, 0).unwrap_or_default().format("%Y/%m/%d/%H");
        format!("{hour}/{}", encoded(&self.text))
    }
}

/// Every store takes what is left; other bytes stand as `%XX`.
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
    fn names_are_read_back_and_sorted_by_age() {
        let name = BatchName::new(1_750_000_000, "host_1/ü x", 7);
        assert_eq!(name.as_str(), "1750000000_host_1---x_7.jsonl.gz");
        assert_eq!(BatchName::parse(name.as_str()), Some(name.clone()));
        assert_eq!(name.place(), "2025/06/15/15/1750000000_host_1---x_7.jsonl.gz");
        assert!(BatchName::new(9, "z", 0) < BatchName::new(10, "a", 0));
        assert_eq!(name.renamed(8).as_str(), "1750000000_host_1---x_8.jsonl.gz");
    }

    #[test]
    fn other_programs_names_are_taken_as_they_are_and_what_is_none_is_not() {
        for (text, place) in [
            ("1700000000_web_1_0042.jsonl.gz", "2023/11/14/22/1700000000_web_1_0042.jsonl.gz"),
            ("0_a b_1.jsonl.gz", "1970/01/01/00/0_a%20b_1.jsonl.gz"),
            ("1700000000_ü_1.jsonl.gz", "2023/11/14/22/1700000000_%C3%BC_1.jsonl.gz"),
        ] {
            let name = BatchName::parse(text).expect(text);
            assert_eq!((name.as_str(), name.place().as_str()), (text, place));
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
