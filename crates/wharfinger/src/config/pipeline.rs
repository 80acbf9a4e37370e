//! The settings of the processing pipeline.

use std::path::PathBuf;

use wharfinger_lifecycle::derived::DerivedPolicy;
use wharfinger_lifecycle::limits::{FILE_SIZE_BYTES_MAX, MIB};
use wharfinger_lifecycle::stage::{Stage, parse_list};
use wharfinger_lifecycle::text_status::UnsupportedRule;

use super::layers::Values;
use super::{BadSetting, DURATION_MS_MAX};

#[derive(Clone, Debug)]
pub struct PipelineSettings {
    /// The stages of newly confirmed files.
    pub stages: Vec<Stage>,
    /// The stages that this process runs itself.
    pub builtin: Vec<Stage>,
    /// How many files this process works on at the same time.
    pub concurrency: usize,
    pub stuck_after_ms: i64,
    pub clamd_url: Option<String>,
    pub hashes_file: Option<PathBuf>,
    /// Limits for the text and chunks of a file.
    pub derived: DerivedPolicy,
    /// For files whose type has no text.
    pub unsupported: UnsupportedRule,
    pub extract: ExtractSettings,
    pub chunk_by_tokens: bool,
    pub chunk_size: usize,
    pub chunk_overlap: usize,
    pub embeddings: Option<EmbeddingsSettings>,
}

#[derive(Clone, Copy, Debug)]
pub struct ExtractSettings {
    pub file_bytes_max: u64,
    pub text_bytes_max: u64,
    pub inflated_bytes_max: u64,
    pub memory_bytes_max: u64,
    pub pages_max: u32,
    pub timeout_ms: u64,
}

#[derive(Clone, Debug)]
pub struct EmbeddingsSettings {
    pub url: String,
    pub model: String,
    pub api_key: Option<String>,
}

impl PipelineSettings {
    pub(super) fn from_values(values: &Values) -> Result<PipelineSettings, BadSetting> {
        let stages = stages("PIPELINE_STAGES", values)?;
        check_order(&stages, super::boolean("PIPELINE_SCAN_FIRST", values)?)?;
        let chunk_size = values.integer("CHUNK_SIZE", 16, 100_000)? as usize;
        let chunk_overlap = values.integer("CHUNK_OVERLAP", 0, 50_000)? as usize;
        if chunk_overlap * 2 > chunk_size {
            return Err(BadSetting::new(
                "CHUNK_OVERLAP",
                "must be at most half of CHUNK_SIZE, for example 120 for 1200",
            ));
        }
        Ok(PipelineSettings {
            builtin: match values.text("PIPELINE_BUILTIN_STAGES")?.as_str() {
                "all" => Stage::ALL.to_vec(),
                _ => self::stages("PIPELINE_BUILTIN_STAGES", values)?,
            },
            stages,
            concurrency: match values.text("PIPELINE_CONCURRENCY")?.as_str() {
                "auto" => {
                    8 * std::thread::available_parallelism().map_or(1, |cores| cores.get()).clamp(1, 16)
                }
                _ => values.integer("PIPELINE_CONCURRENCY", 1, 1_000)? as usize,
            },
            stuck_after_ms: values.duration_ms("STUCK_FILE_THRESHOLD_MS", 1, DURATION_MS_MAX)? as i64,
            clamd_url: values.get("CLAMD_URL").map(clamd_url).transpose()?,
            hashes_file: values.get("SCAN_HASHES_FILE").map(PathBuf::from),
            derived: DerivedPolicy {
                factor_max: values.integer("DERIVED_MAX_FACTOR", 1, 1_000_000)?,
                bytes_min: values.size("DERIVED_MIN_BYTES", 0, FILE_SIZE_BYTES_MAX)?,
            },
            unsupported: match values.text("EXTRACT_UNSUPPORTED")?.as_str() {
                "ready" => UnsupportedRule::Ready,
                "failed" => UnsupportedRule::Failed,
                other => {
                    let problem = format!("must be `ready` or `failed`, not `{other}`");
                    return Err(BadSetting::new("EXTRACT_UNSUPPORTED", problem));
                }
            },
            extract: ExtractSettings {
                file_bytes_max: values.size("EXTRACT_FILE_BYTES_MAX", 1, u64::MAX)?,
                text_bytes_max: values.size("EXTRACT_TEXT_BYTES_MAX", 1, u64::MAX)?,
                inflated_bytes_max: values.size("EXTRACT_INFLATED_BYTES_MAX", 1, u64::MAX)?,
                memory_bytes_max: values.size("EXTRACT_MEMORY_BYTES_MAX", 64 * MIB, u64::MAX)?,
                pages_max: values.integer("EXTRACT_PAGES_MAX", 1, 1_000_000)? as u32,
                timeout_ms: values.duration_ms("EXTRACT_TIMEOUT_MS", 100, DURATION_MS_MAX)?,
            },
            chunk_by_tokens: match values.text("CHUNK_UNIT")?.as_str() {
                "chars" => false,
                "tokens" => true,
                other => {
                    let problem = format!("must be `chars` or `tokens`, not `{other}`");
                    return Err(BadSetting::new("CHUNK_UNIT", problem));
                }
            },
            chunk_size,
            chunk_overlap,
            embeddings: embeddings(values)?,
        })
    }
}

fn stages(name: &'static str, values: &Values) -> Result<Vec<Stage>, BadSetting> {
    parse_list(&values.text(name)?).map_err(|problem| BadSetting::new(name, problem))
}

/// A stage without its input would always fail, and a file should not be parsed before its scan.
fn check_order(stages: &[Stage], scan_first: bool) -> Result<(), BadSetting> {
    if scan_first && stages.iter().skip(1).any(|stage| *stage == Stage::Scan) {
        let problem = "must start with `scan`, so that no file is parsed before its scan \
                       (PIPELINE_SCAN_FIRST=false allows another order)";
        return Err(BadSetting::new("PIPELINE_STAGES", problem));
    }
    for (at, stage) in stages.iter().enumerate() {
        if let Some(needs) = stage.needs().filter(|needs| !stages[..at].contains(needs)) {
            let problem = format!(
                "needs `{}` before `{}`, for example scan,extract,chunk,embed",
                needs.as_str(),
                stage.as_str()
            );
            return Err(BadSetting::new("PIPELINE_STAGES", problem));
        }
    }
    Ok(())
}

fn clamd_url(url: String) -> Result<String, BadSetting> {
    match url.strip_prefix("tcp://").or_else(|| url.strip_prefix("unix:")) {
        Some(rest) if !rest.is_empty() => Ok(url),
        _ => Err(BadSetting::new(
            "CLAMD_URL",
            "must be a URL like tcp://localhost:3310 or unix:/path/to/clamd.sock",
        )),
    }
}

fn embeddings(values: &Values) -> Result<Option<EmbeddingsSettings>, BadSetting> {
    let Some(url) = values.get("EMBEDDINGS_URL") else { return Ok(None) };
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(BadSetting::new(
            "EMBEDDINGS_URL",
            "must start with http:// or https://, for example https://api.example.com/v1/embeddings",
        ));
    }
    let Some(model) = values.get("EMBEDDINGS_MODEL") else {
        return Err(BadSetting::new(
            "EMBEDDINGS_MODEL",
            "must be set if EMBEDDINGS_URL is set, for example text-embedding-3-small",
        ));
    };
    Ok(Some(EmbeddingsSettings { url, model, api_key: values.get("EMBEDDINGS_API_KEY") }))
}
