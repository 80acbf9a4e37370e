//! The share of each tenant in the spool. While the spool is nearly full, tenants over an equal share are refused
//! (429). Otherwise the events of other tenants would be dropped.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Below this percentage of its limit, the spool accepts events of all tenants.
const NEARLY_FULL_PERCENT: u64 = 80;

/// The bytes of one batch per tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct TenantBytes(BTreeMap<Arc<str>, u64>);

impl TenantBytes {
    /// Divides the compressed size in proportion to the uncompressed sizes.
    pub(super) fn divide(packed_bytes: u64, unpacked: &BTreeMap<String, u64>) -> TenantBytes {
        let total: u128 = unpacked.values().copied().map(u128::from).sum();
        let part = |bytes: u64| u128::from(packed_bytes) * u128::from(bytes) / total.max(1);
        let parts = unpacked.iter().map(|(tenant, bytes)| {
            (Arc::from(tenant.as_str()), u64::try_from(part(*bytes)).unwrap_or(packed_bytes))
        });
        TenantBytes(parts.collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    /// Returns no tenants if the text is not in the format of `to_json`.
    pub(super) fn from_json(text: &[u8]) -> TenantBytes {
        serde_json::from_slice(text).unwrap_or_default()
    }
}

/// The lock is held only briefly, never during disk I/O: every events request takes it.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    tenants: HashMap<Arc<str>, u64>,
}

impl Shares {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, bytes: u64, tenants: &TenantBytes) {
        let mut state = self.state();
        state.bytes += bytes;
        for (tenant, bytes) in &tenants.0 {
            *state.tenants.entry(tenant.clone()).or_default() += bytes;
        }
    }

    pub(super) fn subtract(&self, bytes: u64, tenants: &TenantBytes) {
        let mut state = self.state();
        state.bytes -= bytes;
        for (tenant, bytes) in &tenants.0 {
            let left = state.tenants.get(tenant).map_or(0, |held| held.saturating_sub(*bytes));
            match left {
                0 => state.tenants.remove(tenant),
                _ => state.tenants.insert(tenant.clone(), left),
            };
        }
    }

    pub(super) fn is_over_share(&self, tenant: &str, bytes_max: u64) -> bool {
        let state = self.state();
        let is_nearly_full =
            u128::from(state.bytes) * 100 > u128::from(bytes_max) * u128::from(NEARLY_FULL_PERCENT);
        let held = state.tenants.get(tenant).copied().unwrap_or(0);
        is_nearly_full && held > bytes_max / state.tenants.len().max(1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant_bytes(parts: &[(&str, u64)]) -> TenantBytes {
        TenantBytes(parts.iter().map(|(tenant, bytes)| (Arc::from(*tenant), *bytes)).collect())
    }

    #[test]
    fn a_batch_is_divided_in_proportion_to_its_events() {
        let unpacked = BTreeMap::from([("a".to_owned(), 300), ("b".to_owned(), 100)]);
        let divided = TenantBytes::divide(40, &unpacked);
        assert_eq!(divided, tenant_bytes(&[("a", 30), ("b", 10)]));
        assert_eq!(TenantBytes::from_json(divided.to_json().as_bytes()), divided);
        assert_eq!(TenantBytes::from_json(b"{\"a\":"), TenantBytes::default());
        assert_eq!(TenantBytes::divide(40, &BTreeMap::new()), TenantBytes::default());
        let largest = BTreeMap::from([("a".to_owned(), u64::MAX), ("b".to_owned(), u64::MAX)]);
        assert_eq!(TenantBytes::divide(u64::MAX, &largest).0["a"], u64::MAX / 2);
    }

    #[test]
    fn tenants_over_an_equal_share_are_refused_while_the_spool_is_nearly_full() {
        let shares = Shares::default();
        shares.add(80, &tenant_bytes(&[("hog", 79), ("small", 1)]));
        assert!(!shares.is_over_share("hog", 100), "not nearly full");
        shares.add(1, &tenant_bytes(&[("small", 1)]));
        assert!(shares.is_over_share("hog", 100));
        assert!(!shares.is_over_share("small", 100) && !shares.is_over_share("new", 100));
        shares.subtract(79, &tenant_bytes(&[("hog", 79)]));
        shares.add(90, &tenant_bytes(&[("small", 90)]));
        assert!(!shares.is_over_share("small", 100), "the share of a single tenant is the whole spool");
        shares.add(1, &tenant_bytes(&[("new", 1)]));
        assert!(shares.is_over_share("small", 100));
    }
}
