//! What an answer of the store means here: absent, changed, refused, or unknown. When in doubt, unknown.

use reqwest::Response;
use serde::de::DeserializeOwned;

use super::super::BlobError;
use super::super::answer::{self, element, said};

/// What came instead of success.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// Not asked, or the answer was lost.
    Unreached(String),
    Answered {
        status: u16,
        code: String,
        message: String,
    },
}

impl Failure {
    pub(super) fn code(&self) -> &str {
        match self {
            Failure::Unreached(_) => "",
            Failure::Answered { code, .. } => code,
        }
    }

    pub(super) async fn read(answer: Response) -> Failure {
        let status = answer.status().as_u16();
        let body = answer.text().await.unwrap_or_default();
        let code = element(&body, "Code").unwrap_or_default();
        let message = element(&body, "Message").unwrap_or_default().trim_end_matches('.').to_owned();
        Failure::Answered { status, code, message }
    }

    pub(super) fn is_passing(&self) -> bool {
        matches!(BlobError::from(self.clone()), BlobError::Unavailable(_))
    }
}

impl From<Failure> for BlobError {
    fn from(failure: Failure) -> BlobError {
        let (status, code, message) = match failure {
            Failure::Unreached(why) => return BlobError::Unavailable(why),
            Failure::Answered { status, code, message } => (status, code, message),
        };
        let said = said(status, &code, &message);
        let refused = |remedy: &str| BlobError::Refused(format!("{said}: {remedy}"));
        match (status, code.as_str()) {
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
            (_, "") if status != 403 => BlobError::Unavailable(format!(
                "{said} with an answer that is not Google's: check the endpoint"
            )),
            _ => BlobError::Refused(said),
        }
    }
}

pub(super) fn unreached(error: reqwest::Error) -> Failure {
    Failure::Unreached(answer::unreached(error))
}

pub(super) fn from_xml<T: DeserializeOwned>(xml: &str) -> Result<T, Failure> {
    answer::from_xml(xml).map_err(|error| {
        Failure::Unreached(format!("the answer is not Google's ({error}): check the endpoint"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(status: u16, code: &str) -> BlobError {
        Failure::Answered { status, code: code.into(), message: String::new() }.into()
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
