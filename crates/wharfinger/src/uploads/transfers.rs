//! Limits the transfers to and from the local store. Each transfer holds an open file, and a process has a limited number
//! of them. One HTTP/2 connection carries many transfers, so the limit on connections does not limit them.

use std::sync::OnceLock;

use wharfinger_lifecycle::id::TenantId;

use crate::memory_budget::{MemoryBudget, Reservation};

/// The limit if `limit` is not called.
const TRANSFERS_MAX: usize = 2_000;

/// Shared between tenants like a memory budget, so that one tenant cannot take all transfers.
#[derive(Debug, Default)]
pub struct Transfers(OnceLock<MemoryBudget>);

/// One transfer. It ends when it is dropped.
#[derive(Debug)]
pub struct Transfer {
    _reservation: Reservation,
}

impl Transfers {
    /// Must be called before the first transfer starts.
    pub fn limit(&self, transfers: usize) {
        let _ = self.0.set(MemoryBudget::new(transfers));
    }

    /// None: too many transfers are running, in total or for this tenant.
    pub fn begin(&self, tenant: &TenantId) -> Option<Transfer> {
        let mut reservation =
            self.0.get_or_init(|| MemoryBudget::new(TRANSFERS_MAX)).reservation_for(tenant.as_str());
        reservation.grow(1).then_some(Transfer { _reservation: reservation })
    }
}
