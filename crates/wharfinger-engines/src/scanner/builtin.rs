//! The built-in scanner. It finds EICAR's test file, and files whose SHA-256 is in a list.
//!
//! EICAR's rule: the 68 bytes are the start of the file, the rest is white space, and the file has at most 128 bytes. A
//! text that quotes the 68 bytes is not a test file: otherwise the manuals of scanners would be quarantined. This
//! program contains only the hash of these bytes, so that other scanners do not report the program.

use std::collections::HashMap;
use std::fmt;

use futures::StreamExt as _;
use sha2::{Digest as _, Sha256};

use super::{Chunks, ScanError, Verdict, source_error};

const EICAR_BYTES: usize = 68;
const EICAR_FILE_BYTES_MAX: usize = 128;
const EICAR_SIGNATURE: &str = "Eicar-Test-Signature";
const EICAR_SHA256: Hash = *b"\x27\x5a\x02\x1b\xbf\xb6\x48\x9e\x54\xd4\x71\x89\x9f\x7d\xb9\xd1\
                              \x66\x3f\xc6\x95\xec\x2f\xe2\xa2\xc4\x53\x8a\xab\xf6\x51\xfd\x0f";
/// Blank, tab, line ends, and Ctrl-Z.
const EICAR_TAIL: [u8; 5] = [b' ', b'\t', b'\r', b'\n', 0x1a];

const NAME_CHARS_MAX: usize = 200;

type Hash = [u8; 32];

/// The SHA-256 list of the built-in scanner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signatures {
    names: HashMap<Hash, String>,
}

impl Signatures {
    /// Parses a list with one SHA-256 per line, in hex, and an optional name after a blank. Empty lines and lines that
    /// start with `#` are ignored. The error names the invalid line.
    pub fn parse(text: &str) -> Result<Signatures, String> {
        let mut names = HashMap::new();
        for (number, line) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (hash, name) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let Some(bytes) = from_hex(hash) else {
                return Err(format!("line {number} does not start with a SHA-256 of 64 hexadecimal digits"));
            };
            let name = name.trim();
            if name.chars().count() > NAME_CHARS_MAX || name.chars().any(char::is_control) {
                return Err(format!(
                    "line {number} has a name with more than {NAME_CHARS_MAX} characters or with control characters"
                ));
            }
            let name = if name.is_empty() { format!("SHA256.{}", hash.to_lowercase()) } else { name.into() };
            names.insert(bytes, name);
        }
        Ok(Signatures { names })
    }

    pub(super) async fn scan(&self, mut bytes: Chunks) -> Result<Verdict, ScanError> {
        let mut whole = Sha256::new();
        // One byte more than the maximum, to detect a file that is longer.
        let mut head = Vec::with_capacity(EICAR_FILE_BYTES_MAX + 1);
        while let Some(some) = bytes.next().await {
            let some = some.map_err(source_error)?;
            let room = EICAR_FILE_BYTES_MAX + 1 - head.len();
            head.extend_from_slice(&some[..room.min(some.len())]);
            whole.update(&some);
        }
        let signature = if is_eicar(&head) {
            Some(EICAR_SIGNATURE.to_owned())
        } else {
            let hash: Hash = whole.finalize().into();
            self.names.get(&hash).cloned()
        };
        Ok(signature.map_or(Verdict::Clean, |signature| Verdict::Infected { signature }))
    }
}

impl fmt::Display for Signatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "built-in: the EICAR test file and {} SHA-256 hashes", self.names.len())
    }
}

fn is_eicar(file: &[u8]) -> bool {
    let Some((start, tail)) = file.split_at_checked(EICAR_BYTES) else { return false };
    file.len() <= EICAR_FILE_BYTES_MAX
        && tail.iter().all(|byte| EICAR_TAIL.contains(byte))
        && Hash::from(Sha256::digest(start)) == EICAR_SHA256
}

fn from_hex(text: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|value| value.try_into().ok())).collect();
    let digits = digits.filter(|digits| digits.len() == 2 * hash.len())?;
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "275A021BBFB6489E54D471899F7DB9D1663FC695EC2FE2A2C4538AABF651FD0F";

    #[test]
    fn a_list_has_one_hash_per_line() {
        let other = "0".repeat(64);
        let text = format!("\u{feff}# known\r\n\r\n{HASH}  Some.Worm, of 2024 \r\n  {other}\n");
        let read = Signatures::parse(&text).expect("a list");
        assert_eq!(read.names.len(), 2);
        assert_eq!(read.names[&EICAR_SHA256], "Some.Worm, of 2024");
        assert_eq!(read.names[&[0; 32]], format!("SHA256.{other}"));
        assert_eq!(Signatures::parse("# none\n"), Ok(Signatures::default()));
    }

    #[test]
    fn the_error_names_the_invalid_line() {
        let long = format!("{HASH} {}", "x".repeat(NAME_CHARS_MAX + 1));
        for line in [
            &HASH[1..],
            "x",
            &HASH.replace('A', "g"),
            &format!("{HASH}0"),
            &format!("é{HASH}"),
            &long,
            &format!("{HASH} a\u{7}b"),
        ] {
            let error = Signatures::parse(&format!("{HASH}\n\n{line}\n{HASH}")).expect_err(line);
            assert!(error.starts_with("line 3 "), "{error}");
        }
    }
}
