//! Turns Google's error codes into store errors.

use crate::BlobError;

pub(super) fn classify(status: u16, code: &str, text: String) -> BlobError {
    let refused = |remedy: &str| BlobError::Refused(format!("{text}: {remedy}"));
    match (status, code) {
        (_, "NoSuchBucket" | "InvalidBucketName") => {
            refused("check the bucket's name in WHARFINGER_BLOB_URL")
        }
        (404, "NoSuchKey" | "NoSuchUpload") => BlobError::NotFound,
        // The answer does not say that the object is what is missing.
        (404, _) => BlobError::Unavailable(text),
        (412, _) | (_, "PreconditionFailed") => BlobError::Changed,
        (408 | 429 | 500.., _) | (_, "SlowDown" | "InternalError") => BlobError::Unavailable(text),
        (_, "SignatureDoesNotMatch" | "InvalidSecurity") => {
            refused("check GOOGLE_APPLICATION_CREDENTIALS (the key may be deleted) and this machine's clock")
        }
        (_, "ExpiredToken" | "RequestTimeTooSkewed") => {
            refused("this machine's clock is wrong, synchronize it with NTP")
        }
        (_, "AccessDenied") => {
            refused("give the service account the role Storage Object Admin on the bucket")
        }
        (_, "UserProjectAccountProblem" | "AccountProblem") => refused("check the project's billing"),
        // Without an error code, the answer comes from something else than the store.
        (_, "") if status != 403 => {
            BlobError::Unavailable(format!("{text}: the answer is not from Google: check the endpoint"))
        }
        _ => BlobError::Refused(text),
    }
}

#[cfg(test)]
mod tests {
    use crate::BlobError;

    fn classify(status: u16, code: &str) -> BlobError {
        super::classify(status, code, String::new())
    }

    #[test]
    fn only_a_clear_answer_means_absent() {
        assert!(matches!(classify(404, "NoSuchKey"), BlobError::NotFound));
        assert!(matches!(classify(404, "NoSuchBucket"), BlobError::Refused(_)));
        assert!(matches!(classify(404, ""), BlobError::Unavailable(_)));
        assert!(matches!(classify(403, "AccessDenied"), BlobError::Refused(_)));
        assert!(matches!(classify(403, ""), BlobError::Refused(_)));
        assert!(matches!(classify(412, "PreconditionFailed"), BlobError::Changed));
        assert!(matches!(classify(503, "ServiceUnavailable"), BlobError::Unavailable(_)));
        assert!(matches!(classify(400, ""), BlobError::Unavailable(_)));
    }
}
