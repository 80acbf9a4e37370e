//! When a worker last asked for jobs of each stage. Files that wait for a stage without a worker would wait unnoticed.

use std::collections::BTreeMap;

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::stage::Stage;

use crate::Catalog;
use crate::database::sql::{Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;

/// A stage whose files wait although they are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingStage {
    pub stage: Stage,
    /// When the first of its waiting jobs became due.
    pub waiting_since: UnixMs,
    /// When a worker last asked for its jobs.
    pub worker_seen_at: Option<UnixMs>,
}

struct SeeWorkers {
    stages: Vec<Stage>,
    now: UnixMs,
}

impl Write for SeeWorkers {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        for stage in &self.stages {
            tx.run(
                "INSERT INTO stage_workers (stage, seen_at) VALUES ($1, $2) \
                 ON CONFLICT (stage) DO UPDATE SET seen_at = excluded.seen_at \
                 WHERE stage_workers.seen_at < excluded.seen_at",
                args![stage.as_str(), self.now],
            )
            .await?;
        }
        Ok(TxOutcome::Commit(()))
    }
}

impl Catalog {
    /// Records that a worker asks for jobs of these stages.
    pub async fn see_stage_workers(&self, stages: &[Stage], now: UnixMs) -> Result<(), CatalogError> {
        // In one order, so that two processes do not wait for each other.
        let mut stages = stages.to_vec();
        stages.sort_by_key(|stage| stage.as_str());
        stages.dedup();
        match stages.is_empty() {
            true => Ok(()),
            false => self.write(SeeWorkers { stages, now }).await,
        }
    }

    /// The stages of these with waiting jobs that are due. Reads the first entries of two indexes for each stage.
    pub async fn waiting_stages(
        &self,
        stages: &[Stage],
        now: UnixMs,
    ) -> Result<Vec<WaitingStage>, CatalogError> {
        let mut reader = self.reader().await?;
        let mut tx = reader.tx(&self.faults);
        let mut seen = BTreeMap::new();
        for row in tx.rows("SELECT stage, seen_at FROM stage_workers", args![]).await? {
            seen.insert(row.text("stage")?, row.int("seen_at")?);
        }
        let mut waiting = Vec::new();
        for stage in stages {
            let row = tx
                .row(
                    "SELECT MIN(at) AS at FROM (\
                     SELECT MIN(run_at) AS at FROM jobs WHERE state = 'waiting' AND rank IS NULL AND lost_leases = 0 \
                     AND queue = $1 UNION ALL SELECT * FROM (SELECT run_at FROM jobs WHERE state = 'waiting' \
                     AND rank IS NOT NULL AND queue = $1 ORDER BY rank, id LIMIT 1) AS ranked) AS firsts",
                    args![stage.queue()],
                )
                .await?;
            let first = row.map_or(Ok(None), |row| row.maybe_int("at"))?;
            if let Some(waiting_since) = first.filter(|at| *at <= now) {
                let worker_seen_at = seen.get(stage.as_str()).copied();
                waiting.push(WaitingStage { stage: *stage, waiting_since, worker_seen_at });
            }
        }
        Ok(waiting)
    }
}
