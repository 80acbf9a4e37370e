//! Workers in any language: what they may do with a lease. A lease that is no longer the current one changes nothing.

use serde_json::Value;
use wharfinger_backends::blobs::{GetGrant, UrlLife};
use wharfinger_backends::catalog::{EndBy, Ended, Ending, Output, StageClaim, StageEnd, StageJob};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::JobId;
use wharfinger_lifecycle::limits::{ERROR_TEXT_BYTES_MAX, clip};
use wharfinger_lifecycle::stage::Stage;

use super::input::{self, Input};
use super::output::{ChunkSink, TextSink, embedded, put_vectors};
use super::{Attempt, Trouble, run, scan};
use crate::app::App;
use crate::uploads::{Caller, VerbError};

pub const LEASE_JOBS_MAX: usize = 100;
const LEASE_MS_MIN: i64 = 1_000;
/// A URL lives at least so long, however short the lease is.
const URL_LIFE_MS_MIN: i64 = 15 * 60_000;

/// A job as an outside worker gets it.
pub struct Leased {
    pub held: StageJob,
    pub download_url: String,
    pub input: Input,
}

fn worker_name(caller: &Caller) -> String {
    format!("{}:{}", caller.role.as_str(), caller.user)
}

/// Claims up to so many files of these stages.
pub async fn lease(
    app: &App,
    caller: &Caller,
    stages: &[Stage],
    max: usize,
    lease_ms: Option<i64>,
) -> Result<Vec<Leased>, VerbError> {
    for stage in stages {
        if !app.plan.stages.contains(stage) {
            return Err(VerbError::NotInPipeline(*stage));
        }
    }
    run::take_back(app).await?;
    let timeout_ms = app.settings.stage_timeout_ms;
    let lease_ms =
        lease_ms.unwrap_or(app.settings.job_lease_ms).clamp(LEASE_MS_MIN.min(timeout_ms), timeout_ms);
    let mut leased = Vec::new();
    for stage in stages {
        let room = max - leased.len();
        if room == 0 {
            break;
        }
        let claim = StageClaim {
            stage: *stage,
            owner: worker_name(caller),
            limit: room,
            lease_ms,
            deadline_ms: timeout_ms,
            plan: app.plan.clone(),
            now: app.clock.now(),
        };
        for held in app.catalog.claim_stage(claim).await? {
            let download_url = download_url(app, &held, lease_ms).await?;
            let input = input::of(app, &held).await?;
            leased.push(Leased { held, download_url, input });
        }
    }
    Ok(leased)
}

async fn download_url(app: &App, held: &StageJob, lease_ms: i64) -> Result<String, VerbError> {
    let file = &held.file;
    let pin = file.pin.clone().ok_or_else(|| VerbError::Internal(format!("{} has no pin", file.id)))?;
    let now = app.clock.now();
    let grant = GetGrant {
        key: file.key.clone(),
        pin,
        content_type: file.content_type.clone(),
        file_name: file.name.clone(),
        life: UrlLife { signed_at: now, expires_at: now.saturating_add(lease_ms.max(URL_LIFE_MS_MIN)) },
    };
    Ok(app.blobs.sign_get(&grant).await?.url)
}

/// The new end of the lease.
pub async fn heartbeat(app: &App, job: JobId, token: i64) -> Result<UnixMs, VerbError> {
    let now = app.clock.now();
    app.catalog.heartbeat_job(job, token, app.settings.job_lease_ms, now).await?.ok_or(VerbError::LeaseLost)
}

/// Takes a stage's output, keeps it, and moves the file on.
pub async fn complete(
    app: &App,
    caller: &Caller,
    job: JobId,
    token: i64,
    output: Value,
) -> Result<Ended, VerbError> {
    let held = app.catalog.held_stage(job, token).await?.ok_or(VerbError::LeaseLost)?;
    let attempt = Attempt { app, held: &held };
    let how = match keep(&attempt, output).await {
        Ok(Ok(how)) => how,
        Ok(Err(problem)) => return Err(problem),
        Err(Trouble::LeaseLost) => return Err(VerbError::LeaseLost),
        Err(trouble) => return Err(VerbError::Unavailable(format!("{trouble:?}"))),
    };
    end(app, caller, StageEnd { job, token, how }).await
}

