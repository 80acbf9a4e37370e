//! Scans files for malware, with clamd or with built-in signatures.

use futures::{StreamExt as _, TryStreamExt as _};
use wharfinger_engines::scanner::{ScanError, Scanner, Signatures, Verdict};
use wharfinger_lifecycle::quarantine::QuarantineCause;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, StageOutput};

use super::{Attempt, Backend, StageError, bad};
use crate::config::PipelineSettings;
use crate::core::OpenError;

pub(super) fn scanner(settings: &PipelineSettings) -> Result<Scanner, OpenError> {
    if let Some(url) = &settings.clamd_url {
        return Scanner::clamd(url).map_err(|problem| bad("CLAMD_URL", problem));
    }
    let signatures = match &settings.hashes_file {
        None => Signatures::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
            text.and_then(|text| Signatures::parse(&text))
                .map_err(|problem| bad("SCAN_HASHES_FILE", format!("{}: {problem}", path.display())))?
        }
    };
    Ok(Scanner::Builtin(signatures))
}

pub async fn scan(attempt: &Attempt<'_>) -> Result<AttemptOutcome, StageError> {
    let bytes = attempt.original().await?.map_err(|error| error.to_string()).boxed();
    match attempt.pipeline.scanner.scan(bytes).await {
        Ok(Verdict::Clean) => Ok(AttemptOutcome::Done(StageOutput::default())),
        Ok(Verdict::Infected { signature }) => Ok(infected(&signature)),
        Err(ScanError::Unavailable(why)) => Err(StageError::Backend(Backend::Scanner, why)),
        Err(ScanError::TooLarge(why)) => {
            Err(StageError::Permanent(format!("the file is too large to be scanned: {why}")))
        }
        Err(ScanError::Refused(why)) => Err(StageError::Retryable(why)),
    }
}

pub fn infected(signature: &str) -> AttemptOutcome {
    AttemptOutcome::Quarantined { cause: QuarantineCause::Infected, why: format!("infected: {signature}") }
}
