//! Limits on open connections: in total, and from one address. When all slots are taken, idle connections are closed
//! first, then connections whose clients do not read their answers.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::activity::{Activity, Evictable};
use crate::config::AddressRange;

/// How many connections are closed at once. Finding them costs more than closing them.
const EVICTIONS_MAX: usize = 250;
/// How long to wait when no connection can be closed. A client counts as not reading only after some time.
const EVICT_RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    pub connections_max: usize,
    /// 0: no limit.
    pub per_address_max: usize,
    /// Their connections carry requests of many clients, so they are not limited per address.
    pub trusted_proxies: Vec<AddressRange>,
}

impl ConnectionLimits {
    /// No limits.
    pub fn none() -> ConnectionLimits {
        ConnectionLimits { connections_max: usize::MAX, per_address_max: 0, trusted_proxies: Vec::new() }
    }
}

#[derive(Debug)]
pub(super) struct ConnectionSlots {
    limits: ConnectionLimits,
    open: Mutex<Open>,
    /// Notified when a slot becomes free.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Open {
    connections: BTreeMap<u64, (Arc<Activity>, CancellationToken)>,
    next: u64,
    by_address: HashMap<IpAddr, usize>,
}

/// The address already has as many connections as allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressLimitReached;

impl ConnectionSlots {
    pub(super) fn new(limits: ConnectionLimits) -> Arc<ConnectionSlots> {
        Arc::new(ConnectionSlots { limits, open: Mutex::default(), freed: Notify::new() })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a connection from this address, and waits until one is free.
    pub(super) async fn take(
        self: &Arc<Self>,
        address: IpAddr,
    ) -> Result<ConnectionSlot, AddressLimitReached> {
        let counted_as = self.counted_as(address);
        loop {
            let freed = self.freed.notified();
            {
                let mut open = self.open();
                if let Some(address) = counted_as
                    && open.by_address.get(&address).copied().unwrap_or(0) >= self.limits.per_address_max
                {
                    return Err(AddressLimitReached);
                }
                if open.connections.len() < self.limits.connections_max {
                    return Ok(self.register(&mut open, counted_as));
                }
                open.evict_idle();
            }
            let _ = tokio::time::timeout(EVICT_RETRY_AFTER, freed).await;
        }
    }

    fn register(self: &Arc<Self>, open: &mut Open, counted_as: Option<IpAddr>) -> ConnectionSlot {
        let (activity, close) = (Activity::new(), CancellationToken::new());
        let id = open.next;
        open.next += 1;
        open.connections.insert(id, (activity.clone(), close.clone()));
        if let Some(address) = counted_as {
            *open.by_address.entry(address).or_default() += 1;
        }
        ConnectionSlot { slots: self.clone(), id, counted_as, activity, close }
    }

    /// The address whose limit applies to a connection, or None if no limit applies. An IPv6 /64 network counts as one client.
    fn counted_as(&self, address: IpAddr) -> Option<IpAddr> {
        let address = address.to_canonical();
        let is_trusted = self.limits.trusted_proxies.iter().any(|range| range.contains(address));
        if self.limits.per_address_max == 0 || is_trusted {
            return None;
        }
        Some(match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        })
    }
}

impl Open {
    /// Closes connections that sent no request yet, then those that are idle for the longest time, then the one that has
    /// not read its answers for the longest time.
    fn evict_idle(&mut self) {
        let mut idle: Vec<_> = self
            .connections
            .values()
            .filter(|(_, close)| !close.is_cancelled())
            .filter_map(|(activity, close)| Some((activity.evictable()?, close)))
            .collect();
        idle.sort_by_key(|(since, _)| *since);
        // A client that only reads slowly is closed for one new connection, not for a whole batch.
        let unused = idle.iter().take_while(|((kind, _), _)| *kind != Evictable::NotReading).count();
        for (_, close) in idle.into_iter().take(unused.clamp(1, EVICTIONS_MAX)) {
            close.cancel();
        }
    }
}

/// The slot of one connection. It is released when it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    id: u64,
    counted_as: Option<IpAddr>,
    pub(super) activity: Arc<Activity>,
    /// Cancelled when the slot is needed for a new connection.
    pub(super) close: CancellationToken,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.slots.open();
        open.connections.remove(&self.id);
        if let Some(address) = self.counted_as
            && let Some(count) = open.by_address.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&address);
            }
        }
        drop(open);
        self.slots.freed.notify_waiters();
    }
}
