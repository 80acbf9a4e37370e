//! Opens all parts of a process: a server, a server that only takes events, or a command beside a server.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use wharfinger_calls::faults::Faults;
use wharfinger_catalog::Destination;
use wharfinger_stores::BlobStore;
use wharfinger_stores::disk::{DiskStore, SigningKey};

use super::App;
use crate::auth::{ServiceKeys, TokenKeys};
use crate::checks::messages::Broker;
use crate::clock::Clock;
use crate::config::{Secrets, Settings};
use crate::core::{Core, OpenError, OpenMode};
use crate::dashboard::Dashboard;
use crate::hooks::Hooks;
use crate::ingest::Ingest;
use crate::memory_budget::MemoryBudget;
use crate::notify::Notifier;
use crate::pipeline::Pipeline;
use crate::quota::{Quota, move_all_to_database};
use crate::roles::Roles;
use crate::rules::Rules;
use crate::store::StoreState;
use crate::uploads::Uploads;

/// The memory for request bodies of all callers together.
const REQUEST_BODIES_BYTES: usize = 256 << 20;

impl App {
    /// Opens every backend and updates the schema. Outbox lines for a broker, a webhook or a Slack that is no longer
    /// configured are removed. `public_url` is the start of the URLs that this process signs.
    pub async fn open(
        settings: Settings,
        secrets: &Secrets,
        clock: Clock,
        faults: Faults,
        public_url: String,
    ) -> Result<App, OpenError> {
        let (app, state) =
            App::open_as(OpenMode::Serve, settings, secrets, clock, faults, public_url).await?;
        // After a restore from a backup, the counters in Redis do not match the catalog.
        if app.quota.redis_owner.is_none() || matches!(state, StoreState::Restored { .. }) {
            move_all_to_database(&app.quota.quota_context()).await?;
        }
        let catalog = &app.core.catalog;
        if app.broker.is_none() {
            // The poller finds these checks.
            catalog.purge_outbox(Destination::Broker).await?;
        }
        if app.notifier.webhook.is_none() {
            catalog.purge_outbox(Destination::Webhook).await?;
        }
        if app.notifier.slack.is_none() {
            catalog.purge_outbox(Destination::Slack).await?;
        }
        Ok(app)
    }

    /// For a process that only takes events. It also starts while a remote store is down.
    pub async fn open_for_ingest(
        settings: Settings,
        secrets: &Secrets,
        clock: Clock,
        public_url: String,
    ) -> Result<App, OpenError> {
        let faults = Faults::none();
        Ok(App::open_as(OpenMode::IngestOnly, settings, secrets, clock, faults, public_url).await?.0)
    }

    /// From now on this process takes events. Its loops upload them to the store.
    pub async fn start_ingest(&self) -> Result<(), OpenError> {
        let core = &self.core;
        let settings = &core.settings.ingest;
        let store: Arc<dyn BlobStore> = match &settings.place {
            None => core.blobs.clone(),
            Some(place) => {
                let unusable =
                    |error: String| OpenError::Ingest(format!("INGEST_BLOB_URL: {place}: {error}"));
                match place.connect().await.map_err(|error| unusable(error.to_string()))? {
                    Some(store) => store,
                    // No client gets signed URLs of it, so any key will do.
                    None => Arc::new(
                        DiskStore::open(
                            place
                                .folder()
                                .ok_or_else(|| unusable("this kind of store is not supported".into()))?,
                            &core.public_url,
                            SigningKey::new(&rand::random::<[u8; 32]>()),
                            Faults::none(),
                        )
                        .map_err(|error| unusable(error.to_string()))?,
                    ),
                }
            }
        };
        let ingest = Ingest::open(settings, &core.settings.instance_id, core.clock.clone(), store);
        // Already set if this is called twice.
        let _ = self.ingest.set(Arc::new(ingest.map_err(OpenError::Ingest)?));
        Ok(())
    }

    /// For a command that may run beside a server: changes neither the schema nor the outbox, and does not claim the
    /// store.
    pub async fn open_for_command(
        settings: Settings,
        secrets: &Secrets,
        clock: Clock,
    ) -> Result<App, OpenError> {
        let public_url = settings.public_url.clone().unwrap_or_else(|| format!("http://{}", settings.listen));
        let faults = Faults::none();
        Ok(App::open_as(OpenMode::Command, settings, secrets, clock, faults, public_url).await?.0)
    }

    async fn open_as(
        mode: OpenMode,
        settings: Settings,
        secrets: &Secrets,
        clock: Clock,
        faults: Faults,
        public_url: String,
    ) -> Result<(App, StoreState), OpenError> {
        wharfinger_calls::tls::install_provider();
        let (core, state) = Core::open(mode, settings, secrets, clock, &faults, public_url).await?;
        let core = Arc::new(core);
        let settings = &core.settings;
        // Ingest needs neither.
        let (quota, broker) = match mode {
            OpenMode::IngestOnly => (Quota::without_redis(core.clone()), None),
            OpenMode::Serve | OpenMode::Command => {
                (Quota::open(core.clone(), &faults).await?, Broker::open(settings, &faults).await?)
            }
        };
        let quota = Arc::new(quota);
        let rules = Arc::new(Rules::new(core.clone()));
        let app = App {
            roles: Roles::all(),
            ingest: OnceLock::new(),
            uploads: Uploads::new(core.clone(), quota.clone(), rules.clone()),
            hooks: Hooks::open(&core)?,
            rules,
            quota: quota.clone(),
            broker,
            notifier: Notifier::new(core.clone(), &faults)?,
            tokens: TokenKeys::load(settings, secrets)?,
            service_keys: ServiceKeys::new(core.clone()),
            pipeline: Arc::new(Pipeline::open(core.clone(), quota).await?),
            dashboard: Dashboard::open(&core, &faults).await?,
            request_bodies: MemoryBudget::new(REQUEST_BODIES_BYTES),
            count_findings_at: Mutex::new(Instant::now()),
            full_tenants: Mutex::default(),
            core,
        };
        Ok((app, state))
    }
}
