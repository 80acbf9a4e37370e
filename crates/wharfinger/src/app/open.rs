//! Opens everything that a process works with: to serve, to take events only, or beside a server.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{Catalog, CatalogError, CatalogOptions, Destination, SCHEMA_VERSION, Tells};
use wharfinger_lifecycle::file::UploadPolicy;
use wharfinger_lifecycle::processing::Plan;
use wharfinger_stores::BlobStore;
use wharfinger_stores::disk::{DiskStore, SigningKey};

use super::{App, TimedBell};
use crate::auth::TokenKeys;
use crate::checks::messages::Broker;
use crate::clock::Clock;
use crate::config::{Secrets, Settings};
use crate::core::{OpenError, Opening, open_blobs};
use crate::dashboard::Dashboard;
use crate::dashboard::cache::Cache;
use crate::ingest::Ingest;
use crate::memory_budget::MemoryBudget;
use crate::notify::{self, Notifier};
use crate::pipeline::Pipeline;
use crate::quota::{FileCounts, RedisGate};
use crate::roles::Roles;
use crate::telemetry::traces::Traces;
use crate::uploads::land::Landings;
use crate::{quota, store};

/// Bodies of requests, of all callers at once.
const REQUEST_BODIES_BYTES: usize = 256 << 20;
const DATABASE_CONNECTIONS_MAX: u32 = 20;

impl App {
    /// Opens every backend, brings the schema up to date, and ends what the settings do not ask for any more.
    /// `public_url` is what signed URLs of the local store begin with.
    pub async fn open(
        settings: Settings,
        secrets: &Secrets,
        clock: Clock,
        faults: Faults,
        public_url: String,
    ) -> Result<App, OpenError> {
        let (app, standing) =
            App::open_as(Opening::ToServe, settings, secrets, clock, faults, public_url).await?;
        // What Redis counts is not what a catalog from a backup says.
        if app.redis_gate.is_none() || matches!(standing, store::Standing::Restored { .. }) {
            quota::take_back_from_redis(&app.ledger()).await?;
        }
        if app.broker.is_none() {
            // Checks that were to be published are found by whoever polls.
            app.catalog.forget_outbox(Destination::Broker).await?;
        }
        if app.notifier.webhook.is_none() {
            app.catalog.forget_outbox(Destination::Webhook).await?;
        }
        if app.notifier.slack.is_none() {
            app.catalog.forget_outbox(Destination::Slack).await?;
        }
        Ok(app)
    }

    /// For a process that only takes events: it does so while the store is away, too.
    pub async fn open_to_take_events(
        settings: Settings,
        secrets: &Secrets,
        clock: Clock,
        public_url: String,
    ) -> Result<App, OpenError> {
        let faults = Faults::none();
        Ok(App::open_as(Opening::ToTakeEvents, settings, secrets, clock, faults, public_url).await?.0)
    }

    /// From now on this process takes events; its loops bring them to the store.
    pub async fn start_ingest(&self) -> Result<(), OpenError> {
        let settings = &self.settings.ingest;
        let store: Arc<dyn BlobStore> = match &settings.place {
            None => self.blobs.clone(),
            Some(place) => {
                let unusable =
                    |error: String| OpenError::Ingest(format!("INGEST_BLOB_URL: {place}: {error}"));
                match place.connect().await.map_err(|error| unusable(error.to_string()))? {
                    Some(store) => store,
                    // Nobody gets signed URLs of it.
                    None => Arc::new(
                        DiskStore::open(
                            place.folder().ok_or_else(|| unusable("no driver for it".into()))?,
                            &self.public_url,
                            SigningKey::new(&rand::random::<[u8; 32]>()),
                            Faults::none(),
                        )
                        .map_err(|error| unusable(error.to_string()))?,
                    ),
                }
            }
        };
        let ingest = Ingest::open(settings, &self.settings.instance_id, self.clock.clone(), store);
        // A second start finds the first one's.
        let _ = self.ingest.set(Arc::new(ingest.map_err(OpenError::Ingest)?));
        Ok(())
    }

