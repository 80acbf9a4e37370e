//! What an error of the store means here: absent, changed, refused, or unknown. When in doubt, unknown.

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;

use crate::BlobError;
use crate::http::doing;

/// A proxy's page, a router's login, a wrong port.
pub(super) const NOT_S3: &str = "an answer that is not S3's: check AWS_ENDPOINT_URL";

pub(super) fn from_sdk<E>(error: &SdkError<E, HttpResponse>) -> BlobError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let SdkError::ServiceError(context) = error else {
        return unreached(error);
    };
    let status = context.raw().status().as_u16();
    let code = context.err().code().unwrap_or_default();
    let said = said(status, code, context.err().message());
    match (status, code) {
        (_, "NoSuchBucket") => BlobError::Refused(format!("{said}: check the name in WHARFINGER_BLOB_URL")),
        (_, "NoSuchKey" | "NoSuchVersion" | "NoSuchUpload") => BlobError::NotFound,
        (404, code) if !code.is_empty() => BlobError::Unavailable(said),
        (412, _) | (_, "PreconditionFailed") => BlobError::Changed,
        (_, "SlowDown" | "RequestTimeout" | "InternalError" | "ServiceUnavailable" | "OperationAborted") => {
            BlobError::Unavailable(said)
        }
        (409, "ConditionalRequestConflict") => BlobError::Unavailable(said),
        (429, _) => BlobError::Unavailable(said),
        (500.., _) if code != "NotImplemented" => BlobError::Unavailable(said),
        (301 | 307 | 400, _) if is_of_region(status, code) => {
            let region = context.raw().headers().get("x-amz-bucket-region");
            let where_it_is =
                region.map_or_else(String::new, |region| format!(" The bucket is in {region}."));
            BlobError::Refused(format!("{said}: set AWS_REGION to the bucket's region.{where_it_is}"))
        }
        (_, "RequestTimeTooSkewed") => {
            BlobError::Refused(format!("{said}: this machine's clock is wrong, set it by NTP"))
        }
        (_, "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken") => {
            BlobError::Refused(format!(
                "{said}: check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
            ))
        }
        // The answer to a HEAD has no words.
        (403, "") => BlobError::Refused(
            "HTTP 403: the keys are wrong or may not do this: check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY \
             and what they may do in the bucket"
                .into(),
        ),
        // An answer without any of a store's codes is not the store's.
        (_, "") => BlobError::Unavailable(format!("{said} with {NOT_S3}")),
        _ => BlobError::Refused(said),
    }
}

/// The same, with what was tried.
pub(super) fn explain<E>(what: &str, error: &SdkError<E, HttpResponse>) -> BlobError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    match from_sdk(error) {
        error @ (BlobError::Refused(_) | BlobError::Unavailable(_)) => doing(what, error),
        other => other,
    }
}

/// One key of a bulk delete that was not deleted.
pub(super) fn of_key(code: &str, message: &str) -> BlobError {
    let said = said(200, code, Some(message));
    match code {
        "NoSuchKey" | "NoSuchVersion" => BlobError::NotFound,
        "InternalError" | "SlowDown" | "ServiceUnavailable" | "" => BlobError::Unavailable(said),
        _ => BlobError::Refused(said),
    }
}

fn is_of_region(status: u16, code: &str) -> bool {
    matches!(code, "AuthorizationHeaderMalformed" | "PermanentRedirect" | "TemporaryRedirect")
        || matches!(code, "IllegalLocationConstraintException")
        || matches!(status, 301 | 307)
}

fn said(status: u16, code: &str, message: Option<&str>) -> String {
    match (code, message.filter(|message| !message.is_empty())) {
        ("", None) => format!("HTTP {status}"),
        ("", Some(message)) => format!("HTTP {status} {message}"),
        (code, None) => code.to_owned(),
        (code, Some(message)) => format!("{code} ({})", message.trim_end_matches('.')),
    }
}

fn unreached<E>(error: &SdkError<E, HttpResponse>) -> BlobError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    match error {
        SdkError::TimeoutError(_) => BlobError::Unavailable("no answer in time".into()),
        SdkError::ResponseError(context) => {
            BlobError::Unavailable(format!("HTTP {} with {NOT_S3}", context.raw().status().as_u16()))
        }
        _ => BlobError::Unavailable(causes(error)),
    }
}

/// The chain of causes, from the outermost that says anything to the innermost.
fn causes(error: &dyn std::error::Error) -> String {
    let mut told: Vec<String> = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !told.iter().any(|before| before.contains(&said)) {
            told.push(said);
        }
        next = cause.source();
    }
    if told.is_empty() { error.to_string() } else { told.join(": ") }
}
