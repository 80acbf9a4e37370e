//! How many connections there may be: in all, and from one address. When all places are taken, connections without a
//! request make room, and then those that do not read their answers.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::activity::{Activity, Holds};
use crate::config::AddressRange;

/// How many are closed at once to make room: looking for them takes longer than closing them.
const CLOSED_AT_ONCE: usize = 250;
/// When nobody can make room, the next look waits: a client that does not read does so only after a while.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    pub connections_max: usize,
    /// 0: no limit.
    pub per_address_max: usize,
    /// Addresses whose connections are those of many clients.
    pub trusted_proxies: Vec<AddressRange>,
}

impl ConnectionLimits {
    /// As many as come.
    pub fn none() -> ConnectionLimits {
        ConnectionLimits { connections_max: usize::MAX, per_address_max: 0, trusted_proxies: Vec::new() }
    }
}

#[derive(Debug)]
pub(super) struct Places {
    limits: ConnectionLimits,
    open: Mutex<Open>,
    /// A place has become free.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Open {
    connections: BTreeMap<u64, (Arc<Activity>, CancellationToken)>,
    next: u64,
    by_address: HashMap<IpAddr, usize>,
}

/// Why a connection is closed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyOfAddress;

impl Places {
    pub(super) fn new(limits: ConnectionLimits) -> Arc<Places> {
        Arc::new(Places { limits, open: Mutex::default(), freed: Notify::new() })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection from this address; waits until there is one.
    pub(super) async fn take(self: &Arc<Self>, address: IpAddr) -> Result<Place, TooManyOfAddress> {
        let counted = self.counted(address);
        loop {
            let freed = self.freed.notified();
            {
                let mut open = self.open();
                if let Some(address) = counted
                    && open.by_address.get(&address).copied().unwrap_or(0) >= self.limits.per_address_max
                {
                    return Err(TooManyOfAddress);
                }
                if open.connections.len() < self.limits.connections_max {
                    return Ok(self.taken(&mut open, counted));
                }
                open.close_idle();
            }
            let _ = tokio::time::timeout(LOOK_AGAIN, freed).await;
        }
    }

    fn taken(self: &Arc<Self>, open: &mut Open, counted: Option<IpAddr>) -> Place {
        let (activity, close) = (Activity::new(), CancellationToken::new());
        let id = open.next;
        open.next += 1;
        open.connections.insert(id, (activity.clone(), close.clone()));
        if let Some(address) = counted {
            *open.by_address.entry(address).or_default() += 1;
        }
        Place { places: self.clone(), id, counted, activity, close }
    }

    /// The address that a connection counts for, if it counts. A network of IPv6 is one client.
    fn counted(&self, address: IpAddr) -> Option<IpAddr> {
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
    /// Those that never asked for anything first, then those that have not for the longest time, then those that have read
    /// nothing of their answers for the longest time.
    fn close_idle(&mut self) {
        let mut idle: Vec<_> = self
            .connections
            .values()
            .filter(|(_, close)| !close.is_cancelled())
            .filter_map(|(activity, close)| Some((activity.makes_room()?, close)))
            .collect();
        idle.sort_by_key(|(since, _)| *since);
        // A client that only reads slowly is closed for one other, not for many.
        let unused = idle.iter().take_while(|((holds, _), _)| *holds != Holds::Unread).count();
        for (_, close) in idle.into_iter().take(unused.clamp(1, CLOSED_AT_ONCE)) {
            close.cancel();
        }
    }
}

/// The right to have a connection, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    id: u64,
    counted: Option<IpAddr>,
    pub(super) activity: Arc<Activity>,
    /// Others need the place.
    pub(super) close: CancellationToken,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.places.open();
        open.connections.remove(&self.id);
        if let Some(address) = self.counted
            && let Some(count) = open.by_address.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&address);
            }
        }
        drop(open);
        self.places.freed.notify_waiters();
    }
}
