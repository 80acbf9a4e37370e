//! Archives file events: sends their outbox lines to ingest, grouped by tenant. A line may be archived twice: readers
//! of the archive can recognise duplicates by their `id`. A line that waits too long is dropped (`sweeps::retention`).

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use tokio_util::sync::CancellationToken;
use wharfinger_catalog::{CatalogError, Destination, OutboxLine, OutboxPayload};
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::retry::Backoff;

use super::Ingest;
use crate::core::Core;

const CLAIM_LINES: usize = 1_000;
/// With `INGEST_ACK=stored`, ingest answers only when the events are in the object store.
const APPEND_TIMEOUT: Duration = Duration::from_secs(60);
/// How long claimed lines are hidden from other processes. Longer than the timeout. The lines of a dead process wait this
/// long.
const CLAIM_MS: i64 = 120_000;
const RETRY: Backoff = Backoff { base_ms: 500, cap_ms: 60_000 };

/// The events of one tenant, and the ids of their lines.
#[derive(Debug, Default, PartialEq, Eq)]
struct TenantEvents {
    events: Vec<String>,
    lines: Vec<String>,
    /// The most attempts of one of the lines.
    attempts: u32,
}

/// Archives all due lines until `stop` is cancelled, and returns how many were accepted. Rejected lines are tried again until
/// they are accepted or `retention` removes them.
pub async fn relay(core: &Core, ingest: &Ingest, stop: &CancellationToken) -> Result<u64, CatalogError> {
    let mut arrived = 0;
    while !stop.is_cancelled() {
        let now = core.clock.now();
        let claimed_until = now.saturating_add(CLAIM_MS);
        let lines = core.catalog.claim_outbox(Destination::Archive, CLAIM_LINES, now, claimed_until).await?;
        if lines.is_empty() {
            break;
        }
        let appends = group_by_tenant(lines).into_iter().map(async |(tenant, group)| {
            let error = append(ingest, &tenant, &group.events).await.err();
            (group, error)
        });
        let (mut done, mut late) = (Vec::new(), Vec::new());
        for (group, error) in join_all(appends).await {
            match error {
                None => done.extend(group.lines),
                Some(why) => late.push((group, why)),
            }
        }
        arrived += done.len() as u64;
        core.catalog.outbox_delivered(done).await?;
        if let Some((_, why)) = late.first() {
            let events: usize = late.iter().map(|(group, _)| group.lines.len()).sum();
            tracing::warn!(job = "archive", tenants = late.len(), events, error = %why,
                "cannot archive events, trying again later");
        }
        for (group, why) in late {
            let delay = RETRY.delay_ms(group.attempts + 1, rand::random());
            let until = core.clock.now().saturating_add(i64::try_from(delay).unwrap_or(i64::MAX / 4));
            core.catalog.delay_outbox(group.lines, &why, until).await?;
        }
    }
    Ok(arrived)
}

async fn append(ingest: &Ingest, tenant: &TenantId, events: &[String]) -> Result<(), String> {
    match tokio::time::timeout(APPEND_TIMEOUT, ingest.append_own(tenant, events)).await {
        Ok(taken) => taken.map_err(|error| error.to_string()),
        Err(_) => Err("ingest did not answer in time".into()),
    }
}

/// Groups lines by tenant and keeps their order.
fn group_by_tenant(lines: Vec<OutboxLine>) -> BTreeMap<TenantId, TenantEvents> {
    let mut groups = BTreeMap::<TenantId, TenantEvents>::new();
    for line in lines {
        let OutboxPayload::Event { body } = line.payload else { continue };
        let group = groups.entry(line.tenant).or_default();
        group.events.push(body);
        group.lines.push(line.id);
        group.attempts = group.attempts.max(line.attempts);
    }
    groups
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
    fn events_are_grouped_by_tenant_in_order() {
        let lines = [("1", "quay", 0), ("2", "harbour", 1), ("3", "quay", 4), ("4", "quay", 2)];
        let shared = group_by_tenant(lines.map(|(id, tenant, attempts)| line(id, tenant, attempts)).into());
        let said = |ids: &[&str], attempts| TenantEvents {
            events: ids.iter().map(|id| format!("{{\"id\":\"{id}\"}}")).collect(),
            lines: ids.iter().map(|id| (*id).to_owned()).collect(),
            attempts,
        };
        let of = |tenant: &str| &shared[&TenantId::new(tenant).expect("a tenant's name")];
        assert_eq!(shared.len(), 2);
        assert_eq!((of("quay"), of("harbour")), (&said(&["1", "3", "4"], 4), &said(&["2"], 1)));
    }
}
