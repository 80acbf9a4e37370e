//! Fault: a counter that is not the sum of what its tenant's files are charged: after a crash in the middle of a
//! registration Redis counts what never came to be.

use serde::Serialize;
use utoipa::ToSchema;

use super::{Turn, record};
use crate::app::App;
use crate::quota::{Ledger, sync};
use crate::telemetry::metric;
use crate::uploads::VerbError;

pub const NAME: &str = "quota-sync";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    pub tenants: u64,
    pub drift_bytes: u64,
    pub rebuilt: u64,
}

pub async fn run(app: &App, turn: &Turn) -> Result<Outcome, VerbError> {
    let started_at = app.clock.now();
    let ledger = Ledger { catalog: &turn.catalog, ..app.ledger() };
    let synced = sync::all(&ledger, app.redis_gate.as_ref(), || turn.goes_on(app)).await;
    let outcome = synced.map_err(VerbError::from).map(|synced| Outcome {
        tenants: synced.tenants,
        drift_bytes: synced.drift_bytes,
        rebuilt: synced.rebuilt,
    });
    if let Ok(outcome) = &outcome {
        metric::quota_drift(outcome.drift_bytes);
        if outcome.drift_bytes > 0 {
            tracing::warn!(
                job = NAME,
                driftBytes = outcome.drift_bytes,
                "counters were off and are right now"
            );
        }
    }
    record(app, turn, NAME, started_at, &outcome).await;
    outcome
}
