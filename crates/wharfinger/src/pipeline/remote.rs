//! Workers in any language: what they may do with a lease. A lease that is no longer the current one changes nothing.

use std::sync::Arc;

use futures::StreamExt as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::AcquireError;
use wharfinger_catalog::{Claimable, ChunkVector, StageEndContext, StageClaim, StageEnd, LeasedStageJob};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::JobId;
use wharfinger_lifecycle::limits::stored_reason;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::{CompletionResult, AttemptOutcome, StageOutput};
use wharfinger_stores::{BlobError, GetGrant, UrlLifetime};

use super::input::{self, Input};
use super::output::{ChunkSink, TextSink, VectorSink};
use super::{Attempt, StageError, run, scan, claims};
use crate::auth::LeaseScope;
use crate::core::Core;
use crate::core::{Caller, VerbError};
use crate::pipeline::Pipeline;

pub const LEASE_JOBS_MAX: usize = 100;
const LEASE_MS_MIN: i64 = 1_000;
/// A URL lives at least so long, however short the lease is.
const URL_LIFE_MS_MIN: i64 = 15 * 60_000;
const PREPARED_AT_ONCE: usize = 16;
/// How long an output that is being taken in is safe from others.
const STORE_OUTPUT_MS: i64 = 5 * 60_000;
/// The model of vectors that outside workers make.
const OUTSIDE: &str = "outside";
const DIMENSIONS_MAX: usize = 16_384;
/// Beyond any text that there can be.
const OFFSET_MAX: u64 = 1 << 50;

/// Who leases, and what its token narrows that to.
pub struct Worker {
    pub caller: Caller,
    pub scope: LeaseScope,
}

/// A job as an outside worker gets it.
pub struct LeasedJob {
    pub held: LeasedStageJob,
    pub token: String,
    pub download_url: String,
    pub input: Input,
}

/// Leases on their way to a worker. Dropped before they were sent (the client hung up, the call took too long), they are
/// given back: a worker that never had a file must not count as lost.
pub struct Delivery {
    pipeline: Arc<Pipeline>,
    leases: Vec<StageEnd>,
}

impl Delivery {
    pub fn of(pipeline: &Arc<Pipeline>, leased: &[LeasedJob]) -> Delivery {
        let leases = leased.iter().map(|leased| claims::released(&leased.held)).collect();
        Delivery { pipeline: pipeline.clone(), leases }
    }

    /// The worker's connection has taken them.
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
            "a worker hung up before it got its jobs"
        );
        for lease in self.leases.drain(..) {
            claims::release_later(&self.pipeline, lease);
        }
        // Without a runtime the process is ending, and another one takes the leases back.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let pipeline = self.pipeline.clone();
            let returning = self.pipeline.core.verbs.track_future(async move {
                if let Err(error) = claims::release_undelivered(&pipeline).await {
                    tracing::warn!(error = %error, "cannot give back leases now, trying again later");
                }
            });
            runtime.spawn(returning);
        }
    }
}

fn worker_name(caller: &Caller) -> String {
    format!("{}:{}", caller.role.as_str(), caller.user)
}

/// Claims up to so many files of these stages. What cannot be handed out is ended there and then, for the right reason.
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
        // Files keep the stages they were confirmed under.
        if !core.plan.stages.contains(stage) && core.catalog.next_job_at(&[stage.queue()]).await?.is_none() {
            return Err(VerbError::NotInPipeline(*stage));
        }
    }
    run::recover_expired(core).await?;
    let timeout_ms = core.settings.stage_timeout_ms;
    let lease_ms =
        lease_ms.unwrap_or(core.settings.job_lease_ms).clamp(LEASE_MS_MIN.min(timeout_ms), timeout_ms);
    let held = claim_some(pipeline, worker, stages, max, (lease_ms, timeout_ms)).await?;
    if !held.is_empty() {
        core.wakeups.archive.notify_one();
    }
    let handed = futures::stream::iter(held).map(|held| prepare(pipeline, caller, held, lease_ms));
    let leased: Vec<Option<LeasedJob>> = handed.buffered(PREPARED_AT_ONCE).collect().await;
    Ok(leased.into_iter().flatten().collect())
}

