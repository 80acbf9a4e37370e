//! What outside workers can do with a lease. A call with a lease that is not the current one changes nothing.

use std::sync::Arc;

use futures::StreamExt as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::AcquireError;
use wharfinger_catalog::{ChunkVector, Claimable, LeasedStageJob, StageClaim, StageEnd, StageEndContext};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::download_type::attachment_type;
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::JobId;
use wharfinger_lifecycle::limits::stored_reason;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, CompletionResult, StageOutput};
use wharfinger_stores::{BlobError, Disposition, GetGrant, UrlLifetime};

use super::input::{self, Input};
use super::output::{ChunkSink, TextSink, VectorSink};
use super::{Attempt, StageError, claims, extract, run, scan};
use crate::auth::LeaseScope;
use crate::core::Core;
use crate::core::{Caller, VerbError};
use crate::pipeline::Pipeline;

pub const LEASE_JOBS_MAX: usize = 100;
const LEASE_MS_MIN: i64 = 1_000;
/// The shortest lifetime of a download URL, also for a shorter lease.
const URL_LIFE_MS_MIN: i64 = 15 * 60_000;
const PREPARED_AT_ONCE: usize = 16;
/// How long a worker's output may take to be stored before the lease can be lost.
const STORE_OUTPUT_MS: i64 = 5 * 60_000;
/// The model of vectors that an external worker made. It is not known which one it used.
pub const EXTERNAL_MODEL: &str = "external";
const DIMENSIONS_MAX: usize = 16_384;
/// Larger than the offset in any text.
const TEXT_OFFSET_MAX: u64 = 1 << 50;

/// The caller, and which leases its token allows.
pub struct Worker {
    pub caller: Caller,
    pub scope: LeaseScope,
}

/// What an outside worker says about an attempt that made no output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    Retryable,
    Permanent,
    /// The type of the file has no text.
    Unsupported,
}

/// A job as an outside worker gets it.
pub struct LeasedJob {
    pub held: LeasedStageJob,
    pub token: String,
    pub download_url: String,
    pub input: Input,
}

/// Leases on their way to a worker. If this is dropped before they were sent (the client hung up, the call took too long),
/// they are released: a worker that never had a job must not count as lost.
pub struct Delivery {
    pipeline: Arc<Pipeline>,
    leases: Vec<StageEnd>,
}

impl Delivery {
    pub fn of(pipeline: &Arc<Pipeline>, leased: &[LeasedJob]) -> Delivery {
        let leases = leased.iter().map(|leased| claims::released(&leased.held)).collect();
        Delivery { pipeline: pipeline.clone(), leases }
    }

    /// The worker's connection has accepted the answer.
    pub fn sent(&mut self) {
        self.leases.clear();
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        tracing::info!(
            jobs = self.leases.len(),
            action = "released",
            "worker disconnected before it got its jobs, they are released"
        );
        for lease in self.leases.drain(..) {
            claims::release_later(&self.pipeline, lease);
        }
        // Without a runtime the process is ending, and another process ends the leases when they expire.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let pipeline = self.pipeline.clone();
            let returning = self.pipeline.core.verbs.track_future(async move {
                if let Err(error) = claims::release_undelivered(&pipeline).await {
                    tracing::warn!(error = %error, "cannot return undelivered jobs to the queue now, trying again later");
                }
            });
            runtime.spawn(returning);
        }
    }
}

fn worker_name(caller: &Caller) -> String {
    format!("{}:{}", caller.role.as_str(), caller.user)
}

/// Claims up to `max` jobs of these stages. A job that cannot be given to the worker is ended at once with the reason.
pub async fn lease(
    pipeline: &Pipeline,
    worker: &Worker,
    stages: &[Stage],
    max: usize,
    lease_ms: Option<i64>,
) -> Result<Vec<LeasedJob>, VerbError> {
    let core = &pipeline.core;
    let caller = &worker.caller;
    if worker.scope.tenants.as_ref().is_some_and(Vec::is_empty) {
        return Ok(Vec::new());
    }
    for stage in stages {
        // Files keep the stages that were configured when they were confirmed, so a removed stage may still have jobs.
        if !core.plan.stages.contains(stage) && core.catalog.next_job_at(&[stage.queue()]).await?.is_none() {
            return Err(VerbError::NotInPipeline(*stage));
        }
    }
    pipeline.seen_stages.see(core, stages).await?;
    run::recover_expired(core).await?;
    let timeout_ms = core.settings.stage_timeout_ms;
    let lease_ms =
        lease_ms.unwrap_or(core.settings.job_lease_ms).clamp(LEASE_MS_MIN.min(timeout_ms), timeout_ms);
    let held = claim_some(pipeline, worker, stages, max, (lease_ms, timeout_ms)).await?;
    if !held.is_empty() {
        core.wakeups.archive.notify_one();
    }
    let prepared = futures::stream::iter(held).map(|held| prepare(pipeline, caller, held, lease_ms));
    let leased: Vec<Option<LeasedJob>> = prepared.buffered(PREPARED_AT_ONCE).collect().await;
    Ok(leased.into_iter().flatten().collect())
}

