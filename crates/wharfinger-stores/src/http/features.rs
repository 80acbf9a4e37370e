//! What a store supports, as the probe and later calls detect it. Until then no feature is assumed.

use std::sync::{PoisonError, RwLock};

use crate::Capabilities;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Features {
    pub(crate) enforces_size: bool,
    pub(crate) enforces_content_type: bool,
    pub(crate) enforces_checksum: bool,
    pub(crate) create_only: bool,
    pub(crate) versioned: bool,
    /// Azure: a listing can start at a key. Older services list everything, and we skip the keys before the start.
    pub(crate) starts_from: bool,
    /// S3: some stores have no bulk delete.
    pub(crate) deletes_one_by_one: bool,
}

impl Features {
    pub(crate) fn capabilities(self, delete_batch_max: usize) -> Capabilities {
        Capabilities {
            enforces_size: self.enforces_size,
            enforces_content_type: self.enforces_content_type,
            enforces_checksum: self.enforces_checksum,
            create_only: self.create_only,
            rejects_ended_files: false,
            versioned: self.versioned,
            delete_batch_max,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct SharedFeatures(RwLock<Features>);

impl SharedFeatures {
    pub(crate) fn get(&self) -> Features {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Features)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}
