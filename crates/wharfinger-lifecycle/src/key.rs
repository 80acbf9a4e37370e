//! Keys of objects in the store: `uploads/<tenant>/<user>/<fileId>`, each part percent-encoded.

use std::fmt;

use serde::Serialize;

use crate::id::{FileId, JobId, TenantId, UserId};

/// Prefix of uploaded objects. Orphan scans list this prefix and `derived/` only.
pub const UPLOADS: &str = "uploads/";
/// Prefix of objects that processing stages write.
pub const DERIVED: &str = "derived/";
/// Prefix of the program's own objects. [`ObjectKey::parse`] rejects keys with this prefix: it contains a dot.
pub const INTERNAL: &str = ".wharfinger/";

/// The full key of an object in its store. Keys compare by bytes, which is the order in which stores list them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ObjectKey(String);

/// Prefix of archived events. Orphan scans do not list it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventsFolder {
    Raw,
    /// Batches that were damaged on disk, unchanged.
    Damaged,
}

impl EventsFolder {
    pub fn as_str(self) -> &'static str {
        match self {
            EventsFolder::Raw => "RAW/",
            EventsFolder::Damaged => "RAW_DLQ/",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid object key")]
pub struct BadKey;

impl ObjectKey {
    pub fn original(tenant: &TenantId, user: &UserId, file: FileId) -> ObjectKey {
        ObjectKey(format!("{UPLOADS}{}/{}/{file}", encode_part(tenant.as_str()), encode_part(user.as_str())))
    }

    /// A part of a file's text. The key contains the attempt, so two attempts never write the same object.
    pub fn text_part(original: &ObjectKey, job: JobId, token: i64, part: u32) -> ObjectKey {
        let owned = original.0.strip_prefix(UPLOADS).unwrap_or(&original.0);
        ObjectKey(format!("{DERIVED}{owned}/{job}-{token}/text-{part:05}"))
    }

    /// A batch of events. `path` is the hour and the batch name, already percent-encoded.
    pub fn events(folder: EventsFolder, path: &str) -> Result<ObjectKey, BadKey> {
        let plain = |byte: u8| is_plain(byte) || matches!(byte, b'%' | b'.');
        let is_valid = !path.is_empty()
            && path.split('/').all(|part| {
                !matches!(part, "" | "." | "..")
                    && part.len() <= crate::limits::KEY_PART_BYTES_MAX
                    && part.bytes().all(plain)
            });
        if is_valid { Ok(ObjectKey(format!("{}{path}", folder.as_str()))) } else { Err(BadKey) }
    }

    /// The marker object, which names the catalog that owns the store.
    pub fn marker() -> ObjectKey {
        ObjectKey(format!("{INTERNAL}store"))
    }

    /// A temporary object that tests the abilities of a store.
    pub fn probe(name: &str) -> ObjectKey {
        ObjectKey(format!("{INTERNAL}probe/{}", encode_part(name)))
    }

    /// Parses a key from an untrusted source. Parts are not empty, contain no dot and fit into a file name. So a key
    /// cannot leave its folder, whatever path it is joined to.
    pub fn parse(text: &str) -> Result<ObjectKey, BadKey> {
        let is_valid = !text.is_empty()
            && text.split('/').all(|part| {
                !part.is_empty()
                    && part.len() <= crate::limits::KEY_PART_BYTES_MAX
                    && part.bytes().all(|byte| is_plain(byte) || byte == b'%')
            });
        if is_valid { Ok(ObjectKey(text.to_owned())) } else { Err(BadKey) }
    }

    /// Accepts a key that a store listed under `uploads/` or `derived/`, also one in another format than ours. The key
    /// cannot leave its folder, whatever path it is joined to.
    pub fn from_listing(text: &str) -> Result<ObjectKey, BadKey> {
        let below = [UPLOADS, DERIVED].into_iter().find_map(|folder| text.strip_prefix(folder));
        let is_valid = below.is_some_and(|rest| {
            rest.split('/').all(|part| {
                !matches!(part, "" | "." | "..")
                    && part.len() <= crate::limits::KEY_PART_BYTES_MAX
                    // U+FFFD replaces bytes that are not UTF-8: the text would be the key of another object.
                    && !part.chars().any(|c| c.is_control() || c == '\\' || c == char::REPLACEMENT_CHARACTER)
            })
        });
        if is_valid && text.len() <= crate::limits::KEY_BYTES_MAX {
            Ok(ObjectKey(text.to_owned()))
        } else {
            Err(BadKey)
        }
    }

    /// Accepts a key from any bucket if every store can be asked for it. URL libraries resolve `.` and `..`, and XML
    /// cannot contain control characters, so these keys are rejected.
    pub fn from_foreign_bucket(text: &str) -> Result<ObjectKey, BadKey> {
        let is_valid = !text.is_empty()
            && text.len() <= crate::limits::KEY_BYTES_MAX
            && text.split('/').all(|part| !matches!(part, "." | ".."))
            && !text
                .chars()
                .any(|c| (c.is_control() && !matches!(c, '\t' | '\n')) || c == char::REPLACEMENT_CHARACTER);
        if is_valid { Ok(ObjectKey(text.to_owned())) } else { Err(BadKey) }
    }

    /// The owner that the key names. `None` for a key in another format.
    pub fn owner(&self) -> Option<(TenantId, UserId)> {
        let mut parts = self.0.split('/').skip(1);
        let tenant = TenantId::new(&decode_part(parts.next()?)?).ok()?;
        let user = UserId::new(&decode_part(parts.next()?)?).ok()?;
        parts.next().map(|_| (tenant, user))
    }

    /// Whether the key has exactly the format that this program writes under `uploads/` or `derived/`. Scans treat an
    /// object without a row and with another key as foreign.
    pub fn has_own_format(text: &str) -> bool {
        let parts: Vec<&str> = text.split('/').collect();
        let is_owned = |tenant: &str, user: &str, file: &str| {
            is_canonical(tenant, |name| TenantId::new(name).is_ok())
                && is_canonical(user, |name| UserId::new(name).is_ok())
                && is_uuid_v7(file)
        };
        match parts[..] {
            ["uploads", tenant, user, file] => is_owned(tenant, user, file),
            ["derived", tenant, user, file, attempt, part] => {
                let is_attempt = attempt.split_at_checked(36).is_some_and(|(job, token)| {
                    is_uuid_v7(job) && token.strip_prefix('-').is_some_and(|token| is_number(token, 1))
                });
                is_owned(tenant, user, file)
                    && is_attempt
                    && part.strip_prefix("text-").is_some_and(|part| is_number(part, 5))
            }
            _ => false,
        }
    }

    /// The folder with all derived objects of the same file. `None` for an object that is not derived.
    pub fn derived_folder(&self) -> Option<String> {
        let parts: Vec<&str> = self.0.split('/').collect();
        match parts[..] {
            ["derived", tenant, user, file, _, _] => Some(format!("{DERIVED}{tenant}/{user}/{file}/")),
            _ => None,
        }
    }

    /// The file that the key names.
    pub fn file(&self) -> Option<FileId> {
        self.0.split('/').nth(3)?.parse().ok()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether the part is a valid name in our encoding.
fn is_canonical(part: &str, is_good: impl Fn(&str) -> bool) -> bool {
    decode_part(part).is_some_and(|name| is_good(&name) && encode_part(&name) == part)
}

fn is_uuid_v7(text: &str) -> bool {
    text.parse::<FileId>().is_ok_and(|id| id.0.get_version_num() == 7 && id.to_string() == text)
}

/// Digits in the form that `{:0width$}` writes.
fn is_number(text: &str, digits_min: usize) -> bool {
    let is_padded = text.len() > digits_min && text.starts_with('0');
    text.len() >= digits_min && !is_padded && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The key prefixes of all objects of a tenant, or of one user.
pub fn owner_prefixes(tenant: &TenantId, user: Option<&UserId>) -> [String; 2] {
    let mut owned = format!("{}/", encode_part(tenant.as_str()));
    if let Some(user) = user {
        owned = format!("{owned}{}/", encode_part(user.as_str()));
    }
    [format!("{DERIVED}{owned}"), format!("{UPLOADS}{owned}")]
}

/// The first key that sorts after every key in a folder. `folder` ends with `/`, and `0` is the next byte.
pub fn end_of_folder(folder: &str) -> String {
    format!("{}0", folder.strip_suffix('/').unwrap_or(folder))
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~')
}

/// Percent-encodes all bytes except letters, digits, `-`, `_` and `~`. Dots are encoded too, so that no part is `..`.
pub fn encode_part(text: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if is_plain(byte) {
            out.push(byte as char);
        } else {
            out.push('%');
            out.push(HEX[usize::from(byte >> 4)] as char);
            out.push(HEX[usize::from(byte & 15)] as char);
        }
    }
    out
}

/// Decodes a part. `None` if [`encode_part`] would spell it differently.
fn decode_part(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut pieces = part.split('%');
    bytes.extend_from_slice(pieces.next()?.as_bytes());
    for piece in pieces {
        bytes.push(u8::from_str_radix(piece.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&piece.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok().filter(|text| encode_part(text) == part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dots_and_slashes_are_encoded_and_rejected() {
        assert_eq!(encode_part("../a b/ü"), "%2E%2E%2Fa%20b%2F%C3%BC");
        assert!(ObjectKey::parse("uploads/../secrets").is_err());
        assert!(ObjectKey::parse("uploads//x").is_err());
        assert!(ObjectKey::parse("/uploads/x").is_err());
        assert!(ObjectKey::parse("uploads/x/").is_err());
        assert!(ObjectKey::parse("").is_err());
    }

    #[test]
    fn events_stay_below_their_folders() {
        let key = ObjectKey::events(EventsFolder::Raw, "2025/06/15/15/1750000000_a%20b_7.jsonl.gz");
        assert_eq!(key.map(|key| key.0).as_deref(), Ok("RAW/2025/06/15/15/1750000000_a%20b_7.jsonl.gz"));
        for invalid in ["", "a//b", "../b", "a/../b", "a/./b", "/a", "a/", "a b", "a\\b", "ü"] {
            assert_eq!(ObjectKey::events(EventsFolder::Damaged, invalid), Err(BadKey), "{invalid:?}");
        }
    }

    #[test]
    fn only_generated_keys_have_our_format() {
        let tenant = TenantId::new("a b/ü").expect("a tenant");
        let user = UserId::new("u").expect("a user");
        let file: FileId = "018f4e6e-7f3a-7000-8000-000000000001".parse().expect("an id");
        let job: JobId = "018f4e6e-7f3a-7000-8000-000000000002".parse().expect("an id");
        let original = ObjectKey::original(&tenant, &user, file);
        assert!(ObjectKey::has_own_format(original.as_str()), "{original}");
        assert_eq!(original.derived_folder(), None);
        for (token, part) in [(1, 0), (12, 7), (3, 123_456)] {
            let derived = ObjectKey::text_part(&original, job, token, part);
            assert!(ObjectKey::has_own_format(derived.as_str()), "{derived}");
            let folder = derived.derived_folder().expect("a folder");
            assert!(derived.as_str().starts_with(&folder) && folder.contains(&file.to_string()), "{folder}");
        }
        for other in [
            "uploads/t/u/report.pdf",
            "uploads/018f4e6e-7f3a-7000-8000-000000000001",
            "uploads/t/018f4e6e-7f3a-7000-8000-000000000001",
            "uploads/t/u/v/018f4e6e-7f3a-7000-8000-000000000001",
            "uploads/t/u/018f4e6e-7f3a-4000-8000-000000000001",
            "uploads/t/u/018F4E6E-7F3A-7000-8000-000000000001",
            "uploads/t/u/018f4e6e7f3a70008000000000000001",
            "uploads/t/u/018f4e6e-7f3a-7000-8000-000000000001/",
            "uploads/t/u/018f4e6e-7f3a-7000-8000-000000000001.jpg",
            "uploads/a b/u/018f4e6e-7f3a-7000-8000-000000000001",
            "uploads/a%2eb/u/018f4e6e-7f3a-7000-8000-000000000001",
            "uploads/%61/u/018f4e6e-7f3a-7000-8000-000000000001",
            "uploads//u/018f4e6e-7f3a-7000-8000-000000000001",
            "derived/t/u/018f4e6e-7f3a-7000-8000-000000000001",
            "derived/t/u/018f4e6e-7f3a-7000-8000-000000000001/x/text-00000",
            "derived/t/u/018f4e6e-7f3a-7000-8000-000000000001/018f4e6e-7f3a-7000-8000-000000000002-1/text-0",
            "derived/t/u/018f4e6e-7f3a-7000-8000-000000000001/018f4e6e-7f3a-7000-8000-000000000002-1/text-000000",
            "derived/t/u/018f4e6e-7f3a-7000-8000-000000000001/018f4e6e-7f3a-7000-8000-000000000002-01/text-00000",
            "derived/t/u/018f4e6e-7f3a-7000-8000-000000000001/018f4e6e-7f3a-7000-8000-000000000002-1/page-00000",
            "elsewhere/t/u/018f4e6e-7f3a-7000-8000-000000000001",
            "",
        ] {
            assert!(!ObjectKey::has_own_format(other), "{other}");
        }
    }

    #[test]
    fn listed_keys_stay_below_their_folders() {
        for valid in
            ["uploads/other.bin", "uploads/a/b/c/d e.ü", "derived/x", "uploads/..a/.b", "uploads/%zz"]
        {
            assert_eq!(ObjectKey::from_listing(valid).map(|key| key.to_string()).as_deref(), Ok(valid));
        }
        for invalid in [
            "uploads",
            "uploads/",
            "uploads/x/",
            "uploads//x",
            "uploads/../x",
            "uploads/a/./x",
            "uploads2/x",
            "upload/x",
            ".wharfinger/store",
            "RAW/x",
            "/uploads/x",
            "x/uploads/y",
            "uploads/a\0b",
            "uploads/a\nb",
            "uploads/a\\b",
            "uploads/\u{fffd}",
            "",
        ] {
            assert_eq!(ObjectKey::from_listing(invalid), Err(BadKey), "{invalid:?}");
        }
        assert!(ObjectKey::from_listing(&format!("uploads/{}", "a".repeat(256))).is_err());
        assert!(ObjectKey::from_listing(&format!("uploads/{}", "a/".repeat(600))).is_err());
    }

    #[test]
    fn foreign_keys_are_kept_unchanged() {
        for valid in ["a", "/a", "a//b", "a/", "..a", "a b", "a\nb", "a\\b", "ü", "%2E%2E", "uploads/x"] {
            assert_eq!(
                ObjectKey::from_foreign_bucket(valid).map(|key| key.to_string()).as_deref(),
                Ok(valid)
            );
        }
        for invalid in
            ["", "..", "../a", "a/../b", "a/.", "./a", "a\0b", "a\rb", "\u{fffd}", &"a".repeat(2_000)]
        {
            assert_eq!(ObjectKey::from_foreign_bucket(invalid), Err(BadKey), "{invalid:?}");
        }
    }

    #[test]
    fn a_key_names_its_owner_and_file() {
        let file: FileId = "018f4e6e-7f3a-7000-8000-000000000001".parse().expect("a fixed id");
        let (tenant, user) = (TenantId::new("a.b/ü").expect("a name"), UserId::new("u%41").expect("a name"));
        let key = ObjectKey::original(&tenant, &user, file);
        assert_eq!(key.owner(), Some((tenant.clone(), user.clone())));
        assert_eq!(key.file(), Some(file));
        let folders = owner_prefixes(&tenant, Some(&user));
        assert!(key.as_str().starts_with(&folders[1]) && key.as_str() < end_of_folder(&folders[1]).as_str());
        assert!(key.as_str().starts_with(&owner_prefixes(&tenant, None)[1]));
        for other in ["uploads/t", "uploads/t/u", "uploads/%zz/u/f", "uploads/%2e/u/f", "uploads/a b/u/f"] {
            assert_eq!(ObjectKey::from_listing(other).expect("a listed key").owner(), None, "{other}");
        }
        assert_eq!(end_of_folder(UPLOADS), "uploads0");
    }

    proptest! {
        #[test]
        fn generated_keys_parse_and_are_unique_per_tenant(a in "\\PC{1,40}", b in "\\PC{1,40}") {
            let file: FileId = "018f4e6e-7f3a-7000-8000-000000000001".parse().expect("a fixed id");
            let (Ok(tenant_a), Ok(tenant_b)) = (TenantId::new(&a), TenantId::new(&b)) else { return Ok(()) };
            let user = UserId::new("u").expect("a fixed name");
            let key_a = ObjectKey::original(&tenant_a, &user, file);
            let key_b = ObjectKey::original(&tenant_b, &user, file);
            prop_assert_eq!(ObjectKey::parse(key_a.as_str()), Ok(key_a.clone()));
            prop_assert_eq!(key_a == key_b, a == b);
        }
    }
}