/// One that would be given up with one more lost worker comes alone; of other suspects there is one at a time.
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
                // What is held already goes to the worker: thrown away, it would count as lost.
                Err(error) if !held.is_empty() => {
                    tracing::warn!(error = %error, "cannot claim more work");
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

/// None where the file did not get as far as the worker.
async fn prepare(pipeline: &Pipeline, caller: &Caller, held: LeasedStageJob, lease_ms: i64) -> Option<LeasedJob> {
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
        Err(trouble) => {
            tracing::warn!(job = held.stage.queue(), fileId = %held.file.id, tenant = %held.file.tenant, error = ?trouble,
                action = "stopped", "a file could not be handed to a worker");
            if let Some(outcome) = error.into_outcome(pipeline, held.job.attempt).await {
                let ended =
                    end(core, caller, StageEnd { job: held.job.id, token: held.job.token, outcome }).await;
                if ended.is_err_and(|error| error != VerbError::LeaseLost) {
                    // No worker had it: it must not count as lost when its lease runs out.
                    claims::release_later(pipeline, claims::released(&held));
                }
            }
            None
        }
    }
}

/// The object is still the one that was confirmed: not every store binds a URL to that.
async fn is_unchanged(core: &Core, file: &File) -> Result<(), StageError> {
    let pin = file.pin.as_ref().ok_or_else(|| StageError::Permanent("it was never confirmed".into()))?;
    let meta = core.blobs.head(&file.key, pin.version_id.as_deref()).await?;
    match meta.etag == pin.etag && meta.content_encoding.is_none() {
        true => Ok(()),
        false => Err(BlobError::Changed.into()),
    }
}

async fn download_url(core: &Core, held: &LeasedStageJob, lease_ms: i64) -> Result<String, StageError> {
    let file = &held.file;
    let pin = file.pin.clone().ok_or_else(|| StageError::Permanent("it was never confirmed".into()))?;
    let now = core.clock.now();
    let grant = GetGrant {
        key: file.key.clone(),
        pin,
        content_type: file.content_type.clone(),
        file_name: file.name.clone(),
        lifetime: UrlLifetime { signed_at: now, expires_at: now.saturating_add(lease_ms.max(URL_LIFE_MS_MIN)) },
    };
    Ok(core.blobs.sign_get(&grant).await?.url)
}

/// The number of the caller's own lease. A token of another, or none at all, says nothing about the lease of now.
fn verify_token(pipeline: &Pipeline, caller: &Caller, job: JobId, token: &str) -> Result<i64, VerbError> {
    pipeline.lease_key.number(job, token, caller).ok_or(VerbError::LeaseLost)
}

/// The new end of the lease.
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

/// Takes a stage's output, keeps it, and moves the file on.
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
    let _place = pipeline.outputs.acquire().await.map_err(closed)?;
    let held = core.catalog.leased_stage_job(job, token).await?.ok_or(VerbError::LeaseLost)?;
    let output = WorkerOutput::read(held.stage, output)?;
    let attempt = Attempt { pipeline, held: &held };
    output.check(&attempt).await?;
    // A worker that was told to try again may do so while its first try is still at it.
    let until = core.clock.now().saturating_add(core.settings.job_lease_ms.max(STORE_OUTPUT_MS));
    if !core.catalog.begin_storing_output(job, token, until).await? {
        return match core.catalog.leased_stage_job(job, token).await? {
            Some(_) => Err(VerbError::Unavailable("this output is being taken in".into())),
            None => Err(VerbError::LeaseLost),
        };
    }
    let kept = async {
        is_unchanged(core, &held.file).await?;
        output.keep(&attempt).await
    };
    let outcome = match kept.await {
        Ok(outcome) => outcome,
        Err(StageError::LeaseLost) => return Err(VerbError::LeaseLost),
        Err(trouble @ (StageError::ObjectChanged(_) | StageError::Permanent(_))) => {
            error.into_outcome(pipeline, held.job.attempt).await.ok_or(VerbError::LeaseLost)?
        }
        Err(trouble) => {
            core.catalog.abort_storing_output(job, token).await?;
            return Err(VerbError::Unavailable(format!("{trouble:?}")));
        }
    };
    let traced = outcome.clone();
    let ended = end(core, caller, StageEnd { job, token, outcome }).await;
    if ended.is_ok() {
        run::trace(core, &held, &traced);
    }
    if matches!(ended, Err(VerbError::Unavailable(_))) {
        // The worker may bring it again. If the end was written after all, there is nothing to take back.
        core.catalog.abort_storing_output(job, token).await?;
    }
    ended
}

