//! Turns Azure's error codes into store errors.

use crate::BlobError;

pub(super) fn classify(status: u16, code: &str, text: String) -> BlobError {
    let refused = |remedy: &str| BlobError::Refused(format!("{text}: {remedy}"));
    match (status, code) {
        (_, "ContainerNotFound") => refused("check the container's name in WHARFINGER_BLOB_URL"),
        (_, "ContainerBeingDeleted") => BlobError::Unavailable(text),
        (_, "InvalidResourceName" | "InvalidUri") => refused("check the names in WHARFINGER_BLOB_URL"),
        (404, "BlobNotFound") => BlobError::NotFound,
        // The answer does not say that the object is what is missing.
        (404, _) => BlobError::Unavailable(text),
        (412, "ConditionNotMet") | (409, "BlobAlreadyExists") => BlobError::Changed,
        (_, "ServerBusy" | "InternalError" | "OperationTimedOut") => BlobError::Unavailable(text),
        (429 | 500.., _) => BlobError::Unavailable(text),
        (_, "AuthenticationFailed" | "AuthorizationFailure" | "InvalidAuthenticationInfo") => refused(
            "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, this machine's clock, and \
             whether the account's firewall accepts this machine",
        ),
        (_, "KeyBasedAuthenticationNotPermitted") => {
            refused("the account does not allow keys: unset AZURE_STORAGE_ACCOUNT_KEY and use an identity")
        }
        (_, "AuthorizationPermissionMismatch" | "InsufficientAccountPermissions") => {
            refused("give the identity the roles Storage Blob Data Contributor and Storage Blob Delegator")
        }
        // Azure sends an error code with every error, so this answer comes from something else.
        (_, "") => {
            BlobError::Unavailable(format!("{text}: the answer is not from Azure: check the endpoint"))
        }
        _ => BlobError::Refused(text),
    }
}
