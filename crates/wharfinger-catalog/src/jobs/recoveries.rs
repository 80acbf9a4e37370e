//! Recovers stuck files, many in one transaction. `lifecycle::recovery` decides while the files and their jobs are locked.

use std::collections::BTreeMap;

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::processing::PipelinePlan;
use wharfinger_lifecycle::recovery::{self, JobRecord, RecoveryDecision, RecoveryTrigger};

use crate::Catalog;
use crate::changes::Committer;
use crate::database::sql::{Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::files::locks::{self, LockedFiles};
use crate::jobs::stuck_files::{STAGE_QUEUES, jobs_of_files};

/// Files that may be stuck, and how to recover them.
#[derive(Clone, Debug)]
pub struct Recovery {
    pub files: Vec<FileId>,
    pub trigger: RecoveryTrigger,
    pub actor: String,
    pub plan: PipelinePlan,
    pub now: UnixMs,
}

/// The outcome for one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryOutcome {
    /// It waits again for the stage that stopped.
    Queued { before: Box<File>, retry_count: u32 },
    /// It was recovered too often: its job is a dead letter now.
    Failed { before: Box<File>, why: String },
    /// Its job is valid and waits: nothing was changed.
    Waiting,
    /// A worker has a valid lease: nothing was changed.
    InProgress { until: UnixMs },
    /// It is not stuck any more, or it was deleted.
    NotStuck,
    /// Its row cannot be read.
    Unreadable,
}

struct RecoverFiles {
    recovery: Recovery,
    committer: Committer,
}

impl Write for RecoverFiles {
    type Answer = Vec<(FileId, RecoveryOutcome)>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let Recovery { files: ids, trigger, plan, now, .. } = &self.recovery;
        let LockedFiles { readable: mut files, unreadable } = locks::lock_files(tx, ids).await?;
        // Files are locked before jobs, as in stage_ends.rs.
        let lock = tx.dialect().pick("", "FOR UPDATE");
        let jobs: BTreeMap<FileId, Vec<JobRecord>> = jobs_of_files(tx, ids, lock).await?;
        let mut changes = Vec::new();
        let mut recovered = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(file) = files.remove(id) else {
                let exists = unreadable.contains(id);
                recovered.push((
                    *id,
                    if exists { RecoveryOutcome::Unreadable } else { RecoveryOutcome::NotStuck },
                ));
                continue;
            };
            let jobs = jobs.get(id).map_or(&[][..], Vec::as_slice);
            let found = recovery::decide(&file, jobs, *trigger, plan, *now)
                .map_err(|refusal| CatalogError::Corrupt(format!("file {id}: {refusal}")))?;
            let outcome = match found {
                RecoveryDecision::NotApplicable => RecoveryOutcome::NotStuck,
                RecoveryDecision::Waiting => RecoveryOutcome::Waiting,
                RecoveryDecision::InProgress { until } => RecoveryOutcome::InProgress { until },
                RecoveryDecision::Stuck(change) => {
                    let after = &change.after;
                    let outcome = match after.status.is_working() {
                        true => {
                            RecoveryOutcome::Queued { before: Box::new(file), retry_count: after.retry_count }
                        }
                        false => RecoveryOutcome::Failed {
                            before: Box::new(file),
                            why: after.error.clone().unwrap_or_default(),
                        },
                    };
                    changes.push(*change);
                    outcome
                }
            };
            recovered.push((*id, outcome));
        }
        if changes.is_empty() && unreadable.is_empty() {
            return Ok(TxOutcome::Rollback(recovered));
        }
        self.committer.apply_locked(tx, &changes).await?;
        Ok(TxOutcome::Commit(recovered))
    }
}

/// Makes the scheduled jobs of a file due now.
struct MakeDueNow {
    file: FileId,
    now: UnixMs,
}

impl Write for MakeDueNow {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        let sql = format!(
            "UPDATE jobs SET run_at = $2, updated_at = $2 WHERE file_id = $1 AND state = 'waiting' AND rank IS NULL AND run_at > $2 \
             AND queue IN ({})",
            *STAGE_QUEUES
        );
        tx.run_built(sql, args![self.file.to_string(), self.now]).await?;
        Ok(TxOutcome::Commit(()))
    }
}

impl Catalog {
    /// Recovers all files in one transaction; returns the outcomes in the order of `files`.
    pub async fn recover(&self, recovery: Recovery) -> Result<Vec<(FileId, RecoveryOutcome)>, CatalogError> {
        if recovery.files.is_empty() {
            return Ok(Vec::new());
        }
        let committer = self.committer(&recovery.actor);
        self.write(RecoverFiles { recovery, committer }).await
    }

    /// Ends the wait of a file for its next attempt.
    pub async fn make_due_now(&self, file: FileId, now: UnixMs) -> Result<(), CatalogError> {
        self.write(MakeDueNow { file, now }).await
    }
}
