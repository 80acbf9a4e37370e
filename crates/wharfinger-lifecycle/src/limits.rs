//! Limits for input. The names contain the unit.

pub const MIB: u64 = 1 << 20;

pub const FILE_NAME_CHARS_MAX: usize = 255;
pub const FILE_NAME_BYTES_MAX: usize = 1_000;
pub const CONTENT_TYPE_BYTES_MAX: usize = 255;
pub const METADATA_BYTES_MAX: usize = 16 * 1024;
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// One encoded part of an object key: file systems and stores accept names of this length.
pub const KEY_PART_BYTES_MAX: usize = 255;
/// A whole object key: stores accept keys of this length.
pub const KEY_BYTES_MAX: usize = 1_024;

/// The largest quota and the largest file. A full quota and one more charge fit into an `i64`.
pub const QUOTA_BYTES_MAX: u64 = 1 << 60;
pub const FILE_SIZE_BYTES_MAX: u64 = 1 << 50;

/// Files that one call can register as a batch. More can be added later.
pub const BATCH_FILES_MAX: usize = 10_000;

pub const PAGE_ROWS_DEFAULT: usize = 50;
pub const PAGE_ROWS_MAX: usize = 1_000;

/// The maximum size of an error text in a row.
pub const ERROR_TEXT_BYTES_MAX: usize = 2_000;

/// A reason in the form that the catalog stores: short enough for its column and without NULs, which PostgreSQL rejects.
pub fn stored_reason(text: &str) -> String {
    clip(text, ERROR_TEXT_BYTES_MAX).replace('\0', "\u{fffd}")
}

/// Cuts a text at a character boundary so that it fits its column.
pub fn clip(text: &str, bytes_max: usize) -> &str {
    if text.len() <= bytes_max {
        return text;
    }
    let mut end = bytes_max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_reason_fits_and_has_no_nul() {
        assert_eq!(super::stored_reason("a\0b"), "a\u{fffd}b");
        assert!(super::stored_reason(&"x".repeat(10_000)).len() <= super::ERROR_TEXT_BYTES_MAX);
    }

    #[test]
    fn clips_at_a_character_boundary() {
        assert_eq!(super::clip("häfen", 2), "h");
        assert_eq!(super::clip("häfen", 3), "hä");
        assert_eq!(super::clip("häfen", 99), "häfen");
    }
}
