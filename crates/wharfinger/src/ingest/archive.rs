//! Archives what happened to files: lines of the outbox, each written with its event, go into ingest, every tenant's
//! together. At least once: whoever reads the archive knows what came twice by its `id`.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use tokio_util::sync::CancellationToken;
use wharfinger_catalog::{CatalogError, Destination, OutboxPayload, OutboxLine};
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::retry::Backoff;

use super::Ingest;
use crate::core::Core;

const CLAIM_LINES: usize = 1_000;
/// Ingest may promise to answer only when events are in the object store.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than our patience. Whoever dies with lines in hand holds them up this long.
const HIDDEN_MS: i64 = 120_000;
const LATER: Backoff = Backoff { base_ms: 500, cap_ms: 60_000 };

/// The events of one tenant that go together, and the lines that they came in.
#[derive(Debug, Default, PartialEq, Eq)]
struct Share {
    events: Vec<String>,
    lines: Vec<String>,
    /// Of whichever of them was tried most often.
    attempts: u32,
}

/// Archives all that is due, unless told to begin nothing new; answers how many lines arrived. What is not taken is
/// tried again for as long as it takes: an archive has no gaps.
pub async fn relay(core: &Core, ingest: &Ingest, stop: &CancellationToken) -> Result<u64, CatalogError> {
    let mut arrived = 0;
    while !stop.is_cancelled() {
        let now = core.clock.now();
        let hidden_until = now.saturating_add(HIDDEN_MS);
        let lines = core.catalog.claim_outbox(Destination::Archive, CLAIM_LINES, now, hidden_until).await?;
        if lines.is_empty() {
            break;
        }
        let handed = shares(lines).into_iter().map(async |(tenant, share)| {
            let refusal = hand_over(ingest, &tenant, &share.events).await.err();
            (share, refusal)
        });
        let (mut done, mut late) = (Vec::new(), Vec::new());
        for (share, refusal) in join_all(handed).await {
            match refusal {
                None => done.extend(share.lines),
                Some(why) => late.push((share, why)),
            }
        }
        arrived += done.len() as u64;
        core.catalog.outbox_delivered(done).await?;
        if let Some((_, why)) = late.first() {
            let events: usize = late.iter().map(|(share, _)| share.lines.len()).sum();
            tracing::warn!(job = "archive", tenants = late.len(), events, error = %why,
                "events were not taken and are tried again");
        }
        for (share, why) in late {
            let delay = LATER.delay_ms(share.attempts + 1, rand::random());
            let until = core.clock.now().saturating_add(i64::try_from(delay).unwrap_or(i64::MAX / 4));
            core.catalog.delay_outbox(share.lines, &why, until).await?;
        }
    }
    Ok(arrived)
}

async fn hand_over(ingest: &Ingest, tenant: &TenantId, events: &[String]) -> Result<(), String> {
    match tokio::time::timeout(PATIENCE, ingest.keep(tenant, events)).await {
        Ok(taken) => taken.map_err(|refusal| refusal.to_string()),
        Err(_) => Err("no answer in time".into()),
    }
}

/// In the order of the lines.
fn shares(lines: Vec<OutboxLine>) -> BTreeMap<TenantId, Share> {
    let mut shares = BTreeMap::<TenantId, Share>::new();
    for line in lines {
        let OutboxPayload::Event { body } = line.payload else { continue };
        let share = shares.entry(line.tenant).or_default();
        share.events.push(body);
        share.lines.push(line.id);
        share.attempts = share.attempts.max(line.attempts);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: &str, tenant: &str, attempts: u32) -> OutboxLine {
        OutboxLine {
            id: id.into(),
            tenant: TenantId::new(tenant).expect("a tenant's name"),
            payload: OutboxPayload::Event { body: format!("{{\"id\":\"{id}\"}}") },
            attempts,
            created_at: 0,
        }
    }

    #[test]
    fn each_tenants_events_go_together_and_in_order() {
        let lines = [("1", "quay", 0), ("2", "harbour", 1), ("3", "quay", 4), ("4", "quay", 2)];
        let shared = shares(lines.map(|(id, tenant, attempts)| line(id, tenant, attempts)).into());
        let said = |ids: &[&str], attempts| Share {
            events: ids.iter().map(|id| format!("{{\"id\":\"{id}\"}}")).collect(),
            lines: ids.iter().map(|id| (*id).to_owned()).collect(),
            attempts,
        };
        let of = |tenant: &str| &shared[&TenantId::new(tenant).expect("a tenant's name")];
        assert_eq!(shared.len(), 2);
        assert_eq!((of("quay"), of("harbour")), (&said(&["1", "3", "4"], 4), &said(&["2"], 1)));
    }
}
