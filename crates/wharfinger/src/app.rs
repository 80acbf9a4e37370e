//! What a request, a job or a sweep can reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;
use tokio_util::task::TaskTracker;
use wharfinger_backends::blobs::disk::{DiskStore, SigningKey};
use wharfinger_backends::blobs::{BlobStore, FaultyBlobs};
use wharfinger_backends::catalog::{Catalog, CatalogError, CatalogOptions};
use wharfinger_backends::faults::Faults;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::file::UploadPolicy;

use crate::clock::Clock;
use crate::config::{Secrets, Settings};
use crate::http::auth::TokenKeys;
use crate::store;
use crate::uploads::confirm::Examinations;
use crate::uploads::land::Landings;

pub struct App {
    pub settings: Settings,
    pub clock: Clock,
    pub catalog: Catalog,
    pub blobs: Arc<dyn BlobStore>,
    /// The local store again, for the routes that serve it.
    pub disk: Arc<DiskStore>,
    pub policy: UploadPolicy,
    pub tokens: TokenKeys,
    pub public_url: String,
    /// Rung when there are new bytes to delete.
    pub cleanup_bell: Notify,
    /// Rung when a delayed check is due earlier than the next one known.
    pub check_bell: TimedBell,
    /// Uploads to the local store that are under way here.
    pub landings: Landings,
    /// Objects that are being read for their checksum.
    pub examinations: Examinations,
    /// Verbs under way: they end even when their client has hung up.
    pub verbs: TaskTracker,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Setting(#[from] crate::config::BadSetting),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error("WHARFINGER_BLOB_URL: {0}")]
    Blobs(String),
    #[error(transparent)]
    Store(#[from] store::ClaimError),
}

const DATABASE_CONNECTIONS_MAX: u32 = 20;

impl App {
    /// Opens every backend and brings the schema up to date. `public_url` is what signed URLs of the local store
    /// begin with.
    pub async fn open(
        settings: Settings,
        secrets: &Secrets,
        clock: Clock,
        faults: Faults,
        public_url: String,
    ) -> Result<App, OpenError> {
        wharfinger_backends::tls::ready();
        let catalog = Catalog::open(CatalogOptions {
            url: settings.database.clone(),
            faults: faults.clone(),
            storage_type: "disk",
            cleanup_max_attempts: settings.cleanup_max_attempts,
            connections_max: DATABASE_CONNECTIONS_MAX,
        })
        .await?;
        catalog.migrate(clock.now()).await?;
        store::claim(&catalog, &settings.blob_dir, clock.now()).await?;
        let signing_key = match &secrets.url_signing_key {
            Some(key) => SigningKey::new(key),
            None => {
                let fresh: [u8; 32] = rand::random();
                SigningKey::new(catalog.establish("url_signing_key", &to_hex(&fresh)).await?.as_bytes())
            }
        };
        let disk = DiskStore::open(&settings.blob_dir, &public_url, signing_key, faults.clone())
            .map_err(|error| OpenError::Blobs(format!("{}: {error}", settings.blob_dir.display())))?;
        let disk = Arc::new(disk);
        let blobs: Arc<dyn BlobStore> =
            if faults.is_none() { disk.clone() } else { Arc::new(FaultyBlobs::new(disk.clone(), faults)) };
        let tokens = TokenKeys::load(&settings, secrets)?;
        let policy = UploadPolicy {
            window_ms: settings.upload_window_ms,
            grace_ms: settings.upload_grace_ms,
            min_rate_bytes: settings.upload_min_rate_bytes,
            tombstone_ms: settings.tombstone_ms,
            store_refuses_ended: blobs.caps().refuses_ended,
        };
        Ok(App {
            settings,
            clock,
            catalog,
            blobs,
            disk,
            policy,
            tokens,
            public_url,
            cleanup_bell: Notify::new(),
            check_bell: TimedBell::default(),
            landings: Landings::default(),
            examinations: Examinations::default(),
            verbs: TaskTracker::new(),
        })
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
