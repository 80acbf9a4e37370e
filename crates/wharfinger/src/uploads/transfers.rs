//! Bytes that go to or come from the local store: each transfer holds an open file, of which a process has only so many.
//! A connection of HTTP/2 carries many transfers, so that the limit on connections is none on these.

use std::sync::OnceLock;

use wharfinger_lifecycle::id::TenantId;

use crate::memory_budget::{Hold, MemoryBudget};

/// So many at once, where nobody says how many open files there may be.
const TRANSFERS_MAX: usize = 2_000;

/// Shared as memory is: no tenant gets all of them.
#[derive(Debug, Default)]
pub struct Transfers(OnceLock<MemoryBudget>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct Transfer {
    _hold: Hold,
}

impl Transfers {
    /// Set before the first of them begins.
    pub fn limit(&self, transfers: usize) {
        let _ = self.0.set(MemoryBudget::new(transfers));
    }

    /// None: there are too many, or too many of this tenant.
    pub fn begin(&self, tenant: &TenantId) -> Option<Transfer> {
        let mut hold = self.0.get_or_init(|| MemoryBudget::new(TRANSFERS_MAX)).hold_for(tenant.as_str());
        hold.grow(1).then_some(Transfer { _hold: hold })
    }
}
