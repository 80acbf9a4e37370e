//! What those who watch a scope see. However many they are, it is looked at once for all of them, no oftener than it is
//! worth, and worked out anew only when a file has changed or some time has gone by.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use wharfinger_catalog::{Figures, Outcomes, Scope};
use wharfinger_lifecycle::UnixMs;

use super::{figures, trend};
use crate::core::Core;
use crate::core::VerbError;

const LOOKS_AT_ONCE: usize = 4;
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK_PAUSE: Duration = Duration::from_millis(800);
/// Looking costs no more than one part in so many of the time.
const COST_SHARE: u32 = 20;
/// What changes without any file changing (a file gets stuck, a batch opens) is seen by then.
const ANEW_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Seen {
    pub figures: Figures,
    pub trend: Vec<(UnixMs, Outcomes)>,
}

type Slots = Arc<Mutex<HashMap<Scope, Arc<tokio::sync::Mutex<Slot>>>>>;

pub struct Live {
    slots: Slots,
    /// However many scopes are watched, so many are looked at at once.
    looks: Arc<Semaphore>,
}

#[derive(Default)]
struct Slot {
    last: Option<LastLook>,
    /// When looking failed, and why: all who watch are told by one.
    failed: Option<(Instant, VerbError)>,
}

struct LastLook {
    at: Instant,
    pause: Duration,
    changes: i64,
    worked_out_at: Instant,
    seen: Arc<Seen>,
}

/// One who watches; the slot goes with the last of them.
pub struct Watch {
    scope: Scope,
    /// Some until it ends.
    slot: Option<Arc<tokio::sync::Mutex<Slot>>>,
    slots: Slots,
    looks: Arc<Semaphore>,
}

impl Default for Live {
    fn default() -> Live {
        Live { slots: Slots::default(), looks: Arc::new(Semaphore::new(LOOKS_AT_ONCE)) }
    }
}

impl Live {
    pub fn watch(&self, scope: Scope) -> Watch {
        let slot = lock(&self.slots).entry(scope.clone()).or_default().clone();
        Watch { scope, slot: Some(slot), slots: self.slots.clone(), looks: self.looks.clone() }
    }
}

impl Watch {
    pub async fn look(&self, core: &Core) -> Result<Arc<Seen>, VerbError> {
        let Some(slot) = &self.slot else { return Err(VerbError::busy()) };
        let mut slot = slot.lock().await;
        if let Some(last) = slot.last.as_ref().filter(|last| last.at.elapsed() < last.pause) {
            return Ok(last.seen.clone());
        }
        if let Some((_, error)) = slot.failed.as_ref().filter(|(at, _)| at.elapsed() < LOOK_PAUSE) {
            return Err(error.clone());
        }
        let looked = match tokio::time::timeout(LOOK_TIMEOUT, self.recheck(core, &mut slot)).await {
            Ok(looked) => looked,
            Err(_) => Err(VerbError::Unavailable("the catalog takes too long to answer".into())),
        };
        slot.failed = looked.as_ref().err().map(|error| (Instant::now(), error.clone()));
        looked
    }

    async fn recheck(&self, core: &Core, slot: &mut Slot) -> Result<Arc<Seen>, VerbError> {
        let _place = self.looks.acquire().await.map_err(|_| VerbError::busy())?;
        let started = Instant::now();
        let changes = core.catalog.change_counter(&self.scope).await?;
        let still = slot
            .last
            .take_if(|last| last.changes == changes && last.worked_out_at.elapsed() < ANEW_AFTER)
            .map(|last| (last.seen, last.worked_out_at));
        let (seen, worked_out_at) = match still {
            Some(still) => still,
            None => {
                let seen = Seen {
                    figures: figures(core, &self.scope).await?,
                    trend: trend(core, &self.scope).await?,
                };
                (Arc::new(seen), started)
            }
        };
        let pause = LOOK_PAUSE.max(started.elapsed() * COST_SHARE);
        slot.last = Some(LastLook { at: started, pause, changes, worked_out_at, seen: seen.clone() });
        Ok(seen)
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
