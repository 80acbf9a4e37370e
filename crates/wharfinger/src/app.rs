//! What a request, a job or a sweep can reach.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{Catalog, CatalogError, CatalogOptions, Destination, SCHEMA_VERSION, Tells};
use wharfinger_engines::rabbitmq::{Rabbit, RabbitOptions};
use wharfinger_engines::redis_quota::{QuotaError, RedisCache, RedisQuota};
use wharfinger_engines::webhooks::EndpointError;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::file::UploadPolicy;
use wharfinger_lifecycle::processing::Plan;
use wharfinger_stores::disk::{DiskStore, SigningKey};
use wharfinger_stores::{BlobError, BlobStore, FaultyBlobs, Probed};

use crate::auth::TokenKeys;
use crate::clock::Clock;
use crate::config::{Secrets, Settings};
use crate::dashboard::Dashboard;
use crate::dashboard::cache::Cache;
use crate::ingest::Ingest;
use crate::memory_budget::MemoryBudget;
use crate::notify::{self, Notifier};
use crate::pipeline::Pipeline;
use crate::quota::{FileCounts, RedisGate};
use crate::roles::Roles;
use crate::telemetry::traces::Traces;
use crate::uploads::confirm::Examinations;
use crate::uploads::land::Landings;
use crate::worker::messages::Broker;
use crate::{quota, store};

/// Bodies of requests, of all callers at once.
const REQUEST_BODIES_BYTES: usize = 256 << 20;

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

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Setting(#[from] crate::config::BadSetting),
    #[error("{}", named(.0))]
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
    Store(#[from] store::ClaimError),
    /// Names its setting.
    #[error("{0}")]
    Ingest(String),
}

/// What a person has to mend begins with the setting that leads there.
pub fn named(error: &CatalogError) -> String {
    match error {
        CatalogError::Unusable(problem) => format!("WHARFINGER_DATABASE_URL: {problem}"),
        other => other.to_string(),
    }
}

const DATABASE_CONNECTIONS_MAX: u32 = 20;

/// What an app is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    ToServe,
    /// Nothing but events: what waits on disk for the store does not wait for it here.
    ToTakeEvents,
    Beside,
}

const PROBE_TRIES_MAX: u32 = 5;
const PROBE_PAUSE: Duration = Duration::from_secs(3);
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

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
            Opening::ToServe | Opening::Beside => {
                (open_redis(&settings, &catalog, &faults).await?, open_broker(&settings, &faults).await?)
            }
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
        let dashboard = Dashboard::new(open_cache(&settings, &catalog, &faults).await?);
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

/// A Redis that is away when the program starts is no reason not to start, unless nothing may be let in without it.
pub async fn open_redis(
    settings: &Settings,
    catalog: &Catalog,
    faults: &Faults,
) -> Result<Option<RedisGate>, OpenError> {
    let Some(url) = &settings.quota_redis else { return Ok(None) };
    let catalog_id = catalog.fact("catalog_id").await?.unwrap_or_default();
    let redis = RedisQuota::new(url, catalog_id, faults.clone())
        .map_err(|error| OpenError::Quota(error.to_string()))?
        .with_patience(Duration::from_millis(settings.quota_redis_timeout_ms));
    let gate = RedisGate::new(redis, settings.quota_fails_closed);
    match gate.redis.check().await {
        Ok(_) => {}
        Err(error @ QuotaError::Away(_)) if !gate.fails_closed => gate.lost(&error),
        Err(error) => return Err(OpenError::Quota(format!("{}: {error}", gate.redis.address()))),
    }
    Ok(Some(gate))
}

async fn open_cache(settings: &Settings, catalog: &Catalog, faults: &Faults) -> Result<Cache, OpenError> {
    let Some(url) = &settings.quota_redis else {
        return Ok(Cache::here(settings.dashboard_cache_ms));
    };
    let catalog_id = catalog.fact("catalog_id").await?.unwrap_or_default();
    let cache = RedisCache::new(url, catalog_id, faults.clone())
        .map_err(|error| OpenError::Quota(error.to_string()))?
        .with_patience(Duration::from_millis(settings.quota_redis_timeout_ms));
    Ok(Cache::redis(settings.dashboard_cache_ms, cache))
}

