//! One attempt at one stage of one file, and the errors that can stop it.

use futures::StreamExt as _;
use futures::stream::BoxStream;
use wharfinger_catalog::{CatalogError, LeasedStageJob};
use wharfinger_lifecycle::id::JobId;
use wharfinger_lifecycle::quarantine::QuarantineCause;
use wharfinger_lifecycle::retry::Backoff;
use wharfinger_lifecycle::stage_end::AttemptOutcome;
use wharfinger_stores::BlobError;

use super::extract;
use crate::core::Core;
use crate::pipeline::Pipeline;

const RETRY: Backoff = Backoff { base_ms: 5_000, cap_ms: 600_000 };
/// How long a file waits while a backend is down.
const OUTAGE: Backoff = Backoff { base_ms: 30_000, cap_ms: 30_000 };

/// Spreads the retries of files that failed together.
const REFUSED_JITTER_MS: u16 = 10_000;

/// A leased job and what it needs.
pub struct Attempt<'a> {
    pub pipeline: &'a Pipeline,
    pub held: &'a LeasedStageJob,
}

/// A backend that a stage needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Store,
    Scanner,
    Embeddings,
    /// This machine's disk.
    Disk,
    /// Other resources of this machine, for example starting a process.
    Machine,
    Catalog,
}

impl Backend {
    /// Whether a check of the backend itself fails. If so, the error of one file counts as an outage. `Machine` has no
    /// check: its errors always count as an outage.
    async fn is_down(self, pipeline: &Pipeline) -> bool {
        match self {
            Backend::Store => pipeline.core.blobs.check().await.is_err(),
            Backend::Scanner => pipeline.scanner.check().await.is_err(),
            Backend::Embeddings => pipeline.embedder.check().await.is_err(),
            Backend::Disk => extract::check_disk(&pipeline.core.settings.data_dir).await.is_err(),
            // A row that cannot be read only affects its own file.
            Backend::Catalog => pipeline.core.catalog.ping().await.is_err(),
            Backend::Machine => true,
        }
    }
}

/// Why an attempt failed, by what helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// No retry helps: not supported, corrupted, encrypted, beyond a limit.
    #[error("{0}")]
    Permanent(String),
    /// Another attempt may help.
    #[error("{0}")]
    Retryable(String),
    /// A backend failed. A check of the backend then decides whether it is down for all files or fails only for this one.
    #[error("{1}")]
    Backend(Backend, String),
    /// A backend asked us to wait.
    #[error("{why}")]
    RateLimited { why: String, ms: u64 },
    /// The bytes are not the confirmed ones.
    #[error("{0}")]
    ObjectChanged(String),
    #[error("the lease was lost")]
    LeaseLost,
}

impl From<CatalogError> for StageError {
    fn from(error: CatalogError) -> Self {
        StageError::Backend(Backend::Catalog, error.to_string())
    }
}

/// Only a clear "not found" means that the object is missing, and only `Changed` that it was replaced. The other errors
/// mean "unknown".
impl From<BlobError> for StageError {
    fn from(error: BlobError) -> Self {
        match error {
            BlobError::NotFound => {
                StageError::Permanent("the object was removed from the store by another program".into())
            }
            BlobError::Changed => StageError::ObjectChanged("object changed after it was confirmed".into()),
            BlobError::Unavailable(_) | BlobError::Refused(_) => {
                StageError::Backend(Backend::Store, error.to_string())
            }
        }
    }
}

impl StageError {
    /// How the attempt ends after this error. None if the lease was lost: then there is no end to write.
    pub async fn into_outcome(self, pipeline: &Pipeline, attempt: u32) -> Option<AttemptOutcome> {
        let in_ms =
            |ms: u64| pipeline.core.clock.now().saturating_add(i64::try_from(ms).unwrap_or(i64::MAX / 4));
        match self {
            StageError::Permanent(why) => Some(AttemptOutcome::Failed { why }),
            StageError::Retryable(why) => {
                Some(AttemptOutcome::Retry { why, at: in_ms(RETRY.delay_ms(attempt, rand::random())) })
            }
            StageError::Backend(of, why) if of.is_down(pipeline).await => {
                Some(AttemptOutcome::Postponed { why, at: in_ms(OUTAGE.delay_ms(1, rand::random())) })
            }
            StageError::Backend(_, why) => Some(refused(why)),
            StageError::RateLimited { why, ms } => {
                let ms = ms.clamp(1_000, RETRY.cap_ms);
                Some(AttemptOutcome::Postponed {
                    why,
                    at: in_ms(ms + OUTAGE.delay_ms(1, rand::random()) / 10),
                })
            }
            StageError::ObjectChanged(why) => {
                Some(AttemptOutcome::Quarantined { cause: QuarantineCause::Changed, why })
            }
            StageError::LeaseLost => None,
        }
    }
}

impl Attempt<'_> {
    /// The job and the fencing token of its lease.
    pub fn lease(&self) -> (JobId, i64) {
        (self.held.job.id, self.held.job.token)
    }

    /// Reads the object, if it is still the confirmed one.
    pub async fn original(&self) -> Result<BoxStream<'static, Result<bytes::Bytes, BlobError>>, StageError> {
        let file = &self.held.file;
        let pin =
            file.pin.as_ref().ok_or_else(|| StageError::Permanent("the file was never confirmed".into()))?;
        Ok(self.pipeline.core.blobs.get(&file.key, pin, 0, None).await?)
    }

    /// The first bytes of the confirmed ones.
    pub async fn head(&self, bytes: u64) -> Result<Vec<u8>, StageError> {
        let file = &self.held.file;
        let pin =
            file.pin.as_ref().ok_or_else(|| StageError::Permanent("the file was never confirmed".into()))?;
        let mut head = Vec::new();
        if file.size == 0 {
            return Ok(head);
        }
        let mut stream = self.pipeline.core.blobs.get(&file.key, pin, 0, Some(bytes.min(file.size))).await?;
        while let Some(piece) = stream.next().await {
            head.extend_from_slice(&piece?);
        }
        Ok(head)
    }
}

/// Only this file waits.
pub(super) fn refused(why: String) -> AttemptOutcome {
    AttemptOutcome::ObjectUnreadable { why, jitter_ms: i64::from(rand::random::<u16>() % REFUSED_JITTER_MS) }
}

/// When a file is tried again after its lease expired.
pub fn retry_at(core: &Core) -> i64 {
    core.clock.now().saturating_add(i64::try_from(RETRY.delay_ms(1, rand::random())).unwrap_or(0))
}