/// Claims jobs. A file that would fail with one more lost worker is claimed alone. At most one other suspect is claimed.
async fn claim_some(
    pipeline: &Pipeline,
    worker: &Worker,
    stages: &[Stage],
    max: usize,
    (lease_ms, deadline_ms): (i64, i64),
) -> Result<Vec<LeasedStageJob>, VerbError> {
    let core = &pipeline.core;
    claims::release_undelivered(pipeline).await?;
    let mut held: Vec<LeasedStageJob> = Vec::new();
    for (of, room) in [(Claimable::LastChance, 1), (Claimable::Suspects, 1), (Claimable::Untried, max)] {
        for stage in stages {
            let limit = room.min(max).saturating_sub(held.len());
            if limit == 0 {
                break;
            }
            let claim = StageClaim {
                stage: *stage,
                owner: worker_name(&worker.caller),
                limit,
                of: of.clone(),
                tenants: worker.scope.tenants.clone(),
                lease_ms,
                deadline_ms,
                plan: core.plan.clone(),
                now: core.clock.now(),
            };
            match claims::claim_stage(pipeline, claim).await {
                Ok(claimed) => held.extend(claimed),
                // The claimed jobs still go to the worker. If they were dropped, the worker would count as lost.
                Err(error) if !held.is_empty() => {
                    tracing::warn!(error = %error, "cannot claim more jobs");
                    return Ok(held);
                }
                Err(error) => return Err(error.into()),
            }
        }
        if of == Claimable::LastChance && !held.is_empty() {
            break;
        }
    }
    Ok(held)
}

/// Checks the object and signs what the worker needs. None if that failed: the attempt is then ended.
async fn prepare(
    pipeline: &Pipeline,
    caller: &Caller,
    held: LeasedStageJob,
    lease_ms: i64,
) -> Option<LeasedJob> {
    let core = &pipeline.core;
    let ready = async {
        is_unchanged(core, &held.file).await?;
        let download_url = download_url(core, &held, lease_ms).await?;
        Ok::<_, StageError>((download_url, input::of(pipeline, &held).await?))
    };
    match ready.await {
        Ok((download_url, input)) => {
            let token = pipeline.lease_key.token(held.job.id, held.job.token, caller);
            Some(LeasedJob { held, token, download_url, input })
        }
        Err(error) => {
            tracing::warn!(job = held.stage.queue(), fileId = %held.file.id, tenant = %held.file.tenant, error = %error,
                action = "stopped", "cannot give a file to a worker");
            if let Some(outcome) = error.into_outcome(pipeline, held.job.attempt).await {
                let ended =
                    end(core, caller, StageEnd { job: held.job.id, token: held.job.token, outcome }).await;
                if ended.is_err_and(|error| error != VerbError::LeaseLost) {
                    // No worker had the job, so the expired lease must not count as a lost worker.
                    claims::release_later(pipeline, claims::released(&held));
                }
            }
            None
        }
    }
}

/// Checks that the object is still the confirmed one. Not every store can bind a URL to an object version.
async fn is_unchanged(core: &Core, file: &File) -> Result<(), StageError> {
    let pin =
        file.pin.as_ref().ok_or_else(|| StageError::Permanent("the file was never confirmed".into()))?;
    let meta = core.blobs.head(&file.key, pin.version_id.as_deref()).await?;
    match meta.etag == pin.etag && meta.content_encoding.is_none() {
        true => Ok(()),
        false => Err(BlobError::Changed.into()),
    }
}

async fn download_url(core: &Core, held: &LeasedStageJob, lease_ms: i64) -> Result<String, StageError> {
    let file = &held.file;
    let pin = file.pin.clone().ok_or_else(|| StageError::Permanent("the file was never confirmed".into()))?;
    let now = core.clock.now();
    let grant = GetGrant {
        key: file.key.clone(),
        pin,
        content_type: Some(attachment_type(file.content_type.as_deref())),
        file_name: file.name.clone(),
        disposition: Disposition::Attachment,
        lifetime: UrlLifetime {
            signed_at: now,
            expires_at: now.saturating_add(lease_ms.max(URL_LIFE_MS_MIN)),
        },
    };
    Ok(core.blobs.sign_get(&grant).await?.url)
}

/// The fencing number in the caller's lease token. A token of another worker, or an invalid one, counts as a lost lease.
fn verify_token(pipeline: &Pipeline, caller: &Caller, job: JobId, token: &str) -> Result<i64, VerbError> {
    pipeline.lease_key.number(job, token, caller).ok_or(VerbError::LeaseLost)
}

