//! The JSON bodies of messages on the broker. A body is only a hint: whatever it says, its handler reads the rows again.

use std::fmt;

use serde::{Deserialize, Serialize};
use wharfinger_catalog::WaitingCheck;
use wharfinger_lifecycle::id::JobId;
use wharfinger_lifecycle::limits::clip;

const CHECK_ORPHAN: &str = "CHECK_ORPHAN";
const RUN_CLEANUPS: &str = "RUN_CLEANUPS";
/// Of an unknown action that is logged.
const ACTION_BYTES_MAX: usize = 100;

/// What a message asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The check of an upload is due.
    CheckOrphan(JobId),
    /// A wake-up: cleanups are due.
    RunCleanups,
}

/// Why a body cannot be read. It names no value of the body except the action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyError {
    NotJson(String),
    UnknownAction(String),
    WithoutJob,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodyError::NotJson(why) => write!(f, "its body is not a JSON object with `action`: {why}"),
            BodyError::UnknownAction(action) => write!(f, "its action `{action}` is unknown"),
            BodyError::WithoutJob => f.write_str("its `jobId` is missing or not the id of a job"),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CheckOrphanBody<'a> {
    action: &'static str,
    file_id: String,
    tenant_id: &'a str,
    size: u64,
    job_id: String,
}

/// The body of a message that a check is due.
pub fn check_orphan(check: &WaitingCheck) -> Vec<u8> {
    let body = CheckOrphanBody {
        action: CHECK_ORPHAN,
        file_id: check.file.to_string(),
        tenant_id: &check.tenant,
        size: check.size,
        job_id: check.job.to_string(),
    };
    serde_json::to_vec(&body).expect("strings and a number are JSON")
}

/// The body of a wake-up for cleanups.
pub fn run_cleanups() -> Vec<u8> {
    format!("{{\"action\":\"{RUN_CLEANUPS}\"}}").into_bytes()
}

/// Only what is needed: other fields may be missing, or have been added by a later version.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnyBody {
    action: String,
    #[serde(default)]
    job_id: Option<serde_json::Value>,
}

pub fn parse(body: &[u8]) -> Result<Message, BodyError> {
    let body: AnyBody = serde_json::from_slice(body).map_err(|error| {
        // The message of serde may quote the body.
        let kind = match error.classify() {
            serde_json::error::Category::Data => "a field has the wrong type or is missing",
            _ => "a syntax error",
        };
        BodyError::NotJson(format!("{kind} at line {} column {}", error.line(), error.column()))
    })?;
    match body.action.as_str() {
        CHECK_ORPHAN => {
            let job = body.job_id.as_ref().and_then(|id| id.as_str()).and_then(|id| id.parse().ok());
            job.map(Message::CheckOrphan).ok_or(BodyError::WithoutJob)
        }
        RUN_CLEANUPS => Ok(Message::RunCleanups),
        other => Err(BodyError::UnknownAction(clip(other, ACTION_BYTES_MAX).to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use wharfinger_lifecycle::id::FileId;

    use super::*;

    const ID: &str = "018f4e6e-7f3a-7000-8000-000000000001";

    #[test]
    fn bodies_are_read_back() {
        let check = WaitingCheck {
            job: ID.parse().expect("an id"),
            file: ID.parse::<FileId>().expect("an id"),
            tenant: "acme \"harbour\"".into(),
            size: 42,
            run_at: 7,
        };
        let body = check_orphan(&check);
        assert_eq!(
            String::from_utf8_lossy(&body),
            format!(
                r#"{{"action":"CHECK_ORPHAN","fileId":"{ID}","tenantId":"acme \"harbour\"","size":42,"jobId":"{ID}"}}"#
            )
        );
        assert_eq!(parse(&body), Ok(Message::CheckOrphan(check.job)));
        assert_eq!(parse(&run_cleanups()), Ok(Message::RunCleanups));
        let later = format!(r#"{{"jobId":"{ID}","new":[1],"action":"CHECK_ORPHAN","size":"much"}}"#);
        assert_eq!(parse(later.as_bytes()), Ok(Message::CheckOrphan(check.job)));
    }

    #[test]
    fn other_bodies_are_not_guessed() {
        for body in [
            &b""[..],
            b"\xff\xfe",
            b"not json",
            b"[]",
            b"{}",
            br#"{"action":1}"#,
            br#""CHECK_ORPHAN""#,
            ID.as_bytes(),
        ] {
            assert!(matches!(parse(body), Err(BodyError::NotJson(_))), "{body:?}");
        }
        let secret = parse(br#"{"action":["hush"]}"#).expect_err("no action").to_string();
        assert!(!secret.contains("hush"), "{secret}");
        for body in [
            r#"{"action":"CHECK_ORPHAN"}"#,
            r#"{"action":"CHECK_ORPHAN","jobId":7}"#,
            r#"{"action":"CHECK_ORPHAN","jobId":"x"}"#,
        ] {
            assert_eq!(parse(body.as_bytes()), Err(BodyError::WithoutJob), "{body}");
        }
        let unknown = BodyError::UnknownAction("DROP_ALL".into());
        assert_eq!(parse(br#"{"action":"DROP_ALL"}"#), Err(unknown));
        let BodyError::UnknownAction(long) =
            parse(format!(r#"{{"action":"{}"}}"#, "ä".repeat(1_000)).as_bytes()).expect_err("unknown")
        else {
            panic!("an unknown action")
        };
        assert!(long.len() <= ACTION_BYTES_MAX);
    }
}
