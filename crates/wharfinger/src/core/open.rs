//! Opens the catalog and the store, and lists the errors that can stop the start.

use std::sync::atomic::AtomicBool;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{Catalog, CatalogError, CatalogOptions, SCHEMA_VERSION};
use wharfinger_engines::webhooks::EndpointError;
use wharfinger_lifecycle::file::UploadPolicy;
use wharfinger_lifecycle::processing::PipelinePlan;

use super::blobs::open_blobs;
use super::{Core, Wakeups};
use crate::clock::Clock;
use crate::config::{BadSetting, Secrets, Settings};
use crate::store::{ClaimError, StoreState};
use crate::telemetry::traces::Traces;

const DATABASE_CONNECTIONS_MAX: u32 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// A server: migrates the schema and claims the store.
    Serve,
    /// A server that only takes events. It also starts while a remote store is down.
    IngestOnly,
    /// A command that may run beside a server: does not migrate the schema and does not claim the store.
    Command,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Setting(#[from] BadSetting),
    #[error("{}", catalog_error_text(.0))]
    Catalog(#[from] CatalogError),
    #[error("WHARFINGER_BLOB_URL: {0}")]
    Blobs(String),
    #[error("WHARFINGER_QUOTA_URL: {0}")]
    Quota(String),
    #[error("WHARFINGER_BROKER_URL: {0}")]
    Broker(String),
    #[error("OTEL_EXPORTER_OTLP_ENDPOINT: {0}")]
    Traces(String),
    #[error("WEBHOOK_URL: {0}")]
    Notify(#[from] EndpointError),
    #[error(transparent)]
    Store(#[from] ClaimError),
    /// The text names the setting.
    #[error("{0}")]
    Ingest(String),
}

/// An error that an operator must fix starts with the name of the setting.
pub fn catalog_error_text(error: &CatalogError) -> String {
    match error {
        CatalogError::Unusable(problem) => format!("WHARFINGER_DATABASE_URL: {problem}"),
        other => other.to_string(),
    }
}

impl Core {
    /// Opens everything that `mode` needs. Returns also how the store and the catalog belong together.
    pub async fn open(
        mode: OpenMode,
        settings: Settings,
        secrets: &Secrets,
        clock: Clock,
        faults: &Faults,
        public_url: String,
    ) -> Result<(Core, StoreState), OpenError> {
        let catalog = Catalog::open(CatalogOptions {
            url: settings.database.clone(),
            schema: settings.database_schema.clone(),
            faults: faults.clone(),
            storage_type: settings.blobs.kind(),
            cleanup_max_attempts: settings.cleanup_max_attempts,
            job_max_attempts: settings.job_max_attempts,
            connections_max: DATABASE_CONNECTIONS_MAX,
            with_redis_quota: settings.quota_redis.is_some(),
            targets: settings.outbox_targets(),
        })
        .await?;
        match mode {
            OpenMode::Serve | OpenMode::IngestOnly => drop(catalog.migrate(clock.now()).await?),
            OpenMode::Command if catalog.schema_step().await? == SCHEMA_VERSION => {}
            OpenMode::Command => {
                let problem = "the schema is of another version. Run `wharfinger migrate`, or use the version of the server";
                return Err(CatalogError::Unusable(problem.into()).into());
            }
        }
        let (blobs, disk, state) =
            open_blobs(mode, &settings, secrets, &catalog, &clock, faults, &public_url).await?;
        let policy = UploadPolicy {
            charge_bytes_min: settings.charge_bytes_min,
            window_ms: settings.upload_window_ms,
            grace_ms: settings.upload_grace_ms,
            min_rate_bytes: settings.upload_min_rate_bytes,
            tombstone_ms: settings.tombstone_ms,
            store_refuses_ended: blobs.capabilities().rejects_ended_files,
        };
        let plan = PipelinePlan {
            stages: settings.pipeline.stages.clone(),
            unsupported: settings.pipeline.unsupported,
            stuck_after_ms: settings.pipeline.stuck_after_ms,
            stuck_retries_max: settings.sweeps.stuck_retries_max,
            quarantine: settings.sweeps.quarantine,
            failures: settings.sweeps.failures,
        };
        let traces = match (&settings.otlp_endpoint, mode) {
            (Some(endpoint), OpenMode::Serve) => {
                Traces::to(endpoint, &settings.instance_id).map_err(OpenError::Traces)?
            }
            _ => Traces::default(),
        };
        let core = Core {
            settings,
            clock,
            catalog,
            blobs,
            disk,
            store_is_ours: AtomicBool::new(state == StoreState::Ours),
            policy,
            plan,
            public_url,
            wakeups: Wakeups::default(),
            traces,
            draining: CancellationToken::new(),
            verbs: TaskTracker::new(),
        };
        Ok((core, state))
    }
}
