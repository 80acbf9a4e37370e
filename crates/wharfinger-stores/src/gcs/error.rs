//! What an answer of Google's means here.

use crate::BlobError;

pub(super) fn meaning(status: u16, code: &str, said: String) -> BlobError {
    let refused = |remedy: &str| BlobError::Refused(format!("{said}: {remedy}"));
    match (status, code) {
        (_, "NoSuchBucket" | "InvalidBucketName") => {
            refused("check the bucket's name in WHARFINGER_BLOB_URL")
        }
        (404, "NoSuchKey" | "NoSuchUpload") => BlobError::NotFound,
        // Nothing says that it is the object that is missing.
        (404, _) => BlobError::Unavailable(said),
        (412, _) | (_, "PreconditionFailed") => BlobError::Changed,
        (408 | 429 | 500.., _) | (_, "SlowDown" | "InternalError") => BlobError::Unavailable(said),
        (_, "SignatureDoesNotMatch" | "InvalidSecurity") => refused(
            "check GOOGLE_APPLICATION_CREDENTIALS (a deleted key signs nothing) and this machine's clock",
        ),
        (_, "ExpiredToken" | "RequestTimeTooSkewed") => {
            refused("this machine's clock is wrong, set it by NTP")
        }
        (_, "AccessDenied") => {
            refused("give the service account the role Storage Object Admin on the bucket")
        }
        (_, "UserProjectAccountProblem" | "AccountProblem") => refused("check the project's billing"),
        // An answer with an error's status and none of the store's codes is not the store's.
        (_, "") if status != 403 => {
            BlobError::Unavailable(format!("{said} with an answer that is not Google's: check the endpoint"))
        }
        _ => BlobError::Refused(said),
    }
}

#[cfg(test)]
mod tests {
    use crate::BlobError;

    fn meaning(status: u16, code: &str) -> BlobError {
        super::meaning(status, code, String::new())
    }

    #[test]
    fn only_a_clear_absence_is_one() {
        assert!(matches!(meaning(404, "NoSuchKey"), BlobError::NotFound));
        assert!(matches!(meaning(404, "NoSuchBucket"), BlobError::Refused(_)));
        assert!(matches!(meaning(404, ""), BlobError::Unavailable(_)));
        assert!(matches!(meaning(403, "AccessDenied"), BlobError::Refused(_)));
        assert!(matches!(meaning(403, ""), BlobError::Refused(_)));
        assert!(matches!(meaning(412, "PreconditionFailed"), BlobError::Changed));
        assert!(matches!(meaning(503, "ServiceUnavailable"), BlobError::Unavailable(_)));
        assert!(matches!(meaning(400, ""), BlobError::Unavailable(_)));
    }
}
