//! The secrets of a webhook. A signature covers id, time and body, joined by full stops.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

const PREFIX: &str = "whsec_";
const SECRET_BYTES_MIN: usize = 24;
const SECRET_BYTES_MAX: usize = 64;
/// Each secret makes the header longer, and a rotation needs only two.
const SECRETS_MAX: usize = 8;

/// An error in a secret. It never contains the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("must be `whsec_` followed by base64 (for a rotation: several secrets, separated by spaces)")]
    Shape,
    #[error("must have 24 to 64 bytes in base64 after `whsec_`, not {0}")]
    Length(usize),
    #[error("must be at most 8 secrets")]
    TooMany,
}

/// At least one secret. During a rotation, the new and the old secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secrets(Vec<Vec<u8>>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

impl FromStr for Secrets {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Secrets, SecretError> {
        let secrets: Vec<Vec<u8>> = text.split_ascii_whitespace().map(secret).collect::<Result<_, _>>()?;
        match secrets.len() {
            0 => Err(SecretError::Shape),
            n if n > SECRETS_MAX => Err(SecretError::TooMany),
            _ => Ok(Secrets(secrets)),
        }
    }
}

fn secret(word: &str) -> Result<Vec<u8>, SecretError> {
    let encoded = word.strip_prefix(PREFIX).ok_or(SecretError::Shape)?;
    let bytes = STANDARD.decode(encoded).map_err(|_| SecretError::Shape)?;
    match bytes.len() {
        SECRET_BYTES_MIN..=SECRET_BYTES_MAX => Ok(bytes),
        other => Err(SecretError::Length(other)),
    }
}

impl Secrets {
    /// The number of secrets.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The value of `webhook-signature`: one signature per secret.
    pub(super) fn sign(&self, id: &str, sent_at: &str, body: &[u8]) -> String {
        let signatures: Vec<String> = self
            .0
            .iter()
            .map(|secret| {
                let mut mac =
                    Hmac::<Sha256>::new_from_slice(secret).expect("HMAC accepts keys of any length");
                for part in [id.as_bytes(), b".", sent_at.as_bytes(), b".", body] {
                    mac.update(part);
                }
                format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
            })
            .collect();
        signatures.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the reference implementations of Standard Webhooks.
    #[test]
    fn signatures_match_the_reference_implementation() {
        let secrets: Secrets = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().expect("a secret");
        let signed = secrets.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn each_secret_gives_one_signature() {
        let (old, new) = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", format!("whsec_{}", "A".repeat(32)));
        let both: Secrets = format!("{new} {old}").parse().expect("two secrets");
        let alone = |text: &str| text.parse::<Secrets>().expect("a secret").sign("a", "1", b"{}");
        assert_eq!(both.sign("a", "1", b"{}"), format!("{} {}", alone(&new), alone(old)));
    }

    #[test]
    fn an_invalid_secret_is_refused_and_not_shown() {
        let coded = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
        for (text, wrong) in [
            (String::new(), SecretError::Shape),
            ("hunter2".into(), SecretError::Shape),
            ("whsec_%%%".into(), SecretError::Shape),
            ("whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into(), SecretError::Shape),
            (coded(23), SecretError::Length(23)),
            (coded(65), SecretError::Length(65)),
            (vec![coded(24); 9].join(" "), SecretError::TooMany),
        ] {
            let error = text.parse::<Secrets>().expect_err(&text);
            assert_eq!(error, wrong);
            assert!(text.is_empty() || !error.to_string().contains(&text));
        }
        for bytes in [24, 64] {
            assert_eq!(coded(bytes).parse::<Secrets>().expect("a secret").count(), 1);
        }
    }
}