/// Extends a lease and returns its new end.
pub async fn heartbeat(
    pipeline: &Pipeline,
    caller: &Caller,
    job: JobId,
    token: &str,
) -> Result<UnixMs, VerbError> {
    let core = &pipeline.core;
    let token = verify_token(pipeline, caller, job, token)?;
    let now = core.clock.now();
    core.catalog.heartbeat_job(job, token, core.settings.job_lease_ms, now).await?.ok_or(VerbError::LeaseLost)
}

/// Stores the output of a stage and moves the file to its next stage.
pub async fn complete(
    pipeline: &Pipeline,
    caller: &Caller,
    job: JobId,
    token: &str,
    output: &RawValue,
) -> Result<CompletionResult, VerbError> {
    let core = &pipeline.core;
    let token = verify_token(pipeline, caller, job, token)?;
    let closed = |error: AcquireError| VerbError::Unavailable(error.to_string());
    let _permit = pipeline.outputs.acquire().await.map_err(closed)?;
    let held = core.catalog.leased_stage_job(job, token).await?.ok_or(VerbError::LeaseLost)?;
    let output = WorkerOutput::read(held.stage, output)?;
    let attempt = Attempt { pipeline, held: &held };
    output.check(&attempt).await?;
    // A worker may repeat the call while its first call is still storing the output.
    let until = core.clock.now().saturating_add(core.settings.job_lease_ms.max(STORE_OUTPUT_MS));
    if !core.catalog.begin_storing_output(job, token, until).await? {
        return match core.catalog.leased_stage_job(job, token).await? {
            Some(_) => Err(VerbError::Unavailable("an earlier call is still storing this output".into())),
            None => Err(VerbError::LeaseLost),
        };
    }
    let stored = async {
        is_unchanged(core, &held.file).await?;
        output.store(&attempt).await
    };
    let outcome = match stored.await {
        Ok(outcome) => outcome,
        Err(StageError::LeaseLost) => return Err(VerbError::LeaseLost),
        Err(error @ (StageError::ObjectChanged(_) | StageError::Permanent(_))) => {
            error.into_outcome(pipeline, held.job.attempt).await.ok_or(VerbError::LeaseLost)?
        }
        Err(error) => {
            core.catalog.abort_storing_output(job, token).await?;
            return Err(VerbError::Unavailable(error.to_string()));
        }
    };
    let traced = outcome.clone();
    let ended = end(core, caller, StageEnd { job, token, outcome }).await;
    if ended.is_ok() {
        run::trace(core, &held, &traced);
    }
    if matches!(ended, Err(VerbError::Unavailable(_))) {
        // The worker may send the output again. If the end was written after all, this changes nothing.
        core.catalog.abort_storing_output(job, token).await?;
    }
    ended
}

/// Ends a failed attempt. An error that is not retryable fails the file at once.
pub async fn fail(
    pipeline: &Pipeline,
    caller: &Caller,
    job: JobId,
    token: &str,
    error: &str,
    failure: Failure,
) -> Result<CompletionResult, VerbError> {
    let core = &pipeline.core;
    let token = verify_token(pipeline, caller, job, token)?;
    let held = core.catalog.leased_stage_job(job, token).await?.ok_or(VerbError::LeaseLost)?;
    let why = stored_reason(error);
    let outcome = match failure {
        Failure::Retryable => Err(StageError::Retryable(why)),
        Failure::Permanent => Err(StageError::Permanent(why)),
        Failure::Unsupported if held.stage != Stage::Extract => {
            return Err(VerbError::invalid("unsupported", "is only for the stage `extract`"));
        }
        // The file may become ready, so its object must be the confirmed one, as in `complete`.
        Failure::Unsupported => is_unchanged(core, &held.file).await.map(|()| extract::unsupported(why)),
    };
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => error.into_outcome(pipeline, held.job.attempt).await.ok_or(VerbError::LeaseLost)?,
    };
    let ended = end(core, caller, StageEnd { job, token, outcome: outcome.clone() }).await?;
    run::trace(core, &held, &outcome);
    Ok(ended)
}

async fn end(core: &Core, caller: &Caller, end: StageEnd) -> Result<CompletionResult, VerbError> {
    let actor = worker_name(caller);
    let by = StageEndContext { actor: &actor, plan: &core.plan, now: core.clock.now() };
    let ended = core.catalog.end_stages(vec![end], by).await?;
    match ended.first() {
        None | Some(CompletionResult::LeaseLost) => Err(VerbError::LeaseLost),
        Some(ended) => {
            run::after_stage_end(core, *ended);
            Ok(*ended)
        }
    }
}

/// The output of an outside worker, in the form of its stage.
enum WorkerOutput {
    Verdict(Option<String>),
    Text(String),
    Chunks(Vec<OutsideChunk>),
    Vectors(Vec<Vec<f32>>),
}

