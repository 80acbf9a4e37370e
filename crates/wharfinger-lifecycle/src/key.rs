//! Where an object lies: `uploads/<tenant>/<user>/<fileId>`, each part percent-encoded.

use std::fmt;

use serde::Serialize;

use crate::id::{FileId, JobId, TenantId, UserId};

/// What clients upload. Scans for orphans look here and under `derived/`, nowhere else.
pub const UPLOADS: &str = "uploads/";
/// What stages make of them.
pub const DERIVED: &str = "derived/";
/// What the program keeps in the store for itself. No key that is parsed lies here.
pub const OWN: &str = ".wharfinger/";

/// The full name of an object in its store. Ordered by bytes, as stores list them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ObjectKey(String);

/// Where events lie. Scans for orphans do not look here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventsFolder {
    Raw,
    /// Batches that were damaged on disk, as they were found.
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
#[error("not a key this program would make")]
pub struct BadKey;

impl ObjectKey {
    pub fn original(tenant: &TenantId, user: &UserId, file: FileId) -> ObjectKey {
        ObjectKey(format!("{UPLOADS}{}/{}/{file}", encode_part(tenant.as_str()), encode_part(user.as_str())))
    }

    /// A piece of a file's text. The attempt that puts it is in its name: two never put the same.
    pub fn text_part(original: &ObjectKey, job: JobId, token: i64, part: u32) -> ObjectKey {
        let owned = original.0.strip_prefix(UPLOADS).unwrap_or(&original.0);
        ObjectKey(format!("{DERIVED}{owned}/{job}-{token}/text-{part:05}"))
    }

    /// Events, by `place` below the folder: an hour and the name of a batch, of letters that need no encoding.
    pub fn events(folder: EventsFolder, place: &str) -> Result<ObjectKey, BadKey> {
        let plain = |byte: u8| is_plain(byte) || matches!(byte, b'%' | b'.');
        let sound = !place.is_empty()
            && place.split('/').all(|part| {
                !matches!(part, "" | "." | "..")
                    && part.len() <= crate::limits::KEY_PART_BYTES_MAX
                    && part.bytes().all(plain)
            });
        if sound { Ok(ObjectKey(format!("{}{place}", folder.as_str()))) } else { Err(BadKey) }
    }

    /// Says whose objects lie in a store.
    pub fn mark() -> ObjectKey {
        ObjectKey(format!("{OWN}store"))
    }

    /// Something that is put to learn what a store does, and deleted again.
    pub fn probe(name: &str) -> ObjectKey {
        ObjectKey(format!("{OWN}probe/{}", encode_part(name)))
    }

    /// Takes a key back from outside. A part is never empty, never holds a dot, and never more than a file
    /// system's name: so a key cannot climb out of its folder whatever it is joined to.
    pub fn parse(text: &str) -> Result<ObjectKey, BadKey> {
        let sound = !text.is_empty()
            && text.split('/').all(|part| {
                !part.is_empty()
                    && part.len() <= crate::limits::KEY_PART_BYTES_MAX
                    && part.bytes().all(|byte| is_plain(byte) || byte == b'%')
            });
        if sound { Ok(ObjectKey(text.to_owned())) } else { Err(BadKey) }
    }

    /// Takes a name that somebody else gave, as a store lists it: below `uploads/` or `derived/`, and of parts that
    /// lead nowhere else, whatever they are joined to.
    pub fn stray(text: &str) -> Result<ObjectKey, BadKey> {
        let below = [UPLOADS, DERIVED].into_iter().find_map(|folder| text.strip_prefix(folder));
        let sound = below.is_some_and(|rest| {
            rest.split('/').all(|part| {
                !matches!(part, "" | "." | "..")
                    && part.len() <= crate::limits::KEY_PART_BYTES_MAX
                    // The last stands for bytes that are no text: the key would be another's.
                    && !part.chars().any(|c| c.is_control() || c == '\\' || c == char::REPLACEMENT_CHARACTER)
            })
        });
        if sound && text.len() <= crate::limits::KEY_BYTES_MAX {
            Ok(ObjectKey(text.to_owned()))
        } else {
            Err(BadKey)
        }
    }

    /// Takes a name from a bucket that is somebody else's, if every store can be asked for it by that name: parts that
    /// lead elsewhere are dissolved on the way, and XML does not hold control characters.
    pub fn foreign(text: &str) -> Result<ObjectKey, BadKey> {
        let sound = !text.is_empty()
            && text.len() <= crate::limits::KEY_BYTES_MAX
            && text.split('/').all(|part| !matches!(part, "." | ".."))
            && !text
                .chars()
                .any(|c| (c.is_control() && !matches!(c, '\t' | '\n')) || c == char::REPLACEMENT_CHARACTER);
        if sound { Ok(ObjectKey(text.to_owned())) } else { Err(BadKey) }
    }

    /// Whose it is by its name; a name of another form says nothing.
    pub fn owner(&self) -> Option<(TenantId, UserId)> {
        let mut parts = self.0.split('/').skip(1);
        let tenant = TenantId::new(&decode_part(parts.next()?)?).ok()?;
        let user = UserId::new(&decode_part(parts.next()?)?).ok()?;
        parts.next().map(|_| (tenant, user))
    }

