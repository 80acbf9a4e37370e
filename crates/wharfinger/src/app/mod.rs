//! What a request, a job or a sweep can reach.

mod open;

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wharfinger_catalog::Catalog;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::UploadPolicy;
use wharfinger_lifecycle::processing::Plan;
use wharfinger_stores::BlobStore;
use wharfinger_stores::disk::DiskStore;

use crate::auth::TokenKeys;
use crate::checks::messages::Broker;
use crate::clock::Clock;
use crate::config::Settings;
use crate::dashboard::Dashboard;
use crate::ingest::Ingest;
use crate::memory_budget::MemoryBudget;
use crate::notify::Notifier;
use crate::pipeline::Pipeline;
use crate::quota::{self, FileCounts, RedisGate};
use crate::roles::Roles;
use crate::store;
use crate::telemetry::traces::Traces;
use crate::uploads::confirm::Examinations;
use crate::uploads::land::Landings;

pub struct App {
    pub settings: Settings,
    /// All of them, unless whoever opened it says otherwise.
    pub roles: Roles,
    pub clock: Clock,
    pub catalog: Catalog,
    pub blobs: Arc<dyn BlobStore>,
    /// The local store again, for the routes that serve it; none where others serve the store.
    pub disk: Option<Arc<DiskStore>>,
    /// Whether the store and the catalog agree; where they do not, nothing is deleted without a person's word.
    pub store_is_ours: AtomicBool,
    pub policy: UploadPolicy,
    /// What confirmed files go through.
    pub plan: Plan,
    pub pipeline: Pipeline,
    /// Redis in front of the tenants' quotas, where there is one.
    pub redis_gate: Option<RedisGate>,
    /// RabbitMQ, where it brings the delayed checks.
    pub broker: Option<Broker>,
    /// The webhook and Slack, where there are any.
    pub notifier: Notifier,
    /// Takes events, once it was started.
    pub ingest: OnceLock<Arc<Ingest>>,
    /// What is done to files, for whoever collects traces.
    pub traces: Traces,
    /// What is shown of how things stand.
    pub dashboard: Dashboard,
    pub tokens: TokenKeys,
    pub public_url: String,
    /// Rung when there are new bytes to delete.
    pub cleanup_bell: Notify,
    /// Rung when there is something to tell another system.
    pub outbox_bell: Notify,
    /// Rung when there is something to tell the webhook or Slack.
    pub notice_bell: Notify,
    /// Rung when there is something to archive.
    pub archive_bell: Notify,
    /// Rung when there is a delayed check to publish.
    pub broker_bell: Notify,
    /// Rung when other processes have bytes to delete.
    pub wake_bell: Notify,
    /// Rung when a delayed check is due earlier than the next one known.
    pub check_bell: TimedBell,
    /// Uploads to the local store that are under way here.
    pub landings: Landings,
    /// Objects that are being read for their checksum.
    pub examinations: Arc<Examinations>,
    /// Cancelled when this process is about to stop: it serves on, and asks to be left.
    pub draining: CancellationToken,
    /// Verbs under way: they end even when their client has hung up.
    pub verbs: TaskTracker,
    /// What the bodies of requests may take in memory.
    pub request_bodies: MemoryBudget,
    /// How many files each tenant has, for the limit on that.
    pub file_counts: FileCounts,
}

impl App {
    /// What it takes to move the gate of a tenant's quota.
    pub fn ledger(&self) -> quota::Ledger<'_> {
        let default_limit_bytes = self.settings.default_quota_bytes;
        quota::Ledger { catalog: &self.catalog, clock: &self.clock, default_limit_bytes }
    }

    /// Where the store's mark lies.
    pub fn place(&self) -> store::Place<'_> {
        match self.settings.blobs.folder() {
            Some(folder) => store::Place::folder(folder),
            None => store::Place::store(&self.settings.blobs, &*self.blobs),
        }
    }
}

/// Wakes a sleeper only for what comes before the time it sleeps until.
#[derive(Debug, Default)]
pub struct TimedBell {
    sleeping_until: AtomicI64,
    bell: Notify,
}

impl TimedBell {
    pub fn ring_for(&self, at: UnixMs) {
        if at < self.sleeping_until.load(Ordering::SeqCst) {
            self.bell.notify_one();
        }
    }

    pub async fn rung_for_before(&self, at: UnixMs) {
        self.sleeping_until.store(at, Ordering::SeqCst);
        self.bell.notified().await;
    }
}
