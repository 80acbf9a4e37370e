//! Shared access signatures (SAS): what clients may do with one blob, or we with the container, and until when.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// The version of the service's API. It decides how a SAS is signed and interpreted.
pub(super) const VERSION: &str = "2023-11-03";

/// The account's key, or a user delegation key that the service issues to an identity for some days.
pub(super) enum SigningKey {
    Account(Vec<u8>),
    Delegated(DelegationKey),
}

/// As the service issues it. All fields except the value are part of each SAS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DelegationKey {
    pub(super) object_id: String,
    pub(super) tenant_id: String,
    pub(super) start: String,
    pub(super) expiry: String,
    pub(super) service: String,
    pub(super) version: String,
    pub(super) value: Vec<u8>,
}

/// What a SAS permits.
#[derive(Clone, Debug)]
pub(super) struct SasGrant<'a> {
    pub(super) account: &'a str,
    pub(super) container: &'a str,
    /// None: the whole container.
    pub(super) blob: Option<&'a str>,
    pub(super) version_id: Option<&'a str>,
    /// One letter for each permission.
    pub(super) permissions: &'static str,
    pub(super) expires_at: SystemTime,
    pub(super) https_only: bool,
    pub(super) content_disposition: Option<String>,
    pub(super) content_type: Option<String>,
}

impl SasGrant<'_> {
    /// The query parameters of the SAS, not yet encoded.
    pub(super) fn signed(&self, key: &SigningKey) -> Vec<(&'static str, String)> {
        let expiry = iso(self.expires_at);
        let resource = match self.blob {
            Some(blob) => format!("/blob/{}/{}/{blob}", self.account, self.container),
            None => format!("/blob/{}/{}", self.account, self.container),
        };
        let kind = match (self.blob, self.version_id) {
            (None, _) => "c",
            (Some(_), None) => "b",
            (Some(_), Some(_)) => "bv",
        };
        let protocol = if self.https_only { "https" } else { "" };
        let disposition = self.content_disposition.as_deref().unwrap_or("");
        let content_type = self.content_type.as_deref().unwrap_or("");
        // For downloads, so that clients get the bytes as they are stored.
        let encoding = if disposition.is_empty() { "" } else { "identity" };

        let mut lines: Vec<&str> = vec![self.permissions, "", &expiry, &resource];
        let secret = match key {
            SigningKey::Account(secret) => {
                lines.push("");
                secret
            }
            SigningKey::Delegated(key) => {
                lines.extend([key.object_id.as_str(), &key.tenant_id, &key.start, &key.expiry]);
                lines.extend([key.service.as_str(), &key.version, "", "", ""]);
                &key.value
            }
        };
        lines.extend(["", protocol, VERSION, kind, self.version_id.unwrap_or(""), ""]);
        lines.extend(["", disposition, encoding, "", content_type]);
        let signature = signature(secret, &lines.join("\n"));

        let mut query = vec![("sv", VERSION.to_owned()), ("sr", kind.to_owned())];
        query.extend([("sp", self.permissions.to_owned()), ("se", expiry)]);
        let given = [("spr", protocol), ("rscd", disposition), ("rsce", encoding), ("rsct", content_type)];
        query.extend(
            given.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (*name, (*value).into())),
        );
        if let Some(version_id) = self.version_id {
            query.push(("versionid", version_id.to_owned()));
        }
        if let SigningKey::Delegated(key) = key {
            query.extend([("skoid", key.object_id.clone()), ("sktid", key.tenant_id.clone())]);
            query.extend([("skt", key.start.clone()), ("ske", key.expiry.clone())]);
            query.extend([("sks", key.service.clone()), ("skv", key.version.clone())]);
        }
        query.push(("sig", signature));
        query
    }
}

fn signature(secret: &[u8], text: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes a key of any length");
    mac.update(text.as_bytes());
    STANDARD.encode(mac.finalize().into_bytes())
}

/// In whole seconds, as Azure writes times. Rounding down makes a SAS expire early, never late.
pub(super) fn iso(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let at = DateTime::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    at.fmt(Format::DateTime).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sas(blob: Option<&'static str>, permissions: &'static str) -> SasGrant<'static> {
        SasGrant {
            account: "acct",
            container: "box",
            blob,
            version_id: None,
            permissions,
            expires_at: UNIX_EPOCH + Duration::from_millis(2_000_000_000_999),
            https_only: false,
            content_disposition: None,
            content_type: None,
        }
    }

    fn value<'a>(query: &'a [(&'static str, String)], name: &str) -> Option<&'a str> {
        query.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// The expected signatures come from Azure's own library for Python, 12.20.0, set to our version.
    #[test]
    fn signatures_equal_those_of_azures_own_library() {
        let key = SigningKey::Account(b"a key of the tests".to_vec());
        let blob = "uploads/h%C3%A4fen/ada/f";
        let create = SasGrant { https_only: true, ..sas(Some(blob), "c") };
        let read = SasGrant {
            content_disposition: Some("attachment; filename*=UTF-8''%C3%9C%20b%2Epdf".into()),
            content_type: Some("image/svg+xml".into()),
            ..sas(Some(blob), "r")
        };
        let version = SasGrant { version_id: Some("2026-01-02T03:04:05.1234567Z"), ..sas(Some("f"), "r") };
        for (sas, kind, sig) in [
            (create, "b", "dnS4UWi6VZa+wUaW400i0QNaxp7BATk1ImGUwCjKkkk="),
            (read, "b", "A8SH42xAuO27dOF95IQjGLx9wYSarTeGDgByEpUQE/g="),
            (version, "bv", "Jfk8NMGHW4udCwd7+dNe5SVInf3sHVxUeOQNlyvVLh8="),
            (sas(None, "racwdxl"), "c", "5+z3WO9NlnyN+n8NzXrtzx5dmGqZU7H74T9GYzmPpUs="),
        ] {
            let query = sas.signed(&key);
            assert_eq!(value(&query, "se"), Some("2033-05-18T03:33:20Z"));
            assert_eq!(value(&query, "sr"), Some(kind));
            assert_eq!(value(&query, "sp"), Some(sas.permissions));
            assert_eq!(value(&query, "sig"), Some(sig), "{sas:?}");
        }
    }

    #[test]
    fn a_delegation_key_is_named_in_its_signatures() {
        let key = SigningKey::Delegated(DelegationKey {
            object_id: "11111111-2222-3333-4444-555555555555".into(),
            tenant_id: "66666666-7777-8888-9999-000000000000".into(),
            start: "2033-05-12T00:00:00Z".into(),
            expiry: "2033-05-19T00:00:00Z".into(),
            service: "b".into(),
            version: VERSION.into(),
            value: b"a key that was lent".to_vec(),
        });
        let query = SasGrant { https_only: true, ..sas(Some("uploads/t/u/f"), "c") }.signed(&key);
        assert_eq!(value(&query, "skoid"), Some("11111111-2222-3333-4444-555555555555"));
        assert_eq!(value(&query, "ske"), Some("2033-05-19T00:00:00Z"));
        assert_eq!(value(&query, "sig"), Some("MQIvmhdzY/7xikKULgToYO+2BTAO8XxLq4Vu1zDbiWg="));
    }
}