    /// Whether this program could have made the name: `uploads/<tenant>/<user>/<fileId>`, or what stages put under
    /// `derived/`, spelled exactly as here. Other names belong to others, whatever folder they are in.
    pub fn is_own_form(text: &str) -> bool {
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

    /// The folder of all that stages made of this object's file; none if it is not one of those.
    pub fn derived_folder(&self) -> Option<String> {
        let parts: Vec<&str> = self.0.split('/').collect();
        match parts[..] {
            ["derived", tenant, user, file, _, _] => Some(format!("{DERIVED}{tenant}/{user}/{file}/")),
            _ => None,
        }
    }

    /// The file it is of by its name.
    pub fn file(&self) -> Option<FileId> {
        self.0.split('/').nth(3)?.parse().ok()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A part that encodes a good name, in the one way that we encode it.
fn is_canonical(part: &str, is_good: impl Fn(&str) -> bool) -> bool {
    decode_part(part).is_some_and(|name| is_good(&name) && encode_part(&name) == part)
}

fn is_uuid_v7(text: &str) -> bool {
    text.parse::<FileId>().is_ok_and(|id| id.0.get_version_num() == 7 && id.to_string() == text)
}

/// Digits as `{:0width$}` writes them.
fn is_number(text: &str, digits_min: usize) -> bool {
    let is_padded = text.len() > digits_min && text.starts_with('0');
    text.len() >= digits_min && !is_padded && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// What the names of all objects of a tenant, or of one of its users, begin with.
pub fn folders_of(tenant: &TenantId, user: Option<&UserId>) -> [String; 2] {
    let mut owned = format!("{}/", encode_part(tenant.as_str()));
    if let Some(user) = user {
        owned = format!("{owned}{}/", encode_part(user.as_str()));
    }
    [format!("{DERIVED}{owned}"), format!("{UPLOADS}{owned}")]
}

/// The first name that sorts behind everything in a folder, whose own name ends in a slash.
pub fn behind(folder: &str) -> String {
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

/// Percent-encodes all but letters, digits, `-`, `_` and `~`; also the dot, so that no part is `..`.
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

/// The text that is encoded so, in that one spelling.
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
    fn dots_and_slashes_do_not_survive() {
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
        for unsound in ["", "a//b", "../b", "a/../b", "a/./b", "/a", "a/", "a b", "a\\b", "ü"] {
            assert_eq!(ObjectKey::events(EventsFolder::Damaged, unsound), Err(BadKey), "{unsound:?}");
        }
    }

    #[test]
    fn only_names_that_we_make_are_of_our_form() {
        let tenant = TenantId::new("a b/ü").expect("a tenant");
        let user = UserId::new("u").expect("a user");
        let file: FileId = "018f4e6e-7f3a-7000-8000-000000000001".parse().expect("an id");
        let job: JobId = "018f4e6e-7f3a-7000-8000-000000000002".parse().expect("an id");
        let original = ObjectKey::original(&tenant, &user, file);
        assert!(ObjectKey::is_own_form(original.as_str()), "{original}");
        assert_eq!(original.derived_folder(), None);
        for (token, part) in [(1, 0), (12, 7), (3, 123_456)] {
            let derived = ObjectKey::text_part(&original, job, token, part);
            assert!(ObjectKey::is_own_form(derived.as_str()), "{derived}");
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
            assert!(!ObjectKey::is_own_form(other), "{other}");
        }
    }

    #[test]
    fn strays_stay_below_their_folders() {
        for sound in
            ["uploads/stray.bin", "uploads/a/b/c/d e.ü", "derived/x", "uploads/..a/.b", "uploads/%zz"]
        {
            assert_eq!(ObjectKey::stray(sound).map(|key| key.to_string()).as_deref(), Ok(sound));
        }
        for unsound in [
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
            assert_eq!(ObjectKey::stray(unsound), Err(BadKey), "{unsound:?}");
        }
        assert!(ObjectKey::stray(&format!("uploads/{}", "a".repeat(256))).is_err());
        assert!(ObjectKey::stray(&format!("uploads/{}", "a/".repeat(600))).is_err());
    }

    #[test]
    fn foreign_names_are_taken_as_they_are() {
        for sound in ["a", "/a", "a//b", "a/", "..a", "a b", "a\nb", "a\\b", "ü", "%2E%2E", "uploads/x"] {
            assert_eq!(ObjectKey::foreign(sound).map(|key| key.to_string()).as_deref(), Ok(sound));
        }
        for unsound in
            ["", "..", "../a", "a/../b", "a/.", "./a", "a\0b", "a\rb", "\u{fffd}", &"a".repeat(2_000)]
        {
            assert_eq!(ObjectKey::foreign(unsound), Err(BadKey), "{unsound:?}");
        }
    }

    #[test]
    fn a_name_says_whose_it_is() {
        let file: FileId = "018f4e6e-7f3a-7000-8000-000000000001".parse().expect("a fixed id");
        let (tenant, user) = (TenantId::new("a.b/ü").expect("a name"), UserId::new("u%41").expect("a name"));
        let key = ObjectKey::original(&tenant, &user, file);
        assert_eq!(key.owner(), Some((tenant.clone(), user.clone())));
        assert_eq!(key.file(), Some(file));
        let folders = folders_of(&tenant, Some(&user));
        assert!(key.as_str().starts_with(&folders[1]) && key.as_str() < behind(&folders[1]).as_str());
        assert!(key.as_str().starts_with(&folders_of(&tenant, None)[1]));
        for other in ["uploads/t", "uploads/t/u", "uploads/%zz/u/f", "uploads/%2e/u/f", "uploads/a b/u/f"] {
            assert_eq!(ObjectKey::stray(other).expect("a stray").owner(), None, "{other}");
        }
        assert_eq!(behind(UPLOADS), "uploads0");
    }

    proptest! {
        #[test]
        fn made_keys_parse_and_differ_where_their_owners_do(a in "\\PC{1,40}", b in "\\PC{1,40}") {
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
