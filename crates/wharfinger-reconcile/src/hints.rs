//! Why no key of a list is in the bucket, where it is written in another way there: some objects are looked for in the
//! list under the names that people write them by.

use std::collections::HashMap;

use unicode_normalization::UnicodeNormalization as _;

/// Objects that are looked for.
pub const OBJECTS_MAX: usize = 200;

/// Names under which objects would be in the list, and what that would mean.
pub struct Hints {
    spellings: HashMap<String, &'static str>,
}

const SLASH: &str = "the keys in the list begin with a slash: --strip-prefix /";
const ADDRESS: &str = "the keys in the list are whole addresses: --strip-prefix with what they begin with";
const RELATIVE: &str = "the keys in the list lack what the bucket's begin with: --key-prefix with it";
const ENCODED: &str = "the keys in the list are percent-encoded: --percent-encoded";
const DECODED: &str = "the keys in the bucket are percent-encoded, those in the list are not";
const COMPOSED: &str = "the keys in the list spell their accents in another way (NFC and NFD)";
const CASE: &str = "the keys in the list differ in upper and lower case";

impl Hints {
    /// `addresses` are what stands before a key in the address of an object: `s3://bucket/`.
    pub fn new<'k>(objects: impl IntoIterator<Item = &'k str>, addresses: &[String]) -> Hints {
        let mut spellings = HashMap::new();
        let mut add = |spelling: String, object: &str, hint| {
            if spelling != object && !spelling.is_empty() {
                spellings.entry(spelling).or_insert(hint);
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
        Hints { spellings }
    }

    /// What it would mean that the list has this key.
    pub fn of(&self, key: &str) -> Option<&'static str> {
        self.spellings.get(key).copied()
    }
}

/// Every byte but letters, digits and `-_.~`, and the slash where it is asked for.
fn encoded(key: &str, slash_too: bool) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || (byte == b'/' && !slash_too) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Takes `%41` back to `A`; none where that is not text, or where a percent sign begins no such thing.
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

/// What is left of a key without case, accents' spelling, percent signs, blanks and plus signs, quotes, what cannot be seen,
/// folders that are no step, and with slashes for backslashes: two keys that are the same by it are most likely one,
/// written in two ways.
pub fn bare(key: &str) -> String {
    let decoded = decoded(key);
    let key = decoded.as_deref().unwrap_or(key);
    let mut bare = String::with_capacity(key.len());
    for letter in key.nfc().flat_map(char::to_lowercase) {
        match letter {
            '/' | '\\' => end_part(&mut bare),
            '+' | '"' | '\'' | '`' => {}
            unseen if unseen.is_whitespace() || unseen.is_control() || UNSEEN.contains(&unseen) => {}
            other => bare.push(other),
        }
    }
    bare
}

/// Zero-width letters, marks of direction, and the mark at the beginning of a file.
const UNSEEN: [char; 7] = ['\u{ad}', '\u{200b}', '\u{200c}', '\u{200d}', '\u{200e}', '\u{200f}', '\u{feff}'];

/// Parts that are empty or a single dot lead nowhere.
fn end_part(bare: &mut String) {
    if bare == "." || bare.ends_with("/.") {
        bare.pop();
    }
    if !bare.is_empty() && !bare.ends_with('/') {
        bare.push('/');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_only_in_spelling_is_the_same() {
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
            assert_eq!(bare(one), bare(other), "{one} {other}");
        }
        for (one, other) in [("a/b", "a/c"), ("a/b", "ab"), ("a./b", "a/b"), ("a/.b", "a/b"), ("a/", "a")] {
            assert_ne!(bare(one), bare(other), "{one} {other}");
        }
    }

    #[test]
    fn another_spelling_is_known_again() {
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
            assert_eq!(hints.of(key), Some(hint), "{key}");
        }
        assert_eq!(hints.of("images/a b.jpg"), None);
        assert_eq!(hints.of("b.jpg"), None);
    }

    #[test]
    fn what_is_not_encoded_is_not_decoded() {
        assert_eq!(decoded("a%2Fb+c").as_deref(), Some("a/b+c"));
        for other in ["100%", "%zz", "%e9"] {
            assert_eq!(decoded(other), None, "{other}");
        }
    }
}
