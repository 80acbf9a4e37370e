//! Confirms uploads that the object store reports, although their client disappeared. A report is only a hint: the object
//! is checked in the store as in any confirm.

mod pub_sub;

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use wharfinger_engines::object_events::{CreatedObject, SnsVerifier};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::StoreConfig;

use crate::config::{BadSetting, HookSettings};
use crate::core::{Core, VerbError};
use crate::telemetry::metric;
use crate::uploads::Uploads;
use crate::uploads::confirm::{ReportedOutcome, confirm_reported};
use pub_sub::PubSubTokens;

const ACTOR: &str = "hook";
/// How many objects of a message are checked at the same time.
const CHECKS_AT_ONCE: usize = 8;

/// What checks the senders of messages.
pub struct Hooks {
    pub sns: SnsVerifier,
    pub pub_sub: Option<PubSubTokens>,
}

impl Hooks {
    pub fn open(core: &Arc<Core>) -> Result<Hooks, BadSetting> {
        let HookSettings { sns_hosts, pub_sub, .. } = &core.settings.hooks;
        let pub_sub = pub_sub.as_ref().map(PubSubTokens::open).transpose()?;
        Ok(Hooks { sns: SnsVerifier::new(sns_hosts.clone()), pub_sub })
    }
}

/// What happened to the objects of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub confirmed: u64,
    pub repeated: u64,
    pub refused: u64,
    /// Objects of other buckets or without a file.
    pub unknown: u64,
    /// Objects whose file cannot be read. The log has the reason.
    pub failed: u64,
}

/// Confirms the uploads of these objects. An error means that the message should be sent again.
pub async fn object_created(uploads: &Uploads, objects: Vec<CreatedObject>) -> Result<Report, VerbError> {
    let checks: Vec<BoxFuture<'_, _>> =
        objects.iter().map(|object| confirm_one(uploads, object).boxed()).collect();
    let mut checked = stream::iter(checks).buffer_unordered(CHECKS_AT_ONCE);
    let (mut report, mut unavailable) = (Report::default(), None);
    while let Some(outcome) = checked.next().await {
        let (count, label) = match outcome {
            Ok(ReportedOutcome::Confirmed) => (&mut report.confirmed, "confirmed"),
            Ok(ReportedOutcome::Repeated) => (&mut report.repeated, "repeated"),
            Ok(ReportedOutcome::Refused) => (&mut report.refused, "refused"),
            Ok(ReportedOutcome::Unknown) => (&mut report.unknown, "unknown"),
            Err(error @ VerbError::Unavailable(_)) => {
                unavailable = Some(error);
                continue;
            }
            Err(error) => {
                tracing::error!(job = ACTOR, error = %error.with_cause(), "cannot confirm a reported object");
                (&mut report.failed, "failed")
            }
        };
        *count += 1;
        metric::hook_event(label);
    }
    match unavailable {
        Some(error) => Err(error),
        None => Ok(report),
    }
}

async fn confirm_one(uploads: &Uploads, object: &CreatedObject) -> Result<ReportedOutcome, VerbError> {
    let Some(keys) = keys_in_store(&uploads.core, object) else { return Ok(ReportedOutcome::Unknown) };
    let Some(id) = keys.iter().find_map(|key| file_id(key)) else { return Ok(ReportedOutcome::Unknown) };
    let is_key = |key: &ObjectKey| keys.iter().any(|reported| reported == key.as_str());
    confirm_reported(uploads, id, is_key, ACTOR).await
}

fn file_id(key: &str) -> Option<FileId> {
    key.rsplit('/').next()?.parse().ok()
}

/// The keys that can be meant, below our prefix: as reported, and decoded as S3 encodes keys. None: another bucket or prefix.
fn keys_in_store(core: &Core, object: &CreatedObject) -> Option<Vec<String>> {
    let (bucket, prefix) = match &core.settings.blobs {
        StoreConfig::Disk(_) => return None,
        StoreConfig::S3(options) => (&options.bucket, &options.prefix),
        StoreConfig::Azure(options) => (&options.container, &options.prefix),
        StoreConfig::Gcs(options) => (&options.bucket, &options.prefix),
    };
    if object.bucket != *bucket {
        return None;
    }
    let forms = [Some(object.key.clone()), form_decoded(&object.key)];
    let below = |key: String| key.strip_prefix(prefix.as_str()).map(str::to_owned);
    let keys: Vec<String> = forms.into_iter().flatten().filter_map(below).collect();
    (!keys.is_empty()).then_some(keys)
}

/// Decodes `%2F` and `+`. None if the result is not UTF-8.
fn form_decoded(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let hex = text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (byte, hex) {
            (b'%', Some(value)) => {
                decoded.push(value);
                at += 3;
                continue;
            }
            (b'+', _) => decoded.push(b' '),
            (other, _) => decoded.push(*other),
        }
        at += 1;
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::form_decoded;

    #[test]
    fn keys_are_decoded_as_s3_encodes_them() {
        for (encoded, key) in [
            ("uploads/t/u/1", "uploads/t/u/1"),
            ("uploads/a%252Fb/u+v/%C3%A4", "uploads/a%2Fb/u v/ä"),
            ("100%", "100%"),
            ("%zz%4", "%zz%4"),
        ] {
            assert_eq!(form_decoded(encoded).as_deref(), Some(key), "{encoded}");
        }
        assert_eq!(form_decoded("%ff"), None);
    }
}
