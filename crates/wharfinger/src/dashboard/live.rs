//! What those who watch a scope see. However many they are, it is looked at once for all of them, no oftener than it is
//! worth, and worked out anew only when a file has changed or some time has gone by.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wharfinger_backends::catalog::{Figures, Outcomes, Scope};
use wharfinger_lifecycle::UnixMs;

use super::{figures, trend};
use crate::app::App;
use crate::uploads::VerbError;

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

#[derive(Default)]
pub struct Live {
    slots: Slots,
}

#[derive(Default)]
struct Slot {
    last: Option<Looked>,
}

struct Looked {
    at: Instant,
    pause: Duration,
    changes: i64,
    worked_out_at: Instant,
    seen: Arc<Seen>,
}

/// One who watches; the slot goes with the last of them.
pub struct Watch {
    scope: Scope,
    slot: Arc<tokio::sync::Mutex<Slot>>,
    slots: Slots,
}

impl Live {
    pub fn watch(&self, scope: Scope) -> Watch {
        let slot = lock(&self.slots).entry(scope.clone()).or_default().clone();
        Watch { scope, slot, slots: self.slots.clone() }
    }
}

impl Watch {
    pub async fn look(&self, app: &App) -> Result<Arc<Seen>, VerbError> {
        let mut slot = self.slot.lock().await;
        if let Some(last) = slot.last.as_ref().filter(|last| last.at.elapsed() < last.pause) {
            return Ok(last.seen.clone());
        }
        let started = Instant::now();
        let changes = app.catalog.changes(&self.scope).await?;
        let still = slot
            .last
            .take_if(|last| last.changes == changes && last.worked_out_at.elapsed() < ANEW_AFTER)
            .map(|last| (last.seen, last.worked_out_at));
        let (seen, worked_out_at) = match still {
            Some(still) => still,
            None => {
                let seen =
                    Seen { figures: figures(app, &self.scope).await?, trend: trend(app, &self.scope).await? };
                (Arc::new(seen), started)
            }
        };
        let pause = LOOK_PAUSE.max(started.elapsed() * COST_SHARE);
        slot.last = Some(Looked { at: started, pause, changes, worked_out_at, seen: seen.clone() });
        Ok(seen)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut slots = lock(&self.slots);
        // Ours and the map's.
        if Arc::strong_count(&self.slot) == 2 {
            slots.remove(&self.scope);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