#[derive(Deserialize)]
struct OutsideVerdict {
    verdict: String,
    signature: Option<String>,
}

#[derive(Deserialize)]
struct OutsideText {
    text: String,
}

#[derive(Deserialize)]
struct OutsideChunks {
    chunks: Vec<OutsideChunk>,
}

#[derive(Deserialize)]
struct OutsideChunk {
    text: String,
    start: u64,
    end: u64,
}

#[derive(Deserialize)]
struct OutsideVectors {
    vectors: Vec<Vec<f32>>,
}

fn read<'a, T: Deserialize<'a>>(output: &'a RawValue, field: &str, form: &str) -> Result<T, VerbError> {
    serde_json::from_str(output.get()).map_err(|_| VerbError::invalid(&format!("output.{field}"), form))
}

impl WorkerOutput {
    fn read(stage: Stage, output: &RawValue) -> Result<WorkerOutput, VerbError> {
        match stage {
            Stage::Scan => {
                let form = "must be `clean` or `infected`";
                let parsed: OutsideVerdict = read(output, "verdict", form)?;
                match parsed.verdict.as_str() {
                    "clean" => Ok(WorkerOutput::Verdict(None)),
                    "infected" => {
                        Ok(WorkerOutput::Verdict(Some(parsed.signature.unwrap_or_else(|| "unnamed".into()))))
                    }
                    _ => Err(VerbError::invalid("output.verdict", form)),
                }
            }
            Stage::Extract => read::<OutsideText>(output, "text", "must be a string")
                .map(|output| WorkerOutput::Text(output.text)),
            Stage::Chunk => {
                let parsed: OutsideChunks = read(output, "chunks", "must be a list of {text,start,end}")?;
                let is_wrong = |chunk: &OutsideChunk| chunk.end < chunk.start || chunk.end > TEXT_OFFSET_MAX;
                match parsed.chunks.iter().position(is_wrong) {
                    Some(n) => {
                        let problem = "must not be smaller than `start` or larger than any text";
                        Err(VerbError::invalid(&format!("output.chunks[{n}].end"), problem))
                    }
                    None => Ok(WorkerOutput::Chunks(parsed.chunks)),
                }
            }
            Stage::Embed => {
                let parsed: OutsideVectors = read(output, "vectors", "must be a list of lists of numbers")?;
                let dimensions = parsed.vectors.first().map_or(1, Vec::len);
                let is_sound = |vector: &Vec<f32>| {
                    vector.len() == dimensions && vector.iter().all(|number| number.is_finite())
                };
                let is_possible = (1..=DIMENSIONS_MAX).contains(&dimensions);
                match is_possible && parsed.vectors.iter().all(is_sound) {
                    true => Ok(WorkerOutput::Vectors(parsed.vectors)),
                    false => {
                        let problem = format!(
                            "must all have the same length of 1 to {DIMENSIONS_MAX}, and only finite numbers"
                        );
                        Err(VerbError::invalid("output.vectors", problem))
                    }
                }
            }
        }
    }

    /// Checks the output without changing anything.
    async fn check(&self, attempt: &Attempt<'_>) -> Result<(), VerbError> {
        let WorkerOutput::Vectors(vectors) = self else { return Ok(()) };
        let count = attempt.pipeline.core.catalog.chunk_count(attempt.held.file.id).await?;
        match vectors.len() as u64 == count {
            true => Ok(()),
            false => {
                let problem =
                    format!("must have one vector per chunk: {count} chunks, {} vectors", vectors.len());
                Err(VerbError::invalid("output.vectors", problem))
            }
        }
    }

    async fn store(self, attempt: &Attempt<'_>) -> Result<AttemptOutcome, StageError> {
        match self {
            WorkerOutput::Verdict(None) => Ok(AttemptOutcome::Done(StageOutput::default())),
            WorkerOutput::Verdict(Some(signature)) => Ok(scan::infected(&signature)),
            WorkerOutput::Text(text) => {
                let mut sink = TextSink::open(attempt).await?;
                sink.push(text.as_bytes()).await?;
                sink.finish("outside", 0).await
            }
            WorkerOutput::Chunks(chunks) => {
                let mut sink = ChunkSink::open(attempt).await?;
                for chunk in chunks {
                    sink.push(chunk.text, chunk.start, chunk.end).await?;
                }
                sink.finish().await
            }
            WorkerOutput::Vectors(vectors) => {
                let rows = vectors.into_iter().enumerate();
                let rows = rows.map(|(n, vector)| ChunkVector { ordinal: n as u64, vector });
                let mut sink = VectorSink::open(attempt, EXTERNAL_MODEL).await?;
                sink.push(rows.collect()).await?;
                sink.finish().await
            }
        }
    }
}