    /// For a command beside a server, whose settings and schema are the ones that count: opening changes nothing.
    pub async fn open_beside(settings: Settings, secrets: &Secrets, clock: Clock) -> Result<App, OpenError> {
        let public_url = settings.public_url.clone().unwrap_or_else(|| format!("http://{}", settings.listen));
        let faults = Faults::none();
        Ok(App::open_as(Opening::Beside, settings, secrets, clock, faults, public_url).await?.0)
    }

    async fn open_as(
        opening: Opening,
        settings: Settings,
        secrets: &Secrets,
        clock: Clock,
        faults: Faults,
        public_url: String,
    ) -> Result<(App, store::Standing), OpenError> {
        wharfinger_calls::tls::ready();
        let catalog = Catalog::open(CatalogOptions {
            url: settings.database.clone(),
            schema: settings.database_schema.clone(),
            faults: faults.clone(),
            storage_type: settings.blobs.kind(),
            cleanup_max_attempts: settings.cleanup_max_attempts,
            job_max_attempts: settings.job_max_attempts,
            connections_max: DATABASE_CONNECTIONS_MAX,
            beside_redis: settings.quota_redis.is_some(),
            tells: Tells { archive: settings.ingest.archive, ..notify::tells(&settings.notify) },
        })
        .await?;
        match opening {
            Opening::ToServe | Opening::ToTakeEvents => drop(catalog.migrate(clock.now()).await?),
            Opening::Beside if catalog.schema_step().await? == SCHEMA_VERSION => {}
            Opening::Beside => {
                let problem =
                    "its schema is not this program's: run `wharfinger migrate`, or the server's version";
                return Err(CatalogError::Unusable(problem.into()).into());
            }
        }
        let (blobs, disk, standing) =
            open_blobs(opening, &settings, secrets, &catalog, &clock, &faults, &public_url).await?;
        // Events need neither.
        let (redis_gate, broker) = match opening {
            Opening::ToTakeEvents => (None, None),
            Opening::ToServe | Opening::Beside => (
                RedisGate::open(&settings, &catalog, &faults).await?,
                Broker::open(&settings, &faults).await?,
            ),
        };
        let notifier = Notifier::new(&settings.notify, &faults)?;
        let tokens = TokenKeys::load(&settings, secrets)?;
        let policy = UploadPolicy {
            charge_bytes_min: settings.charge_bytes_min,
            window_ms: settings.upload_window_ms,
            grace_ms: settings.upload_grace_ms,
            min_rate_bytes: settings.upload_min_rate_bytes,
            tombstone_ms: settings.tombstone_ms,
            store_refuses_ended: blobs.caps().refuses_ended,
        };
        let pipeline = Pipeline::open(&settings, &catalog).await?;
        let plan = Plan {
            stages: settings.pipeline.stages.clone(),
            stuck_after_ms: settings.pipeline.stuck_after_ms,
            stuck_retries_max: settings.sweeps.stuck_retries_max,
            failures: settings.sweeps.failures,
        };
        let traces = match (&settings.otlp_endpoint, opening) {
            (Some(endpoint), Opening::ToServe) => {
                Traces::to(endpoint, &settings.instance_id).map_err(OpenError::Traces)?
            }
            _ => Traces::default(),
        };
        let dashboard = Dashboard::new(Cache::open(&settings, &catalog, &faults).await?);
        let app = App {
            settings,
            roles: Roles::all(),
            clock,
            catalog,
            blobs,
            disk,
            store_is_ours: AtomicBool::new(standing == store::Standing::Ours),
            policy,
            plan,
            pipeline,
            redis_gate,
            broker,
            notifier,
            ingest: OnceLock::new(),
            traces,
            dashboard,
            tokens,
            public_url,
            cleanup_bell: Notify::new(),
            outbox_bell: Notify::new(),
            notice_bell: Notify::new(),
            archive_bell: Notify::new(),
            broker_bell: Notify::new(),
            wake_bell: Notify::new(),
            check_bell: TimedBell::default(),
            landings: Landings::default(),
            examinations: Arc::default(),
            draining: CancellationToken::new(),
            verbs: TaskTracker::new(),
            request_bodies: MemoryBudget::new(REQUEST_BODIES_BYTES),
            file_counts: FileCounts::default(),
        };
        Ok((app, standing))
    }
}
