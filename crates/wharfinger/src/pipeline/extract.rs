//! Extracts the text of a file in a child process with limits on memory, time and decompressed size. If a file crashes the
//! process, only this file fails.

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, StageOutput};

use futures::StreamExt as _;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wharfinger_text::child::Request;
use wharfinger_text::sandbox::Sandbox;
use wharfinger_text::{ExtractError, ExtractLimits, Extracted, child};

use super::output::TextSink;
use super::{Attempt, Backend, StageError};
use crate::config::ExtractSettings;
use crate::pipeline::Pipeline;

/// The folder for local copies. Copies left by crashed processes are removed at start and from time to time.
const FOLDER: &str = "extracting";
const HEAD_BYTES: u64 = 8 << 10;
const READ_BYTES: usize = 256 << 10;
const CHECK_BYTES: usize = 64 << 10;
const REPORT_BYTES_MAX: u64 = 64 << 10;

pub async fn extract(attempt: &Attempt<'_>) -> Result<AttemptOutcome, StageError> {
    let limits = &attempt.pipeline.core.settings.pipeline.extract;
    // A film is not copied to this machine only to find that it has no text.
    if let Some(what) = wharfinger_text::without_text(
        &attempt.head(HEAD_BYTES).await?,
        attempt.held.file.size > limits.file_bytes_max,
    ) {
        return Ok(unsupported(ExtractError::NotSupported(what).to_string()));
    }
    if attempt.held.file.size > limits.file_bytes_max {
        let most = limits.file_bytes_max;
        return Err(StageError::Permanent(format!(
            "the file is too large to extract its text; the limit is {most} bytes (EXTRACT_FILE_BYTES_MAX)"
        )));
    }
    let copy = Copy::make(attempt).await?;
    let mut sink = TextSink::open(attempt).await?;
    let request = Request {
        input: copy.path.clone(),
        file_name: attempt.held.file.name.clone(),
        limits: child_limits(limits, sink.bytes_max()),
    };
    let extracted = match run_child(attempt.pipeline, &request, &mut sink).await? {
        Ok(extracted) => extracted,
        Err(error @ ExtractError::NotSupported(_)) => return Ok(unsupported(error.to_string())),
        Err(error) => return Err(stage_error(error)),
    };
    sink.is_cut |= extracted.cut;
    sink.finish(&extracted.kind, extracted.pages).await
}

/// The end of an attempt at a file whose type has no text.
pub(super) fn unsupported(why: String) -> AttemptOutcome {
    let details = json!({ "kind": null, "pages": 0, "bytes": 0, "parts": 0, "cut": false });
    let output = StageOutput { details: Some(details.to_string()), text: Some(Vec::new()) };
    AttemptOutcome::Unsupported { why, output }
}

fn child_limits(settings: &ExtractSettings, truncate_at_bytes: u64) -> ExtractLimits {
    ExtractLimits {
        truncate_at_bytes,
        pages_max: settings.pages_max,
        inflated_bytes_max: settings.inflated_bytes_max,
        text_bytes_max: settings.text_bytes_max,
        memory_bytes_max: settings.memory_bytes_max,
        time_ms_max: settings.timeout_ms,
    }
}

