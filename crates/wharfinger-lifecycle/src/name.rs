//! The rules for file names. Object keys do not contain the name, but clients that download the file use it as a path.

use crate::limits::{FILE_NAME_BYTES_MAX, FILE_NAME_CHARS_MAX};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFileName {
    #[error("must not be empty")]
    Empty,
    #[error("is longer than {FILE_NAME_CHARS_MAX} characters or {FILE_NAME_BYTES_MAX} bytes")]
    TooLong,
    #[error("must not contain a slash or backslash; send a name, not a path")]
    Separator,
    #[error("must not be `.` or `..`")]
    Dots,
    #[error("contains a control character")]
    Control,
    #[error("contains a character that changes the text direction, which can disguise the name")]
    Bidi,
}

pub fn check_file_name(name: &str) -> Result<(), BadFileName> {
    if name.trim().is_empty() {
        return Err(BadFileName::Empty);
    }
    if name.len() > FILE_NAME_BYTES_MAX || name.chars().count() > FILE_NAME_CHARS_MAX {
        return Err(BadFileName::TooLong);
    }
    if name == "." || name == ".." {
        return Err(BadFileName::Dots);
    }
    for c in name.chars() {
        match c {
            '/' | '\\' => return Err(BadFileName::Separator),
            c if c.is_control() => return Err(BadFileName::Control),
            '\u{2028}' | '\u{2029}' => return Err(BadFileName::Control),
            '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' => {
                return Err(BadFileName::Bidi);
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_names_are_accepted() {
        for name in
            ["a.txt", "..a", "a..b", "résumé 2026 (final).pdf", "日本語", ".gitignore", "a%2Fb", "👩‍🚀.png"]
        {
            assert_eq!(check_file_name(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn invalid_names_are_rejected() {
        let long = "x".repeat(10_000);
        for (name, why) in [
            ("", BadFileName::Empty),
            ("  ", BadFileName::Empty),
            ("..", BadFileName::Dots),
            ("../x", BadFileName::Separator),
            ("a\\b", BadFileName::Separator),
            ("a\0b", BadFileName::Control),
            ("a\nb", BadFileName::Control),
            ("a\u{202E}fdp.exe", BadFileName::Bidi),
            (long.as_str(), BadFileName::TooLong),
        ] {
            assert_eq!(check_file_name(name), Err(why), "{name:?}");
        }
    }
}
