//! Counters, the figures of the dashboard, the audit of the catalog, and its facts.

pub(crate) mod audit;
pub(crate) mod counters;
pub(crate) mod dashboard;
pub(crate) mod facts;