pub fn rabbit_options(settings: &Settings, faults: &Faults) -> Option<RabbitOptions> {
    settings.broker_rabbit.as_ref().map(|url| RabbitOptions {
        url: url.clone(),
        delayed_exchange: settings.amqp_delayed_exchange,
        instance: settings.instance_id.clone(),
        faults: faults.clone(),
    })
}

/// Connects and declares the queues. A broker that is away when the program starts is no reason not to start.
pub async fn open_broker(settings: &Settings, faults: &Faults) -> Result<Option<Broker>, OpenError> {
    let Some(options) = rabbit_options(settings, faults) else { return Ok(None) };
    match Rabbit::open(options.clone()).await {
        Ok(rabbit) => Ok(Some(Broker::new(rabbit, true))),
        Err(error) if error.is_retryable() => {
            tracing::error!(backend = "broker", error = %error,
                "WHARFINGER_BROKER_URL: delayed checks are polled for until the broker answers");
            Ok(Some(Broker::new(Rabbit::lazy(options), false)))
        }
        Err(error) => Err(OpenError::Broker(error.to_string())),
    }
}

type Blobs = (Arc<dyn BlobStore>, Option<Arc<DiskStore>>, store::Standing);

async fn open_blobs(
    opening: Opening,
    settings: &Settings,
    secrets: &Secrets,
    catalog: &Catalog,
    clock: &Clock,
    faults: &Faults,
    public_url: &str,
) -> Result<Blobs, OpenError> {
    let unusable = |error: String| OpenError::Blobs(format!("{}: {error}", settings.blobs));
    let faulty = |blobs: Arc<dyn BlobStore>| -> Arc<dyn BlobStore> {
        if faults.is_none() { blobs } else { Arc::new(FaultyBlobs::new(blobs, faults.clone())) }
    };
    let connected = settings.blobs.connect().await.map_err(|error| unusable(error.to_string()))?;
    if let Some(blobs) = connected {
        let place = store::Place::store(&settings.blobs, &*blobs);
        let standing = match opening {
            Opening::Beside => store::check(catalog, &place).await?,
            // Whose the rest of the store is does not matter to events.
            Opening::ToTakeEvents => store::Standing::Ours,
            Opening::ToServe => {
                let probed = probe(&*blobs).await.map_err(|error| unusable(error.to_string()))?;
                for warning in probed.warnings() {
                    tracing::warn!(store = %settings.blobs, "{warning}");
                }
                store::claim(catalog, &place, clock.now()).await?
            }
        };
        announce(standing);
        return Ok((faulty(blobs), None, standing));
    }
    let Some(folder) = settings.blobs.folder() else { return Err(unusable("no driver for it".into())) };
    let place = store::Place::folder(folder);
    let standing = match opening {
        Opening::ToServe | Opening::ToTakeEvents => store::claim(catalog, &place, clock.now()).await?,
        Opening::Beside => store::check(catalog, &place).await?,
    };
    announce(standing);
    let signing_key = match &secrets.url_signing_key {
        Some(key) => SigningKey::new(key),
        None => {
            let fresh: [u8; 32] = rand::random();
            SigningKey::new(catalog.establish("url_signing_key", &to_hex(&fresh)).await?.as_bytes())
        }
    };
    let disk = DiskStore::open(folder, public_url, signing_key, faults.clone())
        .map_err(|error| unusable(error.to_string()))?;
    let disk = Arc::new(disk);
    Ok((faulty(disk.clone()), Some(disk), standing))
}

/// A store that is away when the program starts may only be starting too.
async fn probe(blobs: &dyn BlobStore) -> Result<Probed, BlobError> {
    let mut tries_left = PROBE_TRIES_MAX;
    loop {
        let late = || Err(BlobError::Unavailable("no answer in time".into()));
        match tokio::time::timeout(PROBE_TIMEOUT, blobs.probe()).await.unwrap_or_else(|_| late()) {
            Err(BlobError::Unavailable(why)) if tries_left > 1 => {
                tracing::warn!(error = %why, "the store could not be tried out yet");
                tries_left -= 1;
                tokio::time::sleep(PROBE_PAUSE).await;
            }
            probed => return probed,
        }
    }
}

fn announce(standing: store::Standing) {
    if let store::Standing::Restored { catalog, store } = standing {
        tracing::error!(
            catalog,
            store,
            "the store is ahead of the catalog, which seems to come from a backup: no upload is reclaimed and nothing \
             deleted for having no row until `wharfinger doctor --accept-store` says that the catalog is right"
        );
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
