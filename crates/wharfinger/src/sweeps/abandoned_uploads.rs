//! Fault: an unconfirmed upload that neither its delayed check nor the upload-window sweep has reclaimed. An upload is not
//! abandoned while its client requests URLs, its transfer may still be running, or its batch is active.

use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_catalog::AbandonedRule;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::FileId;

use super::sweep_lease::page_files;
use super::{SweepLease, orphan_cleanup};
use crate::core::Core;
use crate::core::VerbError;
use crate::telemetry::metric;
use crate::uploads::Uploads;
use crate::uploads::check::{CheckOutcome, ExpiryRule};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AbandonedUploadsResult)]
pub struct Outcome {
    #[schema(example = 7)]
    pub total: u64,
    #[schema(example = 7)]
    pub deleted: u64,
    /// Files that could not be checked.
    #[schema(example = 0)]
    pub errors: u64,
}

/// The rule for abandoned uploads at this moment.
pub fn abandoned(core: &Core) -> AbandonedRule {
    let now = core.clock.now();
    AbandonedRule {
        unchanged_since: now.saturating_sub(core.settings.sweeps.abandoned_after_ms),
        now,
        min_rate_bytes: i64::try_from(core.settings.upload_min_rate_bytes).unwrap_or(i64::MAX).max(1),
    }
}

pub(super) async fn run(
    uploads: &Uploads,
    lease: &SweepLease,
    outcome: &mut Outcome,
) -> Result<(), VerbError> {
    let core = &uploads.core;
    let by = abandoned(core);
    let rule = ExpiryRule::NotUpdatedSince(by.unchanged_since);
    let mut after: Option<(UnixMs, FileId)> = None;
    loop {
        let page = core.catalog.abandoned_uploads(by, after, page_files(core)).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(*last);
        if lease.is_stopped() {
            return Ok(());
        }
        let ids: Vec<FileId> = page.iter().map(|(_, id)| *id).collect();
        for (id, checked) in lease.check_files(uploads, &ids, orphan_cleanup::NAME, rule).await? {
            outcome.total += 1;
            match checked {
                Ok(CheckOutcome::Reclaimed) => {
                    outcome.deleted += 1;
                    if !lease.is_dry_run() {
                        metric::abandoned_upload_deleted();
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    outcome.errors += 1;
                    tracing::warn!(job = orphan_cleanup::NAME, fileId = %id, error = %error.with_cause(),
                        "cannot check an abandoned upload");
                }
            }
        }
    }
}
