//! What an answer of the service means here: absent, changed, refused, or unknown. When in doubt, unknown.

use reqwest::Response;
use serde::de::DeserializeOwned;

use super::super::BlobError;
use super::super::answer::{self, element, header, said};

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
        let named = header(answer.headers(), "x-ms-error-code").unwrap_or_default();
        let body = answer.text().await.unwrap_or_default();
        let code = if named.is_empty() { element(&body, "Code").unwrap_or_default() } else { named };
        let message = element(&body, "Message").unwrap_or_default();
        // The rest is an id and a time.
        let message = message.lines().next().unwrap_or_default().trim().trim_end_matches('.').to_owned();
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
            (_, "ContainerNotFound") => refused("check the container's name in WHARFINGER_BLOB_URL"),
            (_, "ContainerBeingDeleted") => BlobError::Unavailable(said),
            (_, "InvalidResourceName" | "InvalidUri") => refused("check the names in WHARFINGER_BLOB_URL"),
            (404, "BlobNotFound") => BlobError::NotFound,
            // Nothing says that it is the object that is missing.
            (404, _) => BlobError::Unavailable(said),
            (412, "ConditionNotMet") | (409, "BlobAlreadyExists") => BlobError::Changed,
            (_, "ServerBusy" | "InternalError" | "OperationTimedOut") => BlobError::Unavailable(said),
            (429 | 500.., _) => BlobError::Unavailable(said),
            (_, "AuthenticationFailed" | "AuthorizationFailure" | "InvalidAuthenticationInfo") => refused(
                "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, this machine's clock, and \
                 whether the account's firewall lets this machine in",
            ),
            (_, "KeyBasedAuthenticationNotPermitted") => {
                refused("the account allows no keys: unset AZURE_STORAGE_ACCOUNT_KEY and use an identity")
            }
            (_, "AuthorizationPermissionMismatch" | "InsufficientAccountPermissions") => refused(
                "give the identity the roles Storage Blob Data Contributor and Storage Blob Delegator",
            ),
            // An answer with an error's status and none of the service's codes is not the service's.
            (_, "") => BlobError::Unavailable(format!(
                "{said} with an answer that is not Azure's: check the endpoint"
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
        Failure::Unreached(format!("the answer is not Azure's ({error}): check the endpoint"))
    })
}
