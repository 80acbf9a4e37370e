//! What an answer of Azure's means here.

use crate::BlobError;

pub(super) fn meaning(status: u16, code: &str, said: String) -> BlobError {
    let refused = |remedy: &str| BlobError::Refused(format!("{said}: {remedy}"));
    match (status, code) {
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
        (_, "AuthorizationPermissionMismatch" | "InsufficientAccountPermissions") => {
            refused("give the identity the roles Storage Blob Data Contributor and Storage Blob Delegator")
        }
        // An answer with an error's status and none of the service's codes is not the service's.
        (_, "") => {
            BlobError::Unavailable(format!("{said} with an answer that is not Azure's: check the endpoint"))
        }
        _ => BlobError::Refused(said),
    }
}
