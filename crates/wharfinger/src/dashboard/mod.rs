//! What a scope looks like now: figures for the dashboard, kept for a while for those who ask, and looked at again and again
//! for those who watch.

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

/// How far back outcomes are shown.
const SHOWN_MS: i64 = 86_400_000;
/// Who watches holds a connection. Operators have places of their own: they come when something is wrong.
const STREAMS_MAX: usize = 1_000;
const OPERATORS_STREAMS_MAX: usize = 100;
/// Of one user.
const OWN_STREAMS_MAX: usize = 16;

pub struct Dashboard {
    pub cache: Cache,
    pub live: Live,
    /// Where the page's uploads go, once it is known: to sign a URL may cost a call.
    pub store_origin: OnceCell<String>,
    streams: Arc<Semaphore>,
    operators_streams: Arc<Semaphore>,
    own_streams: OwnStreams,
}

type OwnStreams = Arc<Mutex<HashMap<(TenantId, UserId), usize>>>;

/// A place of one who watches, until it is dropped.
pub struct StreamPlace {
    _permit: OwnedSemaphorePermit,
    whose: (TenantId, UserId),
    own_streams: OwnStreams,
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut own = self.own_streams.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match own.get_mut(&self.whose) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(own.remove(&self.whose)),
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
            operators_streams: Arc::new(Semaphore::new(OPERATORS_STREAMS_MAX)),
            own_streams: OwnStreams::default(),
        })
    }

    /// None: there is no place left, for anybody or for this user.
    pub fn stream_place(&self, caller: &Caller) -> Option<StreamPlace> {
        let places = if caller.role == Role::Operator { &self.operators_streams } else { &self.streams };
        let permit = places.clone().try_acquire_owned().ok()?;
        let whose = (caller.tenant.clone(), caller.user.clone());
        let mut own = self.own_streams.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let count = own.entry(whose.clone()).or_default();
        if *count >= OWN_STREAMS_MAX {
            return None;
        }
        *count += 1;
        Some(StreamPlace { _permit: permit, whose, own_streams: self.own_streams.clone() })
    }
}

/// The start of the oldest span of time that is shown. A day is over when the span it began in is.
fn first_span(now: UnixMs) -> UnixMs {
    let this_span = now.div_euclid(OUTCOME_SPAN_MS) * OUTCOME_SPAN_MS;
    this_span - SHOWN_MS + OUTCOME_SPAN_MS
}

pub async fn figures(core: &Core, scope: &Scope) -> Result<Figures, VerbError> {
    let now = core.clock.now();
    Ok(core.catalog.figures(scope, now, first_span(now) - 1).await?)
}

/// What files came to in each span of the last day, the oldest first, and none left out.
pub async fn trend(core: &Core, scope: &Scope) -> Result<Vec<(UnixMs, Outcomes)>, VerbError> {
    let first = first_span(core.clock.now());
    let counted = core.catalog.trend(scope, first - 1).await?;
    let spans = (0..SHOWN_MS / OUTCOME_SPAN_MS).map(|n| first + n * OUTCOME_SPAN_MS);
    let outcomes =
        |at| counted.iter().find(|(counted, _)| *counted == at).map_or_else(Outcomes::default, |c| c.1);
    Ok(spans.map(|at| (at, outcomes(at))).collect())
}

/// Files that failed, of those that came to an end, in percent with two decimals. What is quarantined was stopped on purpose.
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
    fn a_day_has_its_last_span_and_not_the_one_before_its_first() {
        let day = 20_000 * SHOWN_MS;
        assert_eq!(first_span(day), day - SHOWN_MS + OUTCOME_SPAN_MS);
        assert_eq!(first_span(day + OUTCOME_SPAN_MS - 1), first_span(day));
        assert_eq!(first_span(day + OUTCOME_SPAN_MS), first_span(day) + OUTCOME_SPAN_MS);
    }
}
