//! Checks the first bytes of an object against the permitted types of its tenant. Names and declared types are claims of the
//! client.

use futures::StreamExt as _;
use wharfinger_lifecycle::file::{File, Pin};
use wharfinger_lifecycle::media_type::ContentProblem;
use wharfinger_stores::BlobError;
use wharfinger_text::media_type;

use crate::core::VerbError;
use crate::uploads::Uploads;

/// The tenant's rules of now count, not those of init. Without an allow list nothing is read.
pub(super) async fn check_type(uploads: &Uploads, file: &File, pin: &Pin) -> Result<(), VerbError> {
    let policy = uploads.rules.of_tenant(&file.tenant).await?;
    let Some(allowed) = policy.allowed_types else { return Ok(()) };
    if allowed.allows_all() {
        return Ok(());
    }
    let not_allowed =
        |given| VerbError::TypeNotAllowed { field: "contentType".into(), given, allowed: allowed.clone() };
    // Announced while no list was set.
    let Some(declared) = file.content_type.as_deref() else { return Err(not_allowed(None)) };
    let head = head(uploads, file, pin).await?;
    let found = media_type::of(&head);
    allowed.check_content(declared, found).map_err(|problem| match problem {
        ContentProblem::Declared => not_allowed(Some(declared.to_owned())),
        ContentProblem::Found(found) => VerbError::ContentNotAllowed {
            declared: declared.to_owned(),
            found: Some(found),
            allowed: allowed.clone(),
        },
        ContentProblem::NotAsDeclared => VerbError::ContentNotAllowed {
            declared: declared.to_owned(),
            found: None,
            allowed: allowed.clone(),
        },
    })
}

async fn head(uploads: &Uploads, file: &File, pin: &Pin) -> Result<Vec<u8>, VerbError> {
    let mut head = Vec::new();
    if file.size == 0 {
        return Ok(head);
    }
    let wanted = media_type::HEAD_BYTES.min(usize::try_from(file.size).unwrap_or(usize::MAX));
    let mut bytes = match uploads.core.blobs.get(&file.key, pin, 0, Some(wanted as u64)).await {
        Err(BlobError::NotFound) => return Err(VerbError::ObjectMissing),
        bytes => bytes?,
    };
    while head.len() < wanted {
        let Some(chunk) = bytes.next().await else { break };
        let chunk = chunk?;
        head.extend_from_slice(&chunk[..chunk.len().min(wanted - head.len())]);
    }
    if head.len() < wanted {
        return Err(VerbError::Unavailable(format!(
            "the store returned only {} of {wanted} bytes",
            head.len()
        )));
    }
    Ok(head)
}
