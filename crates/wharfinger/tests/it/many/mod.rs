//! Many processes on one catalog.

mod outage;
mod roles;
mod rolling;
mod sweeps;
