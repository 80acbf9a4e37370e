//! What an answer of the service means here: absent, changed, refused, or unknown. When in doubt, unknown.

use reqwest::Response;
use reqwest::header::HeaderMap;

use super::super::BlobError;

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

pub(super) fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

pub(super) fn element(body: &str, name: &str) -> Option<String> {
    let rest = body.split_once(&format!("<{name}>"))?.1;
    Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
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

/// The same, with what was tried.
pub(super) fn doing(what: &str, error: BlobError) -> BlobError {
    match error {
        BlobError::Unavailable(why) => BlobError::Unavailable(format!("it could not {what}: {why}")),
        BlobError::Refused(why) => BlobError::Refused(format!("it will not let us {what}: {why}")),
        other => BlobError::Refused(format!("it will not let us {what}: {other}")),
    }
}

fn said(status: u16, code: &str, message: &str) -> String {
    match (code, message) {
        ("", _) => format!("HTTP {status}"),
        (code, "") => code.to_owned(),
        (code, message) => format!("{code} ({message})"),
    }
}

/// The chain of causes, without the URL, for that may carry a signature.
pub(super) fn unreached(error: reqwest::Error) -> Failure {
    let host = error.url().and_then(|url| url.host_str()).map(str::to_owned).unwrap_or_default();
    if error.is_timeout() {
        return Failure::Unreached(format!("no answer from {host} in time"));
    }
    let error = error.without_url();
    let mut told = vec![error.to_string()];
    let mut next = std::error::Error::source(&error);
    while let Some(cause) = next {
        let said = cause.to_string();
        if !told.iter().any(|before| before.contains(&said)) {
            told.push(said);
        }
        next = cause.source();
    }
    Failure::Unreached(format!("{host}: {}", told.join(": ")))
}