/// A local copy that is removed when it is dropped.
struct Copy {
    path: PathBuf,
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// An error of the local disk. A check of the disk then decides whether it affects all files or only this one.
fn disk_error(error: std::io::Error) -> StageError {
    StageError::Backend(Backend::Disk, format!("cannot write the local copy of the file: {error}"))
}

fn machine_error(error: std::io::Error) -> StageError {
    StageError::Backend(Backend::Machine, format!("cannot talk to the text extractor: {error}"))
}

/// Checks that a small file can be written to the folder for copies.
pub(super) async fn check_disk(data_dir: &Path) -> std::io::Result<()> {
    let folder = data_dir.join(FOLDER);
    tokio::fs::create_dir_all(&folder).await?;
    let probe = folder.join(format!("check.{}", uuid::Uuid::new_v4()));
    let written = tokio::fs::write(&probe, [0; CHECK_BYTES]).await;
    // On a full disk the file is created but stays empty.
    let removed = tokio::fs::remove_file(&probe).await;
    written.and(removed)
}

impl Copy {
    async fn make(attempt: &Attempt<'_>) -> Result<Copy, StageError> {
        let folder = attempt.pipeline.core.settings.data_dir.join(FOLDER);
        tokio::fs::create_dir_all(&folder).await.map_err(disk_error)?;
        let (job, token) = attempt.lease();
        let copy = Copy { path: folder.join(format!("{job}-{token}")) };
        let mut bytes = attempt.original().await?;
        let mut file = tokio::fs::File::create(&copy.path).await.map_err(disk_error)?;
        while let Some(piece) = bytes.next().await {
            file.write_all(&piece?).await.map_err(disk_error)?;
        }
        file.flush().await.map_err(disk_error)?;
        Ok(copy)
    }
}

async fn run_child(
    pipeline: &Pipeline,
    request: &Request,
    sink: &mut TextSink<'_>,
) -> Result<Result<Extracted, ExtractError>, StageError> {
    let mut child = tokio::process::Command::from(child::command(&pipeline.extractor))
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| {
            StageError::Backend(Backend::Machine, format!("cannot start the text extractor: {error}"))
        })?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(mut stdout), Some(stderr)) = pipes else {
        return Err(StageError::Backend(Backend::Machine, "the text extractor has no output".into()));
    };
    let work = async {
        stdin.write_all(&request.to_json()).await.map_err(machine_error)?;
        drop(stdin);
        let text = async {
            let mut buffer = vec![0; READ_BYTES];
            loop {
                match stdout.read(&mut buffer).await.map_err(machine_error)? {
                    0 => return Ok::<(), StageError>(()),
                    count => sink.push(&buffer[..count]).await?,
                }
            }
        };
        let report = async {
            let mut report = Vec::new();
            stderr.take(REPORT_BYTES_MAX).read_to_end(&mut report).await.map_err(machine_error)?;
            Ok(report)
        };
        let ((), report) = futures::future::try_join(text, report).await?;
        let status = child.wait().await.map_err(machine_error)?;
        warn_weak_sandbox(child::sandbox(&report));
        Ok(child::outcome(status, &report))
    };
    // The child stops at its own limits. This timeout stops a child that hangs.
    let timeout = Duration::from_millis(pipeline.core.settings.pipeline.extract.timeout_ms.saturating_mul(4));
    match tokio::time::timeout(timeout, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(StageError::Permanent("text extraction took too long (EXTRACT_TIMEOUT_MS)".into())),
    }
}

/// Warns once per process if the kernel does not support the full sandbox.
fn warn_weak_sandbox(sandbox: Option<Sandbox>) {
    static WARNED: Once = Once::new();
    if let Some(Sandbox { landlock, seccomp }) = sandbox
        && !(landlock && seccomp)
    {
        WARNED.call_once(|| {
            tracing::warn!(
                landlock,
                seccomp,
                "the kernel does not support the full sandbox for the text extractor"
            );
        });
    }
}

fn stage_error(error: ExtractError) -> StageError {
    match error {
        ExtractError::Unavailable(_) => StageError::Retryable(error.to_string()),
        _ => StageError::Permanent(error.to_string()),
    }
}

/// Removes copies older than the stage timeout. Another process may still read a younger one.
pub fn remove_old_copies(data_dir: &Path, stage_timeout_ms: i64) {
    let Ok(entries) = std::fs::read_dir(data_dir.join(FOLDER)) else { return };
    let lives = Duration::from_millis(u64::try_from(stage_timeout_ms).unwrap_or(0));
    for entry in entries.flatten() {
        let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|at| at.elapsed().ok());
        if age.is_some_and(|age| age > lives) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
