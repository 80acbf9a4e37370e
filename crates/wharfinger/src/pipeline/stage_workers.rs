//! Finds stages without a worker: files wait for them, and neither a process nor an outside worker asks for their jobs.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use wharfinger_catalog::{Catalog, CatalogError, WaitingStage};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::stage::Stage;

use super::own_stages;
use crate::clock::rfc3339;
use crate::core::Core;

/// How long files wait before the missing worker is reported, and how long a worker counts after it asked for jobs.
const PATIENCE_MS: i64 = 60_000;
/// How often it is written that a worker asks for jobs of a stage.
pub const SEEN_EVERY_MS: i64 = 20_000;

/// When this process last wrote that a worker asks for jobs of a stage.
#[derive(Default)]
pub(super) struct SeenStages(Mutex<BTreeMap<Stage, UnixMs>>);

impl SeenStages {
    /// Records that a worker asks for jobs of these stages, unless that was written a moment ago.
    pub(super) async fn see(&self, core: &Core, stages: &[Stage]) -> Result<(), CatalogError> {
        let now = core.clock.now();
        let is_old = |stage: &&Stage| {
            let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            seen.get(stage).is_none_or(|at| !(0..SEEN_EVERY_MS).contains(&(now - at)))
        };
        let old: Vec<Stage> = stages.iter().filter(is_old).copied().collect();
        if old.is_empty() {
            return Ok(());
        }
        core.catalog.see_stage_workers(&old, now).await?;
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.extend(old.into_iter().map(|stage| (stage, now)));
        Ok(())
    }
}

/// Records that this process works on its stages.
pub async fn see_own_stages(core: &Core) -> Result<(), CatalogError> {
    core.catalog.see_stage_workers(&own_stages(core), core.clock.now()).await
}

/// Stages whose files have waited for a minute without a worker.
pub async fn without_worker(catalog: &Catalog, now: UnixMs) -> Result<Vec<WaitingStage>, CatalogError> {
    let waiting = catalog.waiting_stages(&Stage::ALL, now).await?;
    let recently = now.saturating_sub(PATIENCE_MS);
    let is_alone = |stage: &WaitingStage| {
        stage.waiting_since <= recently && stage.worker_seen_at.is_none_or(|at| at <= recently)
    };
    Ok(waiting.into_iter().filter(is_alone).collect())
}

/// What an operator should know about such a stage.
pub fn warning(stage: &WaitingStage) -> String {
    let (name, since) = (stage.stage.as_str(), rfc3339(stage.waiting_since));
    match stage.worker_seen_at {
        None => format!("no worker has asked for jobs of the stage {name} yet, files wait since {since}"),
        Some(at) => {
            format!(
                "no worker has asked for jobs of the stage {name} since {}, files wait since {since}",
                rfc3339(at)
            )
        }
    }
}
