//! Processes confirmed files until they are ready, or failed with a reason. Each stage has its own queue. This process runs
//! the stages of `PIPELINE_BUILTIN_STAGES`, outside workers run the others. Both end a stage in the same way.

mod attempt;
mod bisect;
mod bounds;
pub mod chunk;
mod claims;
pub mod dead_letters;
pub mod embed;
pub mod extract;
pub mod input;
mod lease_token;
pub mod output;
pub mod recovery;
pub mod remote;
pub mod run;
pub mod scan;
pub mod search;
pub mod stage_workers;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;
use wharfinger_catalog::StageEnd;
use wharfinger_engines::scanner::Scanner;
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::stage::Stage;

pub use attempt::{Attempt, Backend, StageError};

use crate::config::BadSetting;
use crate::core::Core;
use crate::core::OpenError;
use crate::quota::Quota;
use embed::Embedder;
use lease_token::LeaseKey;

/// Outputs of outside workers that are stored at once. A large output takes a lot of memory.
const OUTPUTS_MAX: usize = 4;

/// The state of the pipeline in this process, and what its stages need.
pub struct Pipeline {
    pub core: Arc<Core>,
    quota: Arc<Quota>,
    pub scanner: Scanner,
    pub embedder: Embedder,
    /// The path of this program. It is started again as a child process to extract text.
    pub extractor: PathBuf,
    /// Limits the extractor processes, because each may use its full memory limit.
    extractions: Arc<Semaphore>,
    /// Of the files whose last worker was lost, this process runs one at a time.
    suspects: Arc<Semaphore>,
    /// Limits running searches.
    pub searches: search::Searches,
    /// Limits the outputs of outside workers that are stored at once.
    outputs: Semaphore,
    /// Signs the leases of outside workers and the URLs of their input.
    lease_key: LeaseKey,
    /// Ids of claims whose answer from the catalog was lost. Their leases are released later.
    lost_claims: Mutex<Vec<String>>,
    /// Leases that reached no worker and could not be released yet.
    unreleased: Mutex<Vec<StageEnd>>,
    /// The stages for which outside workers have asked this process for jobs.
    seen_stages: stage_workers::SeenStages,
}

impl Pipeline {
    pub async fn open(core: Arc<Core>, quota: Arc<Quota>) -> Result<Pipeline, OpenError> {
        let settings = &core.settings;
        let fresh: [u8; 32] = rand::random();
        let lease_key = core.catalog.get_or_set_fact("lease_key", &to_hex(&fresh)).await?.into_bytes();
        extract::remove_old_copies(&settings.data_dir, settings.stage_timeout_ms);
        let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
        Ok(Pipeline {
            scanner: scan::scanner(&settings.pipeline)?,
            embedder: Embedder::open(&settings.pipeline)?,
            extractor: std::env::current_exe().unwrap_or_else(|_| "wharfinger".into()),
            extractions: Arc::new(Semaphore::new(cores.clamp(1, settings.pipeline.concurrency))),
            suspects: Arc::new(Semaphore::new(1)),
            searches: search::Searches::default(),
            outputs: Semaphore::new(OUTPUTS_MAX),
            lease_key: LeaseKey::new(lease_key),
            lost_claims: Mutex::default(),
            unreleased: Mutex::default(),
            seen_stages: stage_workers::SeenStages::default(),
            core,
            quota,
        })
    }
}

fn bad(name: &str, problem: String) -> OpenError {
    OpenError::Setting(BadSetting { name: name.to_owned(), problem })
}

/// The stages that this process runs, last stage first, so that started files are finished before new ones start.
pub fn own_stages(core: &Core) -> Vec<Stage> {
    Stage::ALL.into_iter().rev().filter(|stage| core.settings.pipeline.builtin.contains(stage)).collect()
}
