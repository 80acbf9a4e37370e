//! The settings of the processing pipeline.

use std::path::PathBuf;

use wharfinger_lifecycle::derived::DerivedPolicy;
use wharfinger_lifecycle::limits::{FILE_SIZE_BYTES_MAX, MIB};
use wharfinger_lifecycle::stage::{Stage, parse_list};

use super::layers::Values;
use super::{BadSetting, DURATION_MS_MAX};

#[derive(Clone, Debug)]
pub struct PipelineSettings {
    /// What confirmed files go through.
    pub stages: Vec<Stage>,
    /// What this process works on itself.
    pub builtin: Vec<Stage>,
    /// Files that this process works on at once.
    pub concurrency: usize,
    pub stuck_after_ms: i64,
    pub clamd_url: Option<String>,
    pub hashes_file: Option<PathBuf>,
    /// How much may be made of a file.
    pub derived: DerivedPolicy,
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
        check_order(&stages, super::truth("PIPELINE_SCAN_FIRST", values)?)?;
        let chunk_size = values.whole("CHUNK_SIZE", 16, 100_000)? as usize;
        let chunk_overlap = values.whole("CHUNK_OVERLAP", 0, 50_000)? as usize;
        if chunk_overlap * 2 > chunk_size {
            return Err(BadSetting::new("CHUNK_OVERLAP", "must be at most half of CHUNK_SIZE"));
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
                _ => values.whole("PIPELINE_CONCURRENCY", 1, 1_000)? as usize,
            },
            stuck_after_ms: values.whole("STUCK_FILE_THRESHOLD_MS", 1, DURATION_MS_MAX)? as i64,
            clamd_url: values.maybe("CLAMD_URL").map(clamd_url).transpose()?,
            hashes_file: values.maybe("SCAN_HASHES_FILE").map(PathBuf::from),
            derived: DerivedPolicy {
                factor_max: values.whole("DERIVED_MAX_FACTOR", 1, 1_000_000)?,
                bytes_min: values.size("DERIVED_MIN_BYTES", 0, FILE_SIZE_BYTES_MAX)?,
            },
            extract: ExtractSettings {
                file_bytes_max: values.size("EXTRACT_FILE_BYTES_MAX", 1, u64::MAX)?,
                text_bytes_max: values.size("EXTRACT_TEXT_BYTES_MAX", 1, u64::MAX)?,
                inflated_bytes_max: values.size("EXTRACT_INFLATED_BYTES_MAX", 1, u64::MAX)?,
                memory_bytes_max: values.size("EXTRACT_MEMORY_BYTES_MAX", 64 * MIB, u64::MAX)?,
                pages_max: values.whole("EXTRACT_PAGES_MAX", 1, 1_000_000)? as u32,
                timeout_ms: values.whole("EXTRACT_TIMEOUT_MS", 100, DURATION_MS_MAX)?,
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

/// A stage without its input could only fail. A file should not be parsed before it was scanned.
fn check_order(stages: &[Stage], scan_first: bool) -> Result<(), BadSetting> {
    if scan_first && stages.iter().skip(1).any(|stage| *stage == Stage::Scan) {
        let problem = "`scan` must be the first stage, so that no file is read before it was scanned \
                       (PIPELINE_SCAN_FIRST=false allows another order)";
        return Err(BadSetting::new("PIPELINE_STAGES", problem));
    }
    for (stage, needs) in [(Stage::Chunk, Stage::Extract), (Stage::Embed, Stage::Chunk)] {
        let place = |wanted: Stage| stages.iter().position(|stage| *stage == wanted);
        if let Some(at) = place(stage)
            && place(needs).is_none_or(|before| before > at)
        {
            let problem = format!("`{}` needs `{}` before it", stage.as_str(), needs.as_str());
            return Err(BadSetting::new("PIPELINE_STAGES", problem));
        }
    }
    Ok(())
}

fn clamd_url(url: String) -> Result<String, BadSetting> {
    match url.strip_prefix("tcp://").or_else(|| url.strip_prefix("unix:")) {
        Some(rest) if !rest.is_empty() => Ok(url),
        _ => Err(BadSetting::new("CLAMD_URL", "must be tcp://host:3310 or unix:/path/to/clamd.sock")),
    }
}

fn embeddings(values: &Values) -> Result<Option<EmbeddingsSettings>, BadSetting> {
    let Some(url) = values.maybe("EMBEDDINGS_URL") else { return Ok(None) };
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(BadSetting::new("EMBEDDINGS_URL", "must begin with http:// or https://"));
    }
    let Some(model) = values.maybe("EMBEDDINGS_MODEL") else {
        return Err(BadSetting::new("EMBEDDINGS_MODEL", "must be set where EMBEDDINGS_URL is"));
    };
    Ok(Some(EmbeddingsSettings { url, model, api_key: values.maybe("EMBEDDINGS_API_KEY") }))
}
