//! Checksums as text: SHA-256 in lower-case hex.

pub fn to_hex(bytes: &[u8]) -> String {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(HEX[usize::from(digit)])).collect()
}

/// Decodes hex text. `None` if it is not valid hex.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_lower_case_and_has_two_digits_per_byte() {
        assert_eq!(to_hex(&[0, 15, 16, 255]), "000f10ff");
        assert_eq!(from_hex("000f10ff"), Some(vec![0, 15, 16, 255]));
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("0g"), None);
        assert!(is_sha256(&to_hex(&[0xab; 32])));
        assert!(!is_sha256(&to_hex(&[0xab; 32]).to_uppercase()));
        assert!(!is_sha256(&to_hex(&[0xab; 31])));
    }
}
