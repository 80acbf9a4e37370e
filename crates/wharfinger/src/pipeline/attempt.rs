//! One attempt at one stage of one file, and what can come in its way.

use futures::stream::BoxStream;
use wharfinger_catalog::{CatalogError, LeasedStageJob};
use wharfinger_lifecycle::id::JobId;
use wharfinger_lifecycle::retry::Backoff;
use wharfinger_lifecycle::stage_end::AttemptOutcome;
use wharfinger_stores::BlobError;

use super::extract;
use crate::core::Core;
use crate::pipeline::Pipeline;

const RETRY: Backoff = Backoff { base_ms: 5_000, cap_ms: 600_000 };
/// How long a file waits for something that all files need.
const OUTAGE: Backoff = Backoff { base_ms: 30_000, cap_ms: 30_000 };

/// So that files that were refused together do not come again together.
const REFUSED_JITTER_MS: u16 = 10_000;

/// A file under a lease.
pub struct Attempt<'a> {
    pub pipeline: &'a Pipeline,
    pub held: &'a LeasedStageJob,
}

/// What a stage needs besides the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Store,
    Scanner,
    Embeddings,
    /// This machine's disk.
    Disk,
    /// This machine otherwise: what no file has a part in.
    Machine,
    Catalog,
}

impl Backend {
    /// Only a check that fails makes an outage of what went wrong with one file.
    async fn is_down(self, pipeline: &Pipeline) -> bool {
        match self {
            Backend::Store => pipeline.core.blobs.check().await.is_err(),
            Backend::Scanner => pipeline.scanner.check().await.is_err(),
            Backend::Embeddings => pipeline.embedder.check().await.is_err(),
            Backend::Disk => extract::check_disk(&pipeline.core.settings.data_dir).await.is_err(),
            // A row that cannot be read is the trouble of its own file.
            Backend::Catalog => pipeline.core.catalog.ping().await.is_err(),
            Backend::Machine => true,
        }
    }
}

/// Why an attempt did not end well, by what helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageError {
    /// Nothing: not supported, corrupted, encrypted, beyond a limit.
    Hopeless(String),
    /// Another attempt.
    Again(String),
    /// Waiting: a backend did not do its part. Whether it is away for all files, or only refuses this one, is asked of the
    /// backend itself.
    Away(Backend, String),
    /// Waiting as long as somebody asked us to.
    AwayFor { why: String, ms: u64 },
    /// The bytes are not those that were confirmed.
    Changed(String),
    /// The lease is somebody else's by now.
    LeaseLost,
}

impl From<CatalogError> for StageError {
    fn from(error: CatalogError) -> Self {
        StageError::Backend(Backend::Catalog, error.to_string())
    }
}

/// An error of the store is "unknown": only a clear "absent" is an answer.
impl From<BlobError> for StageError {
    fn from(error: BlobError) -> Self {
        match error {
            BlobError::NotFound => StageError::Permanent("its object has been removed from the store".into()),
            BlobError::Changed => StageError::ObjectChanged("object changed after it was confirmed".into()),
            BlobError::Unavailable(_) | BlobError::Refused(_) => {
                StageError::Backend(Backend::Store, error.to_string())
            }
        }
    }
}

impl StageError {
    /// How an attempt ends that came into it; none where there is nothing left to end.
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
                Some(AttemptOutcome::Postponed { why, at: in_ms(ms + OUTAGE.delay_ms(1, rand::random()) / 10) })
            }
            StageError::ObjectChanged(why) => Some(AttemptOutcome::Quarantined { why }),
            StageError::LeaseLost => None,
        }
    }
}

impl Attempt<'_> {
    /// What its writes are fenced by.
    pub fn lease(&self) -> (JobId, i64) {
        (self.held.job.id, self.held.job.token)
    }

    /// The very bytes that were confirmed.
    pub async fn original(&self) -> Result<BoxStream<'static, Result<bytes::Bytes, BlobError>>, StageError> {
        let file = &self.held.file;
        let pin = file.pin.as_ref().ok_or_else(|| StageError::Permanent("it was never confirmed".into()))?;
        Ok(self.pipeline.core.blobs.get(&file.key, pin, 0, None).await?)
    }
}

/// The file waits, and no other does.
pub(super) fn refused(why: String) -> AttemptOutcome {
    AttemptOutcome::ObjectUnreadable { why, jitter_ms: i64::from(rand::random::<u16>() % REFUSED_JITTER_MS) }
}

/// When a lease that somebody did not come back from is tried again.
pub fn retry_at(core: &Core) -> i64 {
    core.clock.now().saturating_add(i64::try_from(RETRY.delay_ms(1, rand::random())).unwrap_or(0))
}
