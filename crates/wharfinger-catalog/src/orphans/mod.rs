//! What a scan of the store found: objects without a row, and rows without their object.

pub(crate) mod blobs;
pub(crate) mod scans;
