//! Work that waits: delayed checks and stages, how they are leased and how they end.

pub(crate) mod claims;
pub(crate) mod dead_letters;
pub(crate) mod delayed;
pub(crate) mod effects;
pub(crate) mod recoveries;
pub(crate) mod stage_claims;
pub(crate) mod stage_ends;
pub(crate) mod stuck_files;
