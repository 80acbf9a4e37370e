//! All sweeps, with their names and schedules.

use croner::Cron;
use wharfinger_catalog::Scope;
use wharfinger_lifecycle::UnixMs;

use super::{
    Report, SweepLease, expired_batches, orphan_cleanup, pending_cleanups, quota_sync, stuck_files,
    upload_window,
};
use crate::clock::to_utc;
use crate::config::SweepSettings;
use crate::core::Core;
use crate::core::VerbError;
use crate::uploads::Uploads;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    StuckFiles,
    OrphanCleanup,
    BatchTimeout,
    PendingCleanups,
    QuotaSync,
    UploadWindow,
}

impl Sweep {
    pub const ALL: [Sweep; 6] = [
        Sweep::StuckFiles,
        Sweep::OrphanCleanup,
        Sweep::BatchTimeout,
        Sweep::PendingCleanups,
        Sweep::QuotaSync,
        Sweep::UploadWindow,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Sweep::StuckFiles => stuck_files::NAME,
            Sweep::OrphanCleanup => orphan_cleanup::NAME,
            Sweep::BatchTimeout => expired_batches::NAME,
            Sweep::PendingCleanups => pending_cleanups::NAME,
            Sweep::QuotaSync => quota_sync::NAME,
            Sweep::UploadWindow => upload_window::NAME,
        }
    }

    pub fn named(name: &str) -> Option<Sweep> {
        Sweep::ALL.into_iter().find(|sweep| sweep.name() == name)
    }

    pub fn schedule(self, settings: &SweepSettings) -> &Cron {
        match self {
            Sweep::StuckFiles => &settings.stuck_schedule,
            Sweep::OrphanCleanup => &settings.orphan_schedule,
            Sweep::BatchTimeout => &settings.batch_timeout_schedule,
            Sweep::PendingCleanups => &settings.cleanup_schedule,
            Sweep::QuotaSync => &settings.quota_sync_schedule,
            Sweep::UploadWindow => &settings.window_schedule,
        }
    }

    /// Whether a dry run keeps what it finds. It then needs the lease, as a real run does.
    pub(super) fn keeps_dry_findings(self) -> bool {
        self == Sweep::OrphanCleanup
    }

    /// Sweeps that run every few minutes. Of their scheduled runs that found nothing, the history keeps the last one.
    /// Otherwise these would push out the runs that did something.
    pub(super) fn keeps_one_idle_run(self) -> bool {
        matches!(self, Sweep::PendingCleanups | Sweep::UploadWindow)
    }

    /// The next run by this process's schedule.
    pub fn next_time(self, core: &Core) -> UnixMs {
        let schedule = self.schedule(&core.settings.sweeps);
        let next = schedule.find_next_occurrence(&to_utc(core.clock.now()), false);
        next.map_or(i64::MAX, |at| at.timestamp_millis())
    }

    /// Runs the sweep. Each future is boxed, because it is large and the caller's future would contain all of them.
    pub(super) async fn run(self, uploads: &Uploads, lease: &SweepLease) -> Result<Report, VerbError> {
        let core = &uploads.core;
        Ok(match self {
            Sweep::StuckFiles => Report::StuckFiles(Box::pin(stuck_files::run(core, lease)).await?),
            Sweep::OrphanCleanup => {
                Report::OrphanCleanup(Box::pin(orphan_cleanup::run(uploads, lease)).await?)
            }
            Sweep::BatchTimeout => {
                Report::BatchTimeout(Box::pin(expired_batches::run(uploads, lease)).await?)
            }
            Sweep::PendingCleanups => {
                Report::PendingCleanups(Box::pin(pending_cleanups::run(core, lease, &Scope::All)).await?)
            }
            Sweep::QuotaSync => Report::QuotaSync(Box::pin(quota_sync::run(&uploads.quota, lease)).await?),
            Sweep::UploadWindow => Report::UploadWindow(Box::pin(upload_window::run(uploads, lease)).await?),
        })
    }
}
