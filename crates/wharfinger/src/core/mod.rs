//! What every operation needs, below all subsystems: settings, clock, catalog, store and policy. The state of a subsystem
//! (queues, caches, connections) is in that subsystem.

pub mod audit;
mod blobs;
mod caller;
mod open;
mod verb_error;
mod wakeups;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wharfinger_catalog::Catalog;
use wharfinger_lifecycle::file::UploadPolicy;
use wharfinger_lifecycle::processing::PipelinePlan;
use wharfinger_stores::BlobStore;
use wharfinger_stores::disk::DiskStore;

pub use caller::{Caller, Role};
pub use open::{OpenError, OpenMode, catalog_error_text};
pub use verb_error::{FieldProblem, FileOutcome, VerbError};
pub use wakeups::Wakeups;

use crate::clock::Clock;
use crate::config::Settings;
use crate::store::StoreRef;
use crate::telemetry::traces::Traces;

pub struct Core {
    pub settings: Settings,
    pub clock: Clock,
    pub catalog: Catalog,
    pub blobs: Arc<dyn BlobStore>,
    /// A local store again, for its HTTP routes. None for other stores.
    pub disk: Option<Arc<DiskStore>>,
    /// False after a restore from a backup. Then objects without a row are kept until `doctor --accept-store`.
    pub store_is_ours: AtomicBool,
    pub policy: UploadPolicy,
    /// The pipeline stages of newly confirmed files, and their limits.
    pub plan: PipelinePlan,
    pub public_url: String,
    pub wakeups: Wakeups,
    /// Sends spans of file operations to the collector, if one is set.
    pub traces: Traces,
    /// Cancelled before this process stops: it still serves, but `/readyz` answers 503.
    pub draining: CancellationToken,
    /// Calls in progress. They finish even if the client disconnects.
    pub verbs: TaskTracker,
}

impl Core {
    /// For checks of the marker.
    pub fn store_ref(&self) -> StoreRef<'_> {
        match self.settings.blobs.folder() {
            Some(folder) => StoreRef::folder(folder),
            None => StoreRef::store(&self.settings.blobs, &*self.blobs),
        }
    }
}
