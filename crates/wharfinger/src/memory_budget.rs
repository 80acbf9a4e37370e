//! A limit for the memory of request bodies and event batches in this process. No tenant can take all of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A tenant may hold at most this many times the free bytes. So one tenant alone gets three quarters, and two get three
/// sevenths each. Some memory stays free for another tenant (test `one_tenant_leaves_memory_for_another`).
const SHARE_OF_FREE: usize = 3;

#[derive(Clone, Debug)]
pub struct MemoryBudget {
    free: Arc<AtomicUsize>,
    tenants: Arc<Mutex<BTreeMap<String, Weak<AtomicUsize>>>>,
}

impl MemoryBudget {
    pub fn new(bytes: usize) -> MemoryBudget {
        MemoryBudget { free: Arc::new(AtomicUsize::new(bytes)), tenants: Arc::default() }
    }

    /// An empty reservation that counts for no tenant.
    pub fn reservation(&self) -> Reservation {
        Reservation { budget: self.clone(), bytes: 0, share: None }
    }

    /// An empty reservation. Its bytes count against the tenant's share.
    pub fn reservation_for(&self, tenant: &str) -> Reservation {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let known = tenants.get(tenant).and_then(Weak::upgrade);
        let share = known.unwrap_or_else(|| {
            tenants.retain(|_, share| share.strong_count() > 0);
            let share = Arc::new(AtomicUsize::new(0));
            tenants.insert(tenant.to_owned(), Arc::downgrade(&share));
            share
        });
        Reservation { budget: self.clone(), bytes: 0, share: Some(share) }
    }

    pub fn free_bytes(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }
}

/// Bytes of the budget. They are released on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: MemoryBudget,
    bytes: usize,
    /// The total of its tenant.
    share: Option<Arc<AtomicUsize>>,
}

impl Reservation {
    /// False if too little is free in total or for this tenant. Then nothing has changed.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        // Added first: of concurrent calls of one tenant, each sees the bytes of the others.
        let held = self.share.as_ref().map_or(0, |share| share.fetch_add(bytes, Ordering::AcqRel));
        let is_shared = self.share.is_some();
        let taken = self.budget.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| {
            let left = free.checked_sub(bytes)?;
            let is_fair = !is_shared || held.saturating_add(bytes) <= left.saturating_mul(SHARE_OF_FREE);
            is_fair.then_some(left)
        });
        match (&taken, &self.share) {
            (Ok(_), _) => self.bytes += bytes,
            (Err(_), Some(share)) => drop(share.fetch_sub(bytes, Ordering::AcqRel)),
            (Err(_), None) => {}
        }
        taken.is_ok()
    }

    pub fn shrink_to(&mut self, bytes: usize) {
        let freed = self.bytes.saturating_sub(bytes);
        self.bytes -= freed;
        self.budget.free.fetch_add(freed, Ordering::AcqRel);
        if let Some(share) = &self.share {
            share.fetch_sub(freed, Ordering::AcqRel);
        }
    }

    /// Keeps `keep_bytes`, and returns the rest as another reservation.
    pub fn split_off(&mut self, keep_bytes: usize) -> Reservation {
        let over = self.bytes.saturating_sub(keep_bytes);
        self.bytes -= over;
        Reservation { budget: self.budget.clone(), bytes: over, share: self.share.clone() }
    }

    /// Takes over the bytes of `other`. They count against the tenant of this reservation.
    pub fn absorb(&mut self, mut other: Reservation) {
        let bytes = std::mem::take(&mut other.bytes);
        self.bytes += bytes;
        if let Some(share) = &other.share {
            share.fetch_sub(bytes, Ordering::AcqRel);
        }
        if let Some(share) = &self.share {
            share.fetch_add(bytes, Ordering::AcqRel);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_leaves_memory_for_another() {
        let budget = MemoryBudget::new(100);
        let (mut first, mut second) = (budget.reservation_for("large"), budget.reservation_for("large"));
        assert!(first.grow(40) && second.grow(35) && !second.grow(1), "three quarters in total");
        let mut other = budget.reservation_for("other");
        assert!(other.grow(18) && !other.grow(1), "three quarters of what is left");
        let mut batch = budget.reservation();
        batch.absorb(first);
        assert!(!second.grow(5), "the batch holds the bytes, so no more are free");
        drop(batch);
        assert!(second.grow(5));
        drop((second, other));
        assert_eq!(budget.free_bytes(), 100);
        assert!(budget.reservation_for("large").grow(75), "everything was released");
    }

    #[test]
    fn held_bytes_are_released_on_drop() {
        let budget = MemoryBudget::new(100);
        let mut one = budget.reservation();
        assert!(one.grow(60) && !one.grow(41) && one.grow(10));
        let mut other = budget.reservation();
        assert!(other.grow(30) && !other.grow(1));
        one.absorb(other);
        assert_eq!(budget.free_bytes(), 0);
        let over = one.split_off(70);
        assert_eq!((one.bytes, over.bytes), (70, 30));
        one.absorb(over);
        one.shrink_to(25);
        assert_eq!(budget.free_bytes(), 75);
        one.shrink_to(50);
        assert_eq!(budget.free_bytes(), 75, "shrinking never grows");
        drop(one);
        assert_eq!(budget.free_bytes(), 100);
    }
}
