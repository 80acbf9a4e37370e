//! Validates upload requests before anything is written. The first errors of a call are reported together, each with
//! its field. A size above the limit is reported only if there is no other error.

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use wharfinger_lifecycle::checksum::{is_sha256, to_hex};
use wharfinger_lifecycle::file::UploadRequest;
use wharfinger_lifecycle::limits;
use wharfinger_lifecycle::name::check_file_name;
use wharfinger_lifecycle::stage::show_list;
use wharfinger_lifecycle::stage_choice::choose;
use wharfinger_lifecycle::tenant_policy::EffectivePolicy;

use crate::core::Core;
use crate::core::{FieldProblem, VerbError};

/// How many errors of one call are reported.
const PROBLEMS_MAX: usize = 20;

#[derive(Debug, Default)]
pub(crate) struct Problems(Vec<FieldProblem>);

impl Problems {
    fn add(&mut self, prefix: &str, field: &str, problem: String) {
        if self.0.len() < PROBLEMS_MAX {
            self.0.push(FieldProblem { field: format!("{prefix}{field}"), problem });
        }
    }

    pub(crate) fn into_result(self) -> Result<(), VerbError> {
        if self.0.is_empty() { Ok(()) } else { Err(VerbError::Invalid(self.0)) }
    }

    /// `prefix` is put before the names of the fields, for example `files[3].`.
    /// Also puts the chosen stages into the configured order.
    pub(crate) fn check(&mut self, core: &Core, announced: &mut UploadRequest, prefix: &str) {
        if let Err(bad) = check_file_name(&announced.name) {
            self.add(prefix, "fileName", bad.to_string());
        }
        if let Some(content_type) = &announced.content_type
            && !is_content_type(content_type)
        {
            self.add(prefix, "contentType", "must be a media type like `image/png`".into());
        }
        if let Some(checksum) = &announced.checksum_sha256
            && !is_sha256(checksum)
        {
            self.add(prefix, "checksumSha256", "must be 64 lower-case hex digits".into());
        }
        if let Some(metadata) = &announced.metadata {
            if metadata.len() > limits::METADATA_BYTES_MAX {
                self.add(prefix, "metadata", format!("is longer than {} bytes", limits::METADATA_BYTES_MAX));
            } else if let Err(bad) = check_metadata(metadata) {
                self.add(prefix, "metadata", bad);
            }
        }
        if let Some(wanted) = &announced.stages {
            match choose(wanted, &core.plan.stages) {
                Ok(stages) => announced.stages = Some(stages),
                Err(bad) => self.add(prefix, "stages", bad.to_string()),
            }
        }
    }

    pub(crate) fn check_key(&mut self, key: Option<&str>) {
        let max = limits::IDEMPOTENCY_KEY_BYTES_MAX;
        let is_good = |key: &str| {
            (1..=max).contains(&key.len()) && key.bytes().all(|byte| (0x20..0x7f).contains(&byte))
        };
        if key.is_some_and(|key| !is_good(key)) {
            self.add("", "Idempotency-Key", format!("must be 1 to {max} printable ASCII characters"));
        }
    }
}

/// Checks the size and the type that are announced against the rules of the tenant.
pub(crate) fn check_rules(
    core: &Core,
    policy: &EffectivePolicy,
    announced: &UploadRequest,
    prefix: &str,
) -> Result<(), VerbError> {
    let of_store = core.blobs.multipart().map_or(u64::MAX, |parts| parts.limits().object_bytes_max());
    let limit_bytes = policy.file_size_bytes_max.min(of_store);
    if announced.size > limit_bytes {
        return Err(VerbError::TooLarge { field: format!("{prefix}size"), limit_bytes });
    }
    let Some(allowed) = &policy.allowed_types else { return Ok(()) };
    let declared = announced.content_type.as_deref();
    match allowed.allows_all() || declared.is_some_and(|declared| allowed.allows(declared)) {
        true => Ok(()),
        false => Err(VerbError::TypeNotAllowed {
            field: format!("{prefix}contentType"),
            given: announced.content_type.clone(),
            allowed: allowed.clone(),
        }),
    }
}

/// Metadata is stored and returned as it was sent, so every JSON parser must be able to read it: no deep nesting, lone
/// surrogates, out-of-range numbers or NULs.
fn check_metadata(text: &str) -> Result<(), String> {
    fn has_nul(value: &Value) -> bool {
        match value {
            Value::String(text) => text.contains('\0'),
            Value::Array(items) => items.iter().any(has_nul),
            Value::Object(members) => {
                members.iter().any(|(name, value)| name.contains('\0') || has_nul(value))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }
    match serde_json::from_str::<Value>(text) {
        Err(error) => Err(format!("is not valid JSON: {error}")),
        Ok(value) if !value.is_object() => Err("must be an object".into()),
        Ok(value) if has_nul(&value) => Err("contains a NUL character".into()),
        Ok(_) => Ok(()),
    }
}

/// `type/subtype` with optional parameters, in visible ASCII.
fn is_content_type(text: &str) -> bool {
    let essence = text.split(';').next().unwrap_or_default();
    let token = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
    };
    text.len() <= limits::CONTENT_TYPE_BYTES_MAX
        && text == text.trim()
        && text.bytes().all(|b| (0x20..0x7f).contains(&b))
        && essence.trim_end().split_once('/').is_some_and(|(kind, subtype)| token(kind) && token(subtype))
}

/// A hash of everything in the requests.
pub(crate) fn fingerprint<'a>(all: impl IntoIterator<Item = &'a UploadRequest>) -> String {
    let mut hasher = Sha256::new();
    for announced in all {
        let size = announced.size.to_string();
        let stages = announced.stages.as_deref().map(show_list);
        let parts = [
            Some(announced.name.as_str()),
            Some(size.as_str()),
            announced.content_type.as_deref(),
            announced.checksum_sha256.as_deref(),
            announced.metadata.as_deref(),
            stages.as_deref(),
        ];
        for part in parts {
            hasher.update(part.map_or(u64::MAX, |text| text.len() as u64).to_be_bytes());
            hasher.update(part.unwrap_or_default());
        }
    }
    to_hex(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_types() {
        for good in ["image/png", "text/plain; charset=utf-8", "application/vnd.ms-excel", "image/svg+xml"] {
            assert!(is_content_type(good), "{good}");
        }
        for bad in ["", "png", "/", "a/", "a/b\r\nx: y", "a b/c", "ä/b", "text/plain "] {
            assert!(!is_content_type(bad), "{bad}");
        }
    }
}
