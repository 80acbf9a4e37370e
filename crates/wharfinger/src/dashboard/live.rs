//! The figures of scopes that clients watch by the event stream. All watchers of a scope share one snapshot. It is
//! computed again when a file of the scope has changed, when RECOMPUTE_AFTER is over, or after an error.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use wharfinger_catalog::{Figures, Outcomes, Scope};
use wharfinger_lifecycle::UnixMs;

use super::{figures, trend};
use crate::core::Core;
use crate::core::VerbError;

/// Scopes that are read at the same time.
const READS_MAX: usize = 4;
const READ_TIMEOUT: Duration = Duration::from_secs(10);
const READ_PAUSE: Duration = Duration::from_millis(800);
/// The pause after a read is at least this many times its duration, so that slow reads do not load the database.
const PAUSE_FACTOR: u32 = 20;
/// Some figures change without a change of a file: a file becomes stuck, for example. So all figures are read again
/// after this time.
const RECOMPUTE_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Snapshot {
    pub figures: Figures,
    pub trend: Vec<(UnixMs, Outcomes)>,
}

type Slots = Arc<Mutex<HashMap<Scope, Arc<tokio::sync::Mutex<Slot>>>>>;

pub struct Live {
    slots: Slots,
    reads: Arc<Semaphore>,
}

#[derive(Default)]
struct Slot {
    last: Option<LastRead>,
    /// When the last read failed, and why. All watchers get this error until the next read.
    failed: Option<(Instant, VerbError)>,
}

struct LastRead {
    at: Instant,
    pause: Duration,
    changes: i64,
    computed_at: Instant,
    snapshot: Arc<Snapshot>,
}

/// One watcher of a scope. The slot of the scope is removed with its last watcher.
pub struct Watch {
    scope: Scope,
    /// None only while it is dropped.
    slot: Option<Arc<tokio::sync::Mutex<Slot>>>,
    slots: Slots,
    reads: Arc<Semaphore>,
}

impl Default for Live {
    fn default() -> Live {
        Live { slots: Slots::default(), reads: Arc::new(Semaphore::new(READS_MAX)) }
    }
}

impl Live {
    pub fn watch(&self, scope: Scope) -> Watch {
        let slot = lock(&self.slots).entry(scope.clone()).or_default().clone();
        Watch { scope, slot: Some(slot), slots: self.slots.clone(), reads: self.reads.clone() }
    }
}

impl Watch {
    /// The current snapshot: the last one if it is new enough.
    pub async fn snapshot(&self, core: &Core) -> Result<Arc<Snapshot>, VerbError> {
        let Some(slot) = &self.slot else { return Err(VerbError::busy()) };
        let mut slot = slot.lock().await;
        if let Some(last) = slot.last.as_ref().filter(|last| last.at.elapsed() < last.pause) {
            return Ok(last.snapshot.clone());
        }
        if let Some((_, error)) = slot.failed.as_ref().filter(|(at, _)| at.elapsed() < READ_PAUSE) {
            return Err(error.clone());
        }
        let result = match tokio::time::timeout(READ_TIMEOUT, self.read(core, &mut slot)).await {
            Ok(result) => result,
            Err(_) => Err(VerbError::Unavailable("the catalog takes too long to answer".into())),
        };
        slot.failed = result.as_ref().err().map(|error| (Instant::now(), error.clone()));
        result
    }

    async fn read(&self, core: &Core, slot: &mut Slot) -> Result<Arc<Snapshot>, VerbError> {
        let _permit = self.reads.acquire().await.map_err(|_| VerbError::busy())?;
        let started = Instant::now();
        let changes = core.catalog.files_revision(&self.scope).await?;
        let unchanged = slot
            .last
            .take_if(|last| last.changes == changes && last.computed_at.elapsed() < RECOMPUTE_AFTER)
            .map(|last| (last.snapshot, last.computed_at));
        let (snapshot, computed_at) = match unchanged {
            Some(unchanged) => unchanged,
            None => {
                let snapshot = Snapshot {
                    figures: figures(core, &self.scope).await?,
                    trend: trend(core, &self.scope).await?,
                };
                (Arc::new(snapshot), started)
            }
        };
        let pause = READ_PAUSE.max(started.elapsed() * PAUSE_FACTOR);
        slot.last = Some(LastRead { at: started, pause, changes, computed_at, snapshot: snapshot.clone() });
        Ok(snapshot)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut slots = lock(&self.slots);
        self.slot = None;
        if slots.get(&self.scope).is_some_and(|slot| Arc::strong_count(slot) == 1) {
            slots.remove(&self.scope);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
