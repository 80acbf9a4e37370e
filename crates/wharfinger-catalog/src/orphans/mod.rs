//! Scans of the store, and their findings: objects without a row, and rows without their object.

pub(crate) mod blobs;
pub(crate) mod scans;
