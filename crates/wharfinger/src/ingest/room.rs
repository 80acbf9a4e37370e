//! How much memory events may take in this process: each body, line and batch holds a part of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Debug)]
pub struct Room(Arc<AtomicUsize>);

impl Room {
    pub fn new(bytes: usize) -> Room {
        Room(Arc::new(AtomicUsize::new(bytes)))
    }

    /// Holds nothing yet.
    pub fn hold(&self) -> Hold {
        Hold { room: self.clone(), bytes: 0 }
    }

    pub fn free_bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Given back when it is dropped.
#[derive(Debug)]
pub struct Hold {
    room: Room,
    bytes: usize,
}

impl Hold {
    /// False: there is no room for more, and nothing has changed.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let taken =
            self.room.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| free.checked_sub(bytes));
        if taken.is_ok() {
            self.bytes += bytes;
        }
        taken.is_ok()
    }

    pub fn shrink_to(&mut self, bytes: usize) {
        let freed = self.bytes.saturating_sub(bytes);
        self.bytes -= freed;
        self.room.0.fetch_add(freed, Ordering::AcqRel);
    }

    /// Keeps so many bytes; what is over is another's.
    pub fn split_off(&mut self, keep_bytes: usize) -> Hold {
        let over = self.bytes.saturating_sub(keep_bytes);
        self.bytes -= over;
        Hold { room: self.room.clone(), bytes: over }
    }

    pub fn absorb(&mut self, mut other: Hold) {
        self.bytes += std::mem::take(&mut other.bytes);
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
    fn what_is_held_is_given_back() {
        let room = Room::new(100);
        let mut one = room.hold();
        assert!(one.grow(60) && !one.grow(41) && one.grow(10));
        let mut other = room.hold();
        assert!(other.grow(30) && !other.grow(1));
        one.absorb(other);
        assert_eq!(room.free_bytes(), 0);
        let over = one.split_off(70);
        assert_eq!((one.bytes, over.bytes), (70, 30));
        one.absorb(over);
        one.shrink_to(25);
        assert_eq!(room.free_bytes(), 75);
        one.shrink_to(50);
        assert_eq!(room.free_bytes(), 75, "shrinking never grows");
        drop(one);
        assert_eq!(room.free_bytes(), 100);
    }
}
