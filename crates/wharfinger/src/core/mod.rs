//! What every verb needs, below all subsystems: settings, clock, catalog, store and policy. What a subsystem keeps for
//! itself (queues, caches, connections) is in that subsystem.

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
use wharfinger_lifecycle::processing::Plan;
use wharfinger_stores::BlobStore;
use wharfinger_stores::disk::DiskStore;

pub use caller::{Caller, Role};
pub use open::{OpenError, Opening, named};
pub use verb_error::{FieldProblem, FileOutcome, VerbError};
pub use wakeups::Wakeups;

use crate::clock::Clock;
use crate::config::Settings;
use crate::store::Place;
use crate::telemetry::traces::Traces;

pub struct Core {
    pub settings: Settings,
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
    pub public_url: String,
    pub wakeups: Wakeups,
    /// What is done to files, for whoever collects traces.
    pub traces: Traces,
    /// Cancelled when this process is about to stop: it serves on, and asks to be left.
    pub draining: CancellationToken,
    /// Verbs under way: they end even when their client has hung up.
    pub verbs: TaskTracker,
}

impl Core {
    /// Where the store's mark lies.
    pub fn place(&self) -> Place<'_> {
        match self.settings.blobs.folder() {
            Some(folder) => Place::folder(folder),
            None => Place::store(&self.settings.blobs, &*self.blobs),
        }
    }
}