/// An attempt that did not end well. A permanent error fails the file at once.
pub async fn fail(
    pipeline: &Pipeline,
    caller: &Caller,
    job: JobId,
    token: &str,
    error: &str,
    retryable: bool,
) -> Result<CompletionResult, VerbError> {
    let core = &pipeline.core;
    let token = verify_token(pipeline, caller, job, token)?;
    let held = core.catalog.leased_stage_job(job, token).await?.ok_or(VerbError::LeaseLost)?;
    let why = stored_reason(error);
    let trouble = if retryable { StageError::Retryable(why) } else { StageError::Permanent(why) };
    let outcome = error.into_outcome(pipeline, held.job.attempt).await.ok_or(VerbError::LeaseLost)?;
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

/// What a worker has made, in the form that its stage has to give.
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
                let made: OutsideVerdict = read(output, "verdict", form)?;
                match made.verdict.as_str() {
                    "clean" => Ok(WorkerOutput::Verdict(None)),
                    "infected" => Ok(WorkerOutput::Verdict(Some(made.signature.unwrap_or_else(|| "unnamed".into())))),
                    _ => Err(VerbError::invalid("output.verdict", form)),
                }
            }
            Stage::Extract => {
                read::<OutsideText>(output, "text", "must be a text").map(|made| WorkerOutput::Text(made.text))
            }
            Stage::Chunk => {
                let made: OutsideChunks = read(output, "chunks", "must be a list of {text,start,end}")?;
                let is_wrong = |chunk: &OutsideChunk| chunk.end < chunk.start || chunk.end > OFFSET_MAX;
                match made.chunks.iter().position(is_wrong) {
                    Some(n) => {
                        let problem = "must not be before its start, nor beyond any text";
                        Err(VerbError::invalid(&format!("output.chunks[{n}].end"), problem))
                    }
                    None => Ok(WorkerOutput::Chunks(made.chunks)),
                }
            }
            Stage::Embed => {
                let made: OutsideVectors = read(output, "vectors", "must be a list of lists of numbers")?;
                let dimensions = made.vectors.first().map_or(1, Vec::len);
                let is_sound = |vector: &Vec<f32>| {
                    vector.len() == dimensions && vector.iter().all(|number| number.is_finite())
                };
                let is_possible = (1..=DIMENSIONS_MAX).contains(&dimensions);
                match is_possible && made.vectors.iter().all(is_sound) {
                    true => Ok(WorkerOutput::Vectors(made.vectors)),
                    false => {
                        let problem = format!("must all have the same 1 to {DIMENSIONS_MAX} finite numbers");
                        Err(VerbError::invalid("output.vectors", problem))
                    }
                }
            }
        }
    }

    /// What can be found out without changing anything.
    async fn check(&self, attempt: &Attempt<'_>) -> Result<(), VerbError> {
        let WorkerOutput::Vectors(vectors) = self else { return Ok(()) };
        let count = attempt.pipeline.core.catalog.chunk_count(attempt.held.file.id).await?;
        match vectors.len() as u64 == count {
            true => Ok(()),
            false => {
                let problem = format!("there are {count} chunks and {} vectors", vectors.len());
                Err(VerbError::invalid("output.vectors", problem))
            }
        }
    }

    async fn keep(self, attempt: &Attempt<'_>) -> Result<AttemptOutcome, StageError> {
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
                let mut sink = VectorSink::open(attempt, OUTSIDE).await?;
                sink.push(rows.collect()).await?;
                sink.finish().await
            }
        }
    }
}
