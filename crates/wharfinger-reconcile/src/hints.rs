//! Hints for a list of which no key is in the bucket, because its keys are written in another way. Some objects are
//! looked up in the list under other common spellings.

use std::collections::HashMap;

use unicode_normalization::UnicodeNormalization as _;

/// The number of objects that are looked up.
pub const OBJECTS_MAX: usize = 200;

/// Other spellings of objects, with the hint that each one gives.
pub struct Hints {
    hint_by_spelling: HashMap<String, &'static str>,
}

const SLASH: &str = "the keys in the list begin with a slash: use --strip-prefix /";
const ADDRESS: &str = "the keys in the list are complete URLs or paths: use --strip-prefix";
const RELATIVE: &str = "the keys in the list lack the first part of the bucket's keys: use --key-prefix";
const ENCODED: &str = "the keys in the list are percent-encoded: use --percent-encoded";
const DECODED: &str = "the keys in the bucket are percent-encoded, the keys in the list are not";
const COMPOSED: &str = "the list and the bucket encode accents in different ways (NFC and NFD)";
const CASE: &str = "the list and the bucket differ in upper and lower case";

impl Hints {
    /// `addresses`: the text before a key in the address of an object, for example `s3://bucket/`.
    pub fn new<'k>(objects: impl IntoIterator<Item = &'k str>, addresses: &[String]) -> Hints {
        let mut hint_by_spelling = HashMap::new();
        let mut add = |spelling: String, object: &str, hint| {
            if spelling != object && !spelling.is_empty() {
                hint_by_spelling.entry(spelling).or_insert(hint);
            }
        };
        for object in objects.into_iter().take(OBJECTS_MAX) {
            add(format!("/{object}"), object, SLASH);
            for address in addresses {
                add(format!("{address}{object}"), object, ADDRESS);
            }
            add(encoded(object, true), object, ENCODED);
            add(encoded(object, false), object, ENCODED);
            add(decoded(object).unwrap_or_default(), object, DECODED);
            add(object.nfc().collect(), object, COMPOSED);
            add(object.nfd().collect(), object, COMPOSED);
            add(object.to_lowercase(), object, CASE);
            add(object.to_uppercase(), object, CASE);
            for (at, _) in object.match_indices('/').take(4) {
                add(object[at + 1..].to_owned(), object, RELATIVE);
                add(object[at..].to_owned(), object, RELATIVE);
            }
        }
        Hints { hint_by_spelling }
    }

    /// The hint for a key of the list.
    pub fn hint_for(&self, key: &str) -> Option<&'static str> {
        self.hint_by_spelling.get(key).copied()
    }
}

/// Percent-encodes every byte except letters, digits and `-_.~`, and the slash only if `encodes_slash`.
fn encoded(key: &str, encodes_slash: bool) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || (byte == b'/' && !encodes_slash) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Decodes `%41` to `A`. None: the result is not UTF-8, or a percent sign is not followed by two hexadecimal digits.
pub fn decoded(key: &str) -> Option<String> {
    let mut pieces = key.split('%');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let digits = piece.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&piece.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// Removes the differences between spellings of one key: case, accents, percent signs, blanks, plus signs, quotes,
/// invisible characters, empty parts, and backslashes. Two keys with the same result are most likely one key, written
/// in two ways.
pub fn normalized(key: &str) -> String {
    let decoded = decoded(key);
    let key = decoded.as_deref().unwrap_or(key);
    let mut out = String::with_capacity(key.len());
    for letter in key.nfc().flat_map(char::to_lowercase) {
        match letter {
            '/' | '\\' => end_part(&mut out),
            '+' | '"' | '\'' | '`' => {}
            blank if blank.is_whitespace() || blank.is_control() || INVISIBLE.contains(&blank) => {}
            other => out.push(other),
        }
    }
    out
}

/// Zero-width characters, direction marks, and the byte order mark.
const INVISIBLE: [char; 7] =
    ['\u{ad}', '\u{200b}', '\u{200c}', '\u{200d}', '\u{200e}', '\u{200f}', '\u{feff}'];

/// Ends a part of the path. Parts that are empty or a single dot are dropped.
fn end_part(out: &mut String) {
    if out == "." || out.ends_with("/.") {
        out.pop();
    }
    if !out.is_empty() && !out.ends_with('/') {
        out.push('/');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_only_in_spelling_are_equal() {
        for (one, other) in [
            ("images/\u{e9}.jpg", "images/e\u{301}.jpg"),
            ("images/a b", "/images/a%20b"),
            ("Images/A", "images/a"),
            ("images/a b+c", "images/a+b%2Bc"),
            ("images/a", "//images///a"),
            ("images/a,b", "\"images/a,b\""),
            ("images/a", "\u{feff}images/a"),
            ("images/a", "images/a "),
            ("images/a", "./images/./a"),
            ("images/a", "images\\a"),
            ("images/a", "images\\\\a"),
        ] {
            assert_eq!(normalized(one), normalized(other), "{one} {other}");
        }
        for (one, other) in [("a/b", "a/c"), ("a/b", "ab"), ("a./b", "a/b"), ("a/.b", "a/b"), ("a/", "a")] {
            assert_ne!(normalized(one), normalized(other), "{one} {other}");
        }
    }

    #[test]
    fn each_other_spelling_gives_its_hint() {
        let objects = ["images/a b.jpg", "images/e\u{301}.jpg", "images/c%20d"];
        let hints = Hints::new(objects, &["s3://bucket/".to_owned()]);
        for (key, hint) in [
            ("/images/a b.jpg", SLASH),
            ("s3://bucket/images/a b.jpg", ADDRESS),
            ("a b.jpg", RELATIVE),
            ("images/a%20b.jpg", ENCODED),
            ("images%2Fa%20b.jpg", ENCODED),
            ("images/\u{e9}.jpg", COMPOSED),
            ("images/c d", DECODED),
            ("IMAGES/A B.JPG", CASE),
        ] {
            assert_eq!(hints.hint_for(key), Some(hint), "{key}");
        }
        assert_eq!(hints.hint_for("images/a b.jpg"), None);
        assert_eq!(hints.hint_for("b.jpg"), None);
    }

    #[test]
    fn text_that_is_not_percent_encoded_is_not_decoded() {
        assert_eq!(decoded("a%2Fb+c").as_deref(), Some("a/b+c"));
        for other in ["100%", "%zz", "%e9"] {
            assert_eq!(decoded(other), None, "{other}");
        }
    }
}
