//! Opens everything that a process works with: to serve, to take events only, or beside a server.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use wharfinger_calls::faults::Faults;
use wharfinger_catalog::Destination;
use wharfinger_stores::BlobStore;
use wharfinger_stores::disk::{DiskStore, SigningKey};

use super::App;
use crate::auth::TokenKeys;
use crate::checks::messages::Broker;
use crate::clock::Clock;
use crate::config::{Secrets, Settings};
use crate::core::{Core, OpenError, Opening};
use crate::dashboard::Dashboard;
use crate::ingest::Ingest;
use crate::memory_budget::MemoryBudget;
use crate::notify::Notifier;
use crate::pipeline::Pipeline;
use crate::quota::{Quota, take_back_from_redis};
use crate::roles::Roles;
use crate::store::StoreState;
use crate::uploads::Uploads;

/// Bodies of requests, of all callers at once.
const REQUEST_BODIES_BYTES: usize = 256 << 20;

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
        let (app, state) =
            App::open_as(Opening::ToServe, settings, secrets, clock, faults, public_url).await?;
        // What Redis counts is not what a catalog from a backup says.
        if app.quota.redis_owner.is_none() || matches!(state, StoreState::Restored { .. }) {
            take_back_from_redis(&app.quota.quota_context()).await?;
        }
        let catalog = &app.core.catalog;
        if app.broker.is_none() {
            // Checks that were to be published are found by whoever polls.
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
        let core = &self.core;
        let settings = &core.settings.ingest;
        let store: Arc<dyn BlobStore> = match &settings.place {
            None => core.blobs.clone(),
            Some(place) => {
                let unusable =
                    |error: String| OpenError::Ingest(format!("INGEST_BLOB_URL: {place}: {error}"));
                match place.connect().await.map_err(|error| unusable(error.to_string()))? {
                    Some(store) => store,
                    // Nobody gets signed URLs of it.
                    None => Arc::new(
                        DiskStore::open(
                            place.folder().ok_or_else(|| unusable("no driver for it".into()))?,
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
    ) -> Result<(App, StoreState), OpenError> {
        wharfinger_calls::tls::install_provider();
        let (core, state) = Core::open(opening, settings, secrets, clock, &faults, public_url).await?;
        let core = Arc::new(core);
        let settings = &core.settings;
        // Events need neither.
        let (quota, broker) = match opening {
            Opening::ToTakeEvents => (Quota::without_redis(core.clone()), None),
            Opening::ToServe | Opening::Beside => {
                (Quota::open(core.clone(), &faults).await?, Broker::open(settings, &faults).await?)
            }
        };
        let quota = Arc::new(quota);
        let app = App {
            roles: Roles::all(),
            ingest: OnceLock::new(),
            uploads: Uploads::new(core.clone(), quota.clone()),
            quota: quota.clone(),
            broker,
            notifier: Notifier::new(core.clone(), &faults)?,
            tokens: TokenKeys::load(settings, secrets)?,
            pipeline: Arc::new(Pipeline::open(core.clone(), quota).await?),
            dashboard: Dashboard::open(&core, &faults).await?,
            request_bodies: MemoryBudget::new(REQUEST_BODIES_BYTES),
            count_findings_at: Mutex::new(Instant::now()),
            core,
        };
        Ok((app, state))
    }
}
