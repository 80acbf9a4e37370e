//! Several processes with one catalog.

mod outage;
mod roles;
mod rolling;
mod sweeps;
