//! How much memory some work may take in this process: each body, line or batch holds a part of it, and no tenant all.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A tenant may hold at most so many times what is left free. So one alone gets three quarters, two get three sevenths
/// each, and there is always something left for one that comes.
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

    /// Holds nothing yet, and nothing of a tenant's share.
    pub fn hold(&self) -> Hold {
        Hold { budget: self.clone(), bytes: 0, share: None }
    }

    /// Holds nothing yet. What it will hold counts against the tenant.
    pub fn hold_for(&self, tenant: &str) -> Hold {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let known = tenants.get(tenant).and_then(Weak::upgrade);
        let share = known.unwrap_or_else(|| {
            tenants.retain(|_, share| share.strong_count() > 0);
            let share = Arc::new(AtomicUsize::new(0));
            tenants.insert(tenant.to_owned(), Arc::downgrade(&share));
            share
        });
        Hold { budget: self.clone(), bytes: 0, share: Some(share) }
    }

    pub fn free_bytes(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }
}

/// Given back when it is dropped.
#[derive(Debug)]
pub struct Hold {
    budget: MemoryBudget,
    bytes: usize,
    /// What its tenant holds in all.
    share: Option<Arc<AtomicUsize>>,
}

impl Hold {
    /// False: there is not so much left, or not for this tenant, and nothing has changed.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let held = self.share.as_ref().map_or(0, |share| share.load(Ordering::Acquire));
        let is_shared = self.share.is_some();
        let taken = self.budget.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| {
            let left = free.checked_sub(bytes)?;
            let is_fair = !is_shared || held.saturating_add(bytes) <= left.saturating_mul(SHARE_OF_FREE);
            is_fair.then_some(left)
        });
        if taken.is_ok() {
            self.bytes += bytes;
            if let Some(share) = &self.share {
                share.fetch_add(bytes, Ordering::AcqRel);
            }
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

    /// Keeps so many bytes; what is over is another's.
    pub fn split_off(&mut self, keep_bytes: usize) -> Hold {
        let over = self.bytes.saturating_sub(keep_bytes);
        self.bytes -= over;
        Hold { budget: self.budget.clone(), bytes: over, share: self.share.clone() }
    }

    /// What another holds is this one's, and counts against this one's tenant.
    pub fn absorb(&mut self, mut other: Hold) {
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

impl Drop for Hold {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_leaves_room_for_another() {
        let budget = MemoryBudget::new(100);
        let (mut hog, mut again) = (budget.hold_for("hog"), budget.hold_for("hog"));
        assert!(hog.grow(40) && again.grow(35) && !again.grow(1), "three quarters in all");
        let mut other = budget.hold_for("other");
        assert!(other.grow(18) && !other.grow(1), "three quarters of what is left");
        let mut batch = budget.hold();
        batch.absorb(hog);
        assert!(!again.grow(5), "it is in a batch now, and there is no less in use");
        drop(batch);
        assert!(again.grow(5));
        drop((again, other));
        assert_eq!(budget.free_bytes(), 100);
        assert!(budget.hold_for("hog").grow(75), "nothing is remembered");
    }

    #[test]
    fn what_is_held_is_given_back() {
        let budget = MemoryBudget::new(100);
        let mut one = budget.hold();
        assert!(one.grow(60) && !one.grow(41) && one.grow(10));
        let mut other = budget.hold();
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
