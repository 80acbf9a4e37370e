//! Takes the bytes of an upload to local disk. The row is looked up before the first byte is taken and again
//! when the last one is in place: what came too late is withdrawn.

use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use wharfinger_backends::blobs::disk::{LandingError, SignedQuery};
use wharfinger_backends::blobs::{BlobError, BlobStore as _};
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::state::Status;

use super::VerbError;
use crate::app::App;

#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("the signature of this URL is not ours, or the URL was changed")]
    Signature,
    #[error("this URL has expired")]
    Expired,
    #[error("the URL is for exactly {0} bytes")]
    Length(u64),
    #[error("the URL is for Content-Type {0}")]
    ContentType(String),
    #[error("the SHA-256 of the bytes is not the one this URL is for")]
    Checksum,
    #[error("there is an object under this key already")]
    Exists,
    #[error("the upload has ended")]
    Ended,
    #[error("the client hung up or sent nothing for too long")]
    Interrupted,
    #[error("{0}")]
    Verb(#[from] VerbError),
}

impl From<LandingError> for Refused {
    fn from(error: LandingError) -> Self {
        match error {
            LandingError::TooLong | LandingError::TooShort(_) => Refused::Interrupted,
            LandingError::Checksum => Refused::Checksum,
            LandingError::Exists => Refused::Exists,
            LandingError::Store(error) => Refused::Verb(error.into()),
        }
    }
}

/// What the client's request said besides its URL.
pub struct Sent {
    pub content_type: Option<String>,
    pub content_length: Option<u64>,
}

/// A client that sends nothing for this long is gone.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// A temporary file that was not written to for this long has no upload behind it.
const LEFT_BEHIND_AFTER: Duration = Duration::from_secs(600);

/// Checks everything that can be known before a byte is read; answers the file and its exact size.
pub async fn admit(
    app: &App,
    key: &ObjectKey,
    query: &SignedQuery,
    sent: &Sent,
) -> Result<(FileId, u64), Refused> {
    let size = match query.size {
        Some(size) if app.disk.signing_key().verify("PUT", key, query) => size,
        _ => return Err(Refused::Signature),
    };
    if app.clock.now() >= query.expires {
        return Err(Refused::Expired);
    }
    if sent.content_length.is_some_and(|length| length != size) {
        return Err(Refused::Length(size));
    }
    if let Some(bound) = &query.content_type
        && sent.content_type.as_ref() != Some(bound)
    {
        return Err(Refused::ContentType(bound.clone()));
    }
    let file = row_of(app, key).await?;
    match file {
        Some(file) if file.status == Status::Registered => match app.disk.head(key).await {
            Err(BlobError::NotFound) => Ok((file.id, size)),
            Ok(_) => Err(Refused::Exists),
            Err(error) => Err(VerbError::from(error).into()),
        },
        Some(file) if file.ended.is_none() => Err(Refused::Exists),
        _ => Err(Refused::Ended),
    }
}

/// Streams the body to its place; answers the ETag.
pub async fn land<E>(
    app: &App,
    file: FileId,
    key: &ObjectKey,
    size: u64,
    sha256: Option<String>,
    mut body: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<String, Refused> {
    let mut landing = app.disk.land(file, key, size, sha256).await?;
    loop {
        match tokio::time::timeout(IDLE_MAX, body.next()).await {
            Ok(Some(Ok(bytes))) => match landing.write(&bytes).await {
                Err(LandingError::TooLong) => return Err(Refused::Length(size)),
                outcome => outcome?,
            },
            Ok(None) => break,
            Ok(Some(Err(_))) | Err(_) => return Err(Refused::Interrupted),
        }
    }
    let landed = match app.disk.place(landing).await {
        Err(LandingError::TooShort(_)) => return Err(Refused::Length(size)),
        outcome => outcome?,
    };
    // Not known is not "gone": the note beside the object stays, and the next look decides.
    match row_of(app, key).await? {
        Some(file) if file.ended.is_none() => {
            let etag = landed.meta.etag.clone();
            landed.keep();
            Ok(etag)
        }
        _ => {
            landed.withdraw().await.map_err(VerbError::from)?;
            Err(Refused::Ended)
        }
    }
}

/// Makes up for the second look of uploads that crashed before it.
pub async fn clear_left_behind(app: &App) -> Result<u64, VerbError> {
    let mut cleared = 0;
    for left in app.disk.left_behind(LEFT_BEHIND_AFTER).await? {
        let file = app.catalog.file(left.file).await?;
        let keep = file.as_ref().is_some_and(|file| file.ended.is_none());
        app.disk.clear(left, file.as_ref().map(|file| &file.key), keep).await?;
        cleared += 1;
    }
    Ok(cleared)
}

async fn row_of(app: &App, key: &ObjectKey) -> Result<Option<File>, VerbError> {
    let Some(id) = key.as_str().rsplit('/').next().and_then(|part| part.parse().ok()) else {
        return Ok(None);
    };
    Ok(app.catalog.file(id).await?.filter(|file| file.key == *key))
}