/// An attempt that did not end well. A permanent error fails the file at once.
pub async fn fail(
    app: &App,
    caller: &Caller,
    job: JobId,
    token: i64,
    error: &str,
    retryable: bool,
) -> Result<Ended, VerbError> {
    let held = app.catalog.held_stage(job, token).await?.ok_or(VerbError::LeaseLost)?;
    let why = clip(error, ERROR_TEXT_BYTES_MAX).replace('\0', "\u{fffd}");
    let trouble = if retryable { Trouble::Again(why) } else { Trouble::Hopeless(why) };
    let how = trouble.ending(app, held.job.attempt).ok_or(VerbError::LeaseLost)?;
    end(app, caller, StageEnd { job, token, how }).await
}

async fn end(app: &App, caller: &Caller, end: StageEnd) -> Result<Ended, VerbError> {
    let actor = worker_name(caller);
    let by = EndBy { actor: &actor, plan: &app.plan, now: app.clock.now() };
    let ended = app.catalog.end_stages(vec![end], by).await?;
    match ended.first() {
        None | Some(Ended::LeaseLost) => Err(VerbError::LeaseLost),
        Some(ended) => {
            run::follow(app, *ended);
            Ok(*ended)
        }
    }
}

/// The inner error is the worker's: an output that is not what its stage has to give.
async fn keep(attempt: &Attempt<'_>, output: Value) -> Result<Result<Ending, VerbError>, Trouble> {
    let wrong = |field: &str, problem: &str| Ok(Err(VerbError::invalid(field, problem)));
    match attempt.held.stage {
        Stage::Scan => match output["verdict"].as_str() {
            Some("clean") => Ok(Ok(Ending::Done(Output::default()))),
            Some("infected") => Ok(Ok(scan::infected(output["signature"].as_str().unwrap_or("unnamed")))),
            _ => wrong("output.verdict", "must be `clean` or `infected`"),
        },
        Stage::Extract => {
            let Some(text) = output["text"].as_str() else {
                return wrong("output.text", "must be a text");
            };
            let mut sink = TextSink::new(attempt);
            sink.push(text.as_bytes()).await?;
            sink.finish("outside", 0).await.map(Ok)
        }
        Stage::Chunk => {
            let chunks: Vec<OutsideChunk> = match serde_json::from_value(output["chunks"].clone()) {
                Ok(chunks) => chunks,
                Err(_) => return wrong("output.chunks", "must be a list of {text,start,end}"),
            };
            if let Some(n) = chunks.iter().position(|chunk| chunk.end < chunk.start) {
                return wrong(&format!("output.chunks[{n}].end"), "must not be before its start");
            }
            let mut sink = ChunkSink::new(attempt);
            for chunk in chunks {
                sink.push(chunk.text, chunk.start, chunk.end).await?;
            }
            sink.finish().await.map(Ok)
        }
        Stage::Embed => keep_vectors(attempt, output).await,
    }
}

#[derive(serde::Deserialize)]
struct OutsideChunk {
    text: String,
    start: u64,
    end: u64,
}

async fn keep_vectors(attempt: &Attempt<'_>, output: Value) -> Result<Result<Ending, VerbError>, Trouble> {
    let wrong = |problem: String| Ok(Err(VerbError::invalid("output.vectors", problem)));
    let Ok(vectors) = serde_json::from_value::<Vec<Vec<f32>>>(output["vectors"].clone()) else {
        return wrong("must be a list of lists of numbers".into());
    };
    let count = attempt.app.catalog.chunk_count(attempt.held.file.id).await?;
    if vectors.len() as u64 != count {
        return wrong(format!("there are {count} chunks and {} vectors", vectors.len()));
    }
    let dimensions = vectors.first().map_or(0, Vec::len);
    let is_sound = |vector: &Vec<f32>| {
        vector.len() == dimensions && dimensions > 0 && vector.iter().all(|number| number.is_finite())
    };
    if !vectors.iter().all(is_sound) {
        return wrong("must all have the same number of finite numbers".into());
    }
    let rows = vectors.into_iter().enumerate();
    let rows = rows.map(|(n, vector)| wharfinger_backends::catalog::Embedded { ordinal: n as u64, vector });
    put_vectors(attempt, rows.collect()).await?;
    Ok(Ok(embedded(count, dimensions, "outside")))
}
