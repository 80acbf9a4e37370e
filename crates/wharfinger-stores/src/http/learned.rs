//! What a probe found out about a store. Before it, nothing is taken for granted.

use std::sync::{PoisonError, RwLock};

use crate::Caps;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) binds_size: bool,
    pub(crate) binds_content_type: bool,
    pub(crate) binds_checksum: bool,
    pub(crate) create_only: bool,
    pub(crate) versioned: bool,
    /// Azure: the service can begin a listing at a key. Older ones list everything, and we skip what comes before.
    pub(crate) starts_from: bool,
    /// S3: older stores have no bulk delete.
    pub(crate) deletes_one_by_one: bool,
}

impl Findings {
    pub(crate) fn caps(self, delete_batch_max: usize) -> Caps {
        Caps {
            binds_size: self.binds_size,
            binds_content_type: self.binds_content_type,
            binds_checksum: self.binds_checksum,
            create_only: self.create_only,
            refuses_ended: false,
            versioned: self.versioned,
            delete_batch_max,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Learned(RwLock<Findings>);

impl Learned {
    pub(crate) fn get(&self) -> Findings {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Findings)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}
