//! Turns S3 errors into store errors. Every doubt is `Unavailable`, which means unknown.

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;

use crate::BlobError;
use crate::http::cannot;

/// For example the page of a proxy, the login of a router, or a service on a wrong port.
pub(super) const NOT_S3: &str = "the answer is not from S3: check AWS_ENDPOINT_URL";

pub(super) fn from_sdk<E>(error: &SdkError<E, HttpResponse>) -> BlobError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let SdkError::ServiceError(context) = error else {
        return no_response(error);
    };
    let status = context.raw().status().as_u16();
    let code = context.err().code().unwrap_or_default();
    let text = describe(status, code, context.err().message());
    match (status, code) {
        (_, "NoSuchBucket") => BlobError::Refused(format!("{text}: check the name in WHARFINGER_BLOB_URL")),
        (_, "NoSuchKey" | "NoSuchVersion" | "NoSuchUpload") => BlobError::NotFound,
        (404, code) if !code.is_empty() => BlobError::Unavailable(text),
        (412, _) | (_, "PreconditionFailed") => BlobError::Changed,
        (_, "SlowDown" | "RequestTimeout" | "InternalError" | "ServiceUnavailable" | "OperationAborted") => {
            BlobError::Unavailable(text)
        }
        (409, "ConditionalRequestConflict") => BlobError::Unavailable(text),
        (429, _) => BlobError::Unavailable(text),
        (500.., _) if code != "NotImplemented" => BlobError::Unavailable(text),
        (301 | 307 | 400, _) if is_wrong_region(status, code) => {
            let region = context.raw().headers().get("x-amz-bucket-region");
            let actual = region.map_or_else(String::new, |region| format!(" The bucket is in {region}."));
            BlobError::Refused(format!("{text}: set AWS_REGION to the bucket's region.{actual}"))
        }
        (_, "RequestTimeTooSkewed") => {
            BlobError::Refused(format!("{text}: this machine's clock is wrong, synchronize it with NTP"))
        }
        (_, "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken") => {
            BlobError::Refused(format!(
                "{text}: check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
            ))
        }
        // The answer to a HEAD has no body with an error code.
        (403, "") => BlobError::Refused(
            "HTTP 403: the credentials are wrong or lack a permission: check AWS_ACCESS_KEY_ID, \
             AWS_SECRET_ACCESS_KEY and their permissions on the bucket"
                .into(),
        ),
        // S3 sends an error code with every other error, so this answer comes from something else.
        (_, "") => BlobError::Unavailable(format!("{text}: {NOT_S3}")),
        _ => BlobError::Refused(text),
    }
}

/// Like [`from_sdk`], with what was tried in the text.
pub(super) fn from_sdk_while<E>(what: &str, error: &SdkError<E, HttpResponse>) -> BlobError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    match from_sdk(error) {
        error @ (BlobError::Refused(_) | BlobError::Unavailable(_)) => cannot(what, error),
        other => other,
    }
}

/// The error of one key in a bulk delete.
pub(super) fn from_key_error(code: &str, message: &str) -> BlobError {
    let text = describe(200, code, Some(message));
    match code {
        "NoSuchKey" | "NoSuchVersion" => BlobError::NotFound,
        "InternalError" | "SlowDown" | "ServiceUnavailable" | "" => BlobError::Unavailable(text),
        _ => BlobError::Refused(text),
    }
}

fn is_wrong_region(status: u16, code: &str) -> bool {
    matches!(code, "AuthorizationHeaderMalformed" | "PermanentRedirect" | "TemporaryRedirect")
        || matches!(code, "IllegalLocationConstraintException")
        || matches!(status, 301 | 307)
}

fn describe(status: u16, code: &str, message: Option<&str>) -> String {
    match (code, message.filter(|message| !message.is_empty())) {
        ("", None) => format!("HTTP {status}"),
        ("", Some(message)) => format!("HTTP {status} {message}"),
        (code, None) => code.to_owned(),
        (code, Some(message)) => format!("{code} ({})", message.trim_end_matches('.')),
    }
}

fn no_response<E>(error: &SdkError<E, HttpResponse>) -> BlobError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    match error {
        SdkError::TimeoutError(_) => BlobError::Unavailable("no answer in time".into()),
        SdkError::ResponseError(context) => {
            BlobError::Unavailable(format!("HTTP {}: {NOT_S3}", context.raw().status().as_u16()))
        }
        _ => BlobError::Unavailable(causes(error)),
    }
}

/// The chain of causes without repeated texts.
fn causes(error: &dyn std::error::Error) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !texts.iter().any(|before| before.contains(&text)) {
            texts.push(text);
        }
        next = cause.source();
    }
    if texts.is_empty() { error.to_string() } else { texts.join(": ") }
}
