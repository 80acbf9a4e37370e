//! The dashboard's figures of a scope: computed for calls and cached for a while, and read repeatedly for clients that watch
//! the event stream. The web page in this folder is served by `http/page.rs`.

pub mod cache;
pub mod live;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{Figures, OUTCOME_SPAN_MS, Outcomes, Scope};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::{TenantId, UserId};

use crate::core::{Caller, Core, OpenError, Role, VerbError};
use cache::Cache;
use live::Live;

/// The trend shows the outcomes of this period.
const TREND_MS: i64 = 86_400_000;
/// Each stream holds a connection. Operators have separate slots, because they come when something is wrong.
const STREAMS_MAX: usize = 1_000;
const OPERATOR_STREAMS_MAX: usize = 100;
const STREAMS_PER_USER_MAX: usize = 16;

pub struct Dashboard {
    pub cache: Cache,
    pub live: Live,
    /// The origin that the page sends uploads to. It is remembered, because signing a URL may cost a call to the store.
    pub store_origin: OnceCell<String>,
    streams: Arc<Semaphore>,
    operator_streams: Arc<Semaphore>,
    user_streams: UserStreams,
}

type UserStreams = Arc<Mutex<HashMap<(TenantId, UserId), usize>>>;

/// A slot for one stream. It is free again when this is dropped.
pub struct StreamSlot {
    _permit: OwnedSemaphorePermit,
    user: (TenantId, UserId),
    user_streams: UserStreams,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut counts = self.user_streams.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match counts.get_mut(&self.user) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.user)),
        }
    }
}

impl Dashboard {
    pub async fn open(core: &Core, faults: &Faults) -> Result<Dashboard, OpenError> {
        Ok(Dashboard {
            cache: Cache::open(&core.settings, &core.catalog, faults).await?,
            live: Live::default(),
            store_origin: OnceCell::new(),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            operator_streams: Arc::new(Semaphore::new(OPERATOR_STREAMS_MAX)),
            user_streams: UserStreams::default(),
        })
    }

    /// None: no slot is free, in total or for this user.
    pub fn stream_slot(&self, caller: &Caller) -> Option<StreamSlot> {
        let slots = if caller.role == Role::Operator { &self.operator_streams } else { &self.streams };
        let permit = slots.clone().try_acquire_owned().ok()?;
        let user = (caller.tenant.clone(), caller.user.clone());
        let mut counts = self.user_streams.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let count = counts.entry(user.clone()).or_default();
        if *count >= STREAMS_PER_USER_MAX {
            return None;
        }
        *count += 1;
        Some(StreamSlot { _permit: permit, user, user_streams: self.user_streams.clone() })
    }
}

/// The start of the oldest span in the trend. The trend ends with the span of `now`, which is not complete yet.
fn first_span(now: UnixMs) -> UnixMs {
    let this_span = now.div_euclid(OUTCOME_SPAN_MS) * OUTCOME_SPAN_MS;
    this_span - TREND_MS + OUTCOME_SPAN_MS
}

pub async fn figures(core: &Core, scope: &Scope) -> Result<Figures, VerbError> {
    let now = core.clock.now();
    Ok(core.catalog.figures(scope, now, first_span(now) - 1).await?)
}

/// The outcomes of the files in each span of the last day, the oldest first. Spans without outcomes are included.
pub async fn trend(core: &Core, scope: &Scope) -> Result<Vec<(UnixMs, Outcomes)>, VerbError> {
    let first = first_span(core.clock.now());
    let counted = core.catalog.trend(scope, first - 1).await?;
    let spans = (0..TREND_MS / OUTCOME_SPAN_MS).map(|n| first + n * OUTCOME_SPAN_MS);
    let outcomes =
        |at| counted.iter().find(|(counted, _)| *counted == at).map_or_else(Outcomes::default, |c| c.1);
    Ok(spans.map(|at| (at, outcomes(at))).collect())
}

/// Failed files as a percentage of ready and failed files, with two decimals. Quarantined files are not counted.
pub fn failure_rate(outcomes: &Outcomes) -> f64 {
    let ended = outcomes.ready + outcomes.failed;
    if ended == 0 {
        return 0.0;
    }
    (outcomes.failed as f64 * 10_000.0 / ended as f64).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_two_decimals() {
        let rate = |ready, failed| failure_rate(&Outcomes { ready, failed, quarantined: 7 });
        assert_eq!((rate(0, 0), rate(0, 3), rate(3, 0)), (0.0, 100.0, 0.0));
        assert_eq!((rate(2, 1), rate(1, 2), rate(9_999, 1)), (33.33, 66.67, 0.01));
    }

    #[test]
    fn the_trend_includes_the_current_span_and_24_hours_in_total() {
        let day = 20_000 * TREND_MS;
        assert_eq!(first_span(day), day - TREND_MS + OUTCOME_SPAN_MS);
        assert_eq!(first_span(day + OUTCOME_SPAN_MS - 1), first_span(day));
        assert_eq!(first_span(day + OUTCOME_SPAN_MS), first_span(day) + OUTCOME_SPAN_MS);
    }
}
