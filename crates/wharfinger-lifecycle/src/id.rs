//! A separate type for each kind of id, so that a tenant id cannot be passed as a user id.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::key;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.as_hyphenated().fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = uuid::Error;

            /// Accepts only the canonical form, so that each id has exactly one spelling.
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let id = *text.parse::<uuid::fmt::Hyphenated>()?.as_uuid();
                if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
                    return Err(Uuid::parse_str("").expect_err("an empty text is not an id"));
                }
                Ok(Self(id))
            }
        }
    };
}

uuid_id!(
    /// A file, from its registration until its tombstone is removed. Time-ordered (UUIDv7).
    FileId
);
uuid_id!(
    /// A batch of uploads.
    BatchId
);
uuid_id!(
    /// One unit of background work.
    JobId
);
uuid_id!(
    /// A pending cleanup: bytes to delete from the store.
    CleanupId
);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error("must not be empty")]
    Empty,
    #[error("is longer than {} bytes once percent-encoded", crate::limits::KEY_PART_BYTES_MAX)]
    TooLong,
    #[error("contains a control character")]
    Control,
}

fn checked(text: &str) -> Result<String, BadName> {
    if text.is_empty() {
        return Err(BadName::Empty);
    }
    if text.chars().any(char::is_control) {
        return Err(BadName::Control);
    }
    if key::encode_part(text).len() > crate::limits::KEY_PART_BYTES_MAX {
        return Err(BadName::TooLong);
    }
    Ok(text.to_owned())
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            pub fn new(text: &str) -> Result<Self, BadName> {
                checked(text).map(Self)
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// The owner of a quota.
    TenantId
);
text_id!(
    /// A user: the `sub` of a token, unique within its tenant.
    UserId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_spelling_is_accepted() {
        assert!("018f4e6e-7f3a-7000-8000-000000000001".parse::<FileId>().is_ok());
        assert!("018f4e6e7f3a70008000000000000001".parse::<FileId>().is_err());
        assert!("{018f4e6e-7f3a-7000-8000-000000000001}".parse::<FileId>().is_err());
        assert!("018F4E6E-7F3A-7000-8000-000000000001".parse::<FileId>().is_err());
        assert!("../etc/passwd".parse::<FileId>().is_err());
    }

    #[test]
    fn names_are_limited_by_their_encoded_length() {
        assert!(TenantId::new(&"a".repeat(255)).is_ok());
        assert_eq!(TenantId::new(&"a".repeat(256)), Err(BadName::TooLong));
        assert_eq!(TenantId::new(&"/".repeat(86)), Err(BadName::TooLong));
        assert_eq!(UserId::new(""), Err(BadName::Empty));
        assert_eq!(UserId::new("a\0b"), Err(BadName::Control));
    }
}
