//! Jobs: delayed checks and pipeline stages, their leases, and the ends of their attempts.

pub(crate) mod claims;
pub(crate) mod dead_letters;
pub(crate) mod delayed;
pub(crate) mod effects;
pub(crate) mod recoveries;
pub(crate) mod stage_claims;
pub(crate) mod stage_ends;
pub(crate) mod stage_workers;
pub(crate) mod stuck_files;
